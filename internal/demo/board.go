package demo

import (
	"fmt"
	"io"
	"strings"
)

// board is what the demo writes on: sections, what it shows, and checks.
type board struct {
	out    io.Writer
	color  bool
	checks int
	failed []string
	row    int // items in the row that is being written
}

// itemsInRow fit 100 columns.
const itemsInRow = 6

// item writes one of many at once, several to a line, until endRow.
func (b *board) item(format string, args ...any) {
	if b.row == itemsInRow {
		b.endRow()
	}
	if b.row == 0 {
		fmt.Fprint(b.out, "    ")
	} else {
		fmt.Fprint(b.out, "  ")
	}
	fmt.Fprintf(b.out, format, args...)
	b.row++
}

func (b *board) endRow() {
	if b.row > 0 {
		fmt.Fprintln(b.out)
	}
	b.row = 0
}

// ANSI sequences, written to a terminal only.
const (
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	green = "\x1b[32m"
	red   = "\x1b[31m"
	plain = "\x1b[0m"
)

func (b *board) paint(style, s string) string {
	if !b.color {
		return s
	}
	return style + s + plain
}

func (b *board) section(format string, args ...any) {
	fmt.Fprintf(b.out, "\n%s\n", b.paint(bold, fmt.Sprintf(format, args...)))
}

// show writes a line that claims nothing.
func (b *board) show(format string, args ...any) {
	fmt.Fprintf(b.out, "    %s\n", fmt.Sprintf(format, args...))
}

// check writes a claim, whether it holds, and what was looked at.
func (b *board) check(ok bool, claim, looked string, args ...any) {
	b.checks++
	mark := b.paint(green, "✓")
	if !ok {
		mark = b.paint(red, "✗")
		b.failed = append(b.failed, claim)
	}
	fmt.Fprintf(b.out, "  %s %s\n", mark, claim)
	fmt.Fprintf(b.out, "      %s\n", b.paint(dim, fmt.Sprintf(looked, args...)))
}

// result is the last word: an error when a check failed.
func (b *board) result() error {
	if len(b.failed) == 0 {
		fmt.Fprintf(b.out, "\n%s\n", b.paint(bold+green, fmt.Sprintf("All %d checks hold.", b.checks)))
		return nil
	}
	return &FailedError{Checks: b.checks, Failed: b.failed}
}

// FailedError says which checks failed.
type FailedError struct {
	Checks int
	Failed []string
}

// Error implements error.
func (e *FailedError) Error() string {
	return fmt.Sprintf("%d of %d checks failed:\n  ✗ %s", len(e.Failed), e.Checks, strings.Join(e.Failed, "\n  ✗ "))
}

// shorten cuts a text to n characters.
func shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}
