package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// table writes rows of cells in columns. Close it, or nothing is written.
type table struct {
	out   io.Writer
	width int // of the terminal; 0 means that nothing has to fit
	rows  [][]string
}

// Space between two columns, and how much of the last one is shown however
// narrow the terminal is.
const (
	columnGap = 2
	leastText = 20
)

func newTable(w io.Writer, header ...string) *table {
	t := &table{out: w}
	if len(header) > 0 {
		t.row(header...)
	}
	return t
}

// fit makes the table cut its last column to what the others leave of a
// terminal that is width columns wide.
func (t *table) fit(width int) { t.width = width }

func (t *table) row(cells ...string) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = oneLine(c)
	}
	t.rows = append(t.rows, row)
}

func (t *table) close() error {
	limit := t.lastColumn()
	out := tabwriter.NewWriter(t.out, 0, 0, columnGap, ' ', 0)
	for _, row := range t.rows {
		if last := len(row) - 1; limit > 0 && last > 0 {
			row[last] = shorten(row[last], limit)
		}
		fmt.Fprintln(out, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	return out.Flush()
}

// lastColumn returns the space for the last column, or 0 for any.
func (t *table) lastColumn() int {
	if t.width == 0 || len(t.rows) == 0 {
		return 0
	}
	used := 0
	for column := range len(t.rows[0]) - 1 {
		widest := 0
		for _, row := range t.rows {
			if column < len(row)-1 {
				widest = max(widest, utf8.RuneCountInString(row[column]))
			}
		}
		used += widest + columnGap
	}
	return max(t.width-used, leastText)
}

// shorten cuts s to at most n characters and marks the cut.
func shorten(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	return string(runes[:max(n-1, 0)]) + "…"
}
