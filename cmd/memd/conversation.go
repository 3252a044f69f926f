package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"forgettable.dev/memd"
)

// conversation is one line of an import file.
type conversation struct {
	Line      int // from 1
	User      string
	Session   string
	StartedAt time.Time
	Turns     []turn
	Skipped   int // turns without text
}

// turn is one thing that was said. Index is its position in the file's list,
// skipped ones counted, so that it stays the same whenever the file is read.
type turn struct {
	Index  int
	Author string
	Text   string
}

// lineError says which line of an import file is wrong, and how. It never
// repeats what is in the line.
type lineError struct {
	Line    int
	Problem string
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d %s", e.Line, e.Problem) }

// maxLineBytes bounds one line, which has to fit into memory.
const maxLineBytes = 64 << 20

// readConversations reads JSON lines and hands each conversation to good, and
// each line that is none to bad. It stops at the first error of either, and
// returns it. Empty lines are passed over.
func readConversations(r io.Reader, good func(conversation) error, bad func(*lineError) error) error {
	in := bufio.NewReaderSize(r, 1<<20)
	for line := 1; ; line++ {
		data, tooLong, err := readLine(in)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("reading line %d: %w", line, err)
		}
		if line == 1 {
			data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // a byte order mark
		}
		switch {
		case tooLong:
			if err := bad(&lineError{line, fmt.Sprintf("is longer than %d bytes", maxLineBytes)}); err != nil {
				return err
			}
		case len(bytes.TrimSpace(data)) > 0:
			c, problem := parseConversation(data)
			var then error
			if problem != "" {
				then = bad(&lineError{line, problem})
			} else {
				c.Line = line
				then = good(c)
			}
			if then != nil {
				return then
			}
		}
		if err != nil {
			return nil // the end of the file
		}
	}
}

// readLine returns the next line without its end. A line that is too long is
// passed over without being kept. At the end of the file the error is io.EOF,
// and the last line may have come with it.
func readLine(in *bufio.Reader) (data []byte, tooLong bool, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if len(data)+len(part) > maxLineBytes {
			data, tooLong = nil, true
		}
		if !tooLong {
			data = append(data, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimRight(data, "\r\n"), tooLong, err
		}
	}
}

// parseConversation reads one line. It returns what is wrong with it, worded to
// follow "line N".
func parseConversation(data []byte) (conversation, string) {
	var in struct {
		User      string `json:"user"`
		Session   string `json:"session"`
		StartedAt string `json:"started_at"`
		Turns     *[]struct {
			Author string `json:"author"`
			Text   string `json:"text"`
		} `json:"turns"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return conversation{}, jsonProblem(err)
	}
	started, err := time.Parse(time.RFC3339, in.StartedAt)
	switch {
	case in.User == "":
		return conversation{}, "has no user"
	case len(in.User) > memd.MaxIDBytes:
		return conversation{}, fmt.Sprintf("has a user longer than %d bytes", memd.MaxIDBytes)
	case in.Session == "":
		return conversation{}, "has no session"
	case len(in.Session) > memd.MaxIDBytes:
		return conversation{}, fmt.Sprintf("has a session longer than %d bytes", memd.MaxIDBytes)
	case in.StartedAt == "":
		return conversation{}, "has no started_at"
	case err != nil:
		return conversation{}, "has a started_at that is not an RFC 3339 time, such as 2026-06-01T09:00:00Z"
	case in.Turns == nil:
		return conversation{}, "has no turns"
	}
	c := conversation{User: in.User, Session: in.Session, StartedAt: started}
	for i, t := range *in.Turns {
		switch {
		case len(t.Text) > memd.MaxTextBytes:
			return conversation{}, fmt.Sprintf("has a text longer than %d bytes in turn %d", memd.MaxTextBytes, i)
		case len(t.Author) > memd.MaxIDBytes:
			return conversation{}, fmt.Sprintf("has an author longer than %d bytes in turn %d", memd.MaxIDBytes, i)
		case strings.TrimSpace(t.Text) == "":
			c.Skipped++
			continue
		}
		c.Turns = append(c.Turns, turn{Index: i, Author: t.Author, Text: t.Text})
	}
	return c, ""
}

// jsonProblem words an error of encoding/json, whose own text repeats values.
func jsonProblem(err error) string {
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	switch {
	case errors.As(err, &mismatch) && mismatch.Field == "":
		return "is not a JSON object"
	case errors.As(err, &mismatch):
		kind, _, _ := strings.Cut(mismatch.Value, " ") // "number 42" would repeat the 42
		return fmt.Sprintf("has a %s where %s should be of another type", kind, mismatch.Field)
	case errors.As(err, &syntax):
		return fmt.Sprintf("is not valid JSON (at byte %d)", syntax.Offset)
	}
	return "is not valid JSON"
}
