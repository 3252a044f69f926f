package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// console is what a command has of the world around it: results go to Stdout,
// and whatever is said about them to Stderr.
type console struct {
	Getenv         func(string) string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// isTerminal reports whether a person is at the other end of a stream.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// width returns the columns of the terminal that Stdout is, or 0 when it is
// none, where nothing has to fit.
func (c *console) width() int {
	f, ok := c.Stdout.(*os.File)
	if !ok {
		return 0
	}
	if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
		return w
	}
	return 0
}

// notef says something to the person, not to the program that reads Stdout.
func (c *console) notef(format string, args ...any) {
	fmt.Fprintf(c.Stderr, format+"\n", args...)
}

// confirm asks a question that only a typed "yes" answers. Without a terminal
// nobody can be asked, and the command must say --yes: doing it anyway would
// make a script's typing mistake final.
func (c *console) confirm(ctx context.Context, question string) error {
	if !isTerminal(c.Stdin) {
		return usagef("this cannot be undone, and there is no terminal to ask on: say --yes")
	}
	fmt.Fprintf(c.Stderr, "%s\nType yes to go on: ", question)
	answer := make(chan string, 1)
	go func() {
		// It ends with the process when the context ends first.
		line, _ := bufio.NewReader(c.Stdin).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case line := <-answer:
		if line != "yes" {
			return errNotConfirmed
		}
		return nil
	}
}
