package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"forgettable.dev/memd"
)

// importCmd stores conversations from a file of JSON lines.
type importCmd struct {
	File string `arg:"" help:"The file; - reads standard input."`
	appFlag
	Batch       int  `default:"256" help:"Turns sent in one request, 1 to 256."`
	Concurrency int  `default:"8" help:"Requests under way at a time, 1 to 64."`
	KeepGoing   bool `help:"Import the good lines of a file that has bad ones."`
	outputFlags
	serverFlags
}

// Help is the longer text of --help.
func (importCmd) Help() string {
	return `Each line is one conversation:

    {"user": "u-1", "session": "s-1", "started_at": "2026-06-01T09:00:00Z",
     "turns": [{"author": "user", "text": "Hello."}]}

Other fields are ignored. Each turn becomes a raw memory of its user, spoken a second after the one before. Its event id is its position in the list, so importing a file again stores nothing twice. A file is checked as a whole before anything is sent.`
}

// maxConcurrency bounds the requests that are under way at a time.
const maxConcurrency = 64

// maxComplaints is how many bad lines are listed; the others are counted.
const maxComplaints = 20

// Run checks the file, sends it, and prints what became of the turns.
func (c *importCmd) Run(ctx context.Context, con *console) error {
	switch {
	case c.Batch < 1 || c.Batch > memd.MaxBatch:
		return usagef("--batch must be between 1 and %d", memd.MaxBatch)
	case c.Concurrency < 1 || c.Concurrency > maxConcurrency:
		return usagef("--concurrency must be between 1 and %d", maxConcurrency)
	}
	server, err := c.connect()
	if err != nil {
		return err
	}
	in, turns, err := c.open(con)
	if err != nil {
		return err
	}
	defer in.Close()

	start := time.Now()
	bar := newProgress(con, turns)
	sender := newSender(server.Memory, c, bar)
	bad := complaints{con: con, keepGoing: c.KeepGoing, quiet: turns >= 0} // the check has told already
	err = sender.run(ctx, func(send func(conversation) error) error {
		return readConversations(in, send, bad.add)
	})
	bar.close()
	result := sender.result(time.Since(start))
	result.BadLines = bad.count
	if !bad.quiet {
		bad.close()
	}
	for _, r := range sender.refusals() {
		con.notef("memd: %s", r)
	}
	if err != nil {
		if result.Stored() > 0 {
			err = &hintedError{err: err, hint: fmt.Sprintf("%s stored before that. Importing again stores nothing twice.", plural(result.Stored(), "turn was", "turns were"))}
		}
		return err
	}
	if err := result.print(con, c.JSON); err != nil {
		return err
	}
	switch {
	case result.Refused > 0:
		return fmt.Errorf("the server refused %s", plural(result.Refused, "turn", "turns"))
	case result.BadLines > 0:
		return fmt.Errorf("%s left out", plural(result.BadLines, "bad line was", "bad lines were"))
	}
	return nil
}

// open returns the file at its beginning and, for one that can be read twice,
// the number of turns in it; otherwise -1. A file with bad lines is refused
// before anything is sent, unless they may be left out.
func (c *importCmd) open(con *console) (io.ReadCloser, int64, error) {
	if c.File == "-" {
		return io.NopCloser(con.Stdin), -1, nil
	}
	f, err := os.Open(c.File)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		f.Close()
		return nil, 0, err
	case info.IsDir():
		f.Close()
		return nil, 0, usagef("%s is a directory", c.File)
	case !info.Mode().IsRegular():
		return f, -1, nil
	}
	turns, err := c.check(con, f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, turns, nil
}

// check counts the turns and lists the bad lines.
func (c *importCmd) check(con *console, f io.Reader) (int64, error) {
	var turns int64
	bad := complaints{con: con, keepGoing: true}
	err := readConversations(f, func(x conversation) error {
		turns += int64(len(x.Turns))
		return nil
	}, bad.add)
	bad.close()
	if err == nil && bad.count > 0 && !c.KeepGoing {
		err = &hintedError{
			err:  fmt.Errorf("%s in the file; nothing was imported", plural(bad.count, "bad line is", "bad lines are")),
			hint: "Correct the file, or import the good lines with --keep-going.",
		}
	}
	return turns, err
}

// complaints lists bad lines, and counts those beyond maxComplaints.
type complaints struct {
	con       *console
	keepGoing bool
	quiet     bool
	count     int64
}

func (c *complaints) add(e *lineError) error {
	c.count++
	if !c.keepGoing {
		return e
	}
	if !c.quiet && c.count <= maxComplaints {
		c.con.notef("memd: %v", e)
	}
	return nil
}

func (c *complaints) close() {
	if n := c.count - maxComplaints; n > 0 {
		c.con.notef("memd: and %s", plural(n, "more bad line", "more bad lines"))
	}
}

// importResult is what became of a file's turns.
type importResult struct {
	Conversations  int64   `json:"conversations"`
	Turns          int64   `json:"turns"`
	Created        int64   `json:"created"`
	Updated        int64   `json:"updated"`
	Unchanged      int64   `json:"unchanged"`
	Kept           int64   `json:"kept"`
	Deleted        int64   `json:"deleted"`
	Refused        int64   `json:"refused"`
	Skipped        int64   `json:"skipped"`
	BadLines       int64   `json:"bad_lines"`
	Seconds        float64 `json:"seconds"`
	TurnsPerSecond float64 `json:"turns_per_second"`
}

// Stored counts the turns that the server has now.
func (r *importResult) Stored() int64 { return r.Created + r.Updated + r.Unchanged + r.Kept }

func (r *importResult) print(con *console, asJSON bool) error {
	if asJSON {
		out := json.NewEncoder(con.Stdout)
		out.SetIndent("", "  ")
		return out.Encode(r)
	}
	_, err := fmt.Fprintf(con.Stdout, "imported %s of %s in %.1f s (%.0f turns/s)\n",
		plural(r.Turns, "turn", "turns"), plural(r.Conversations, "conversation", "conversations"), r.Seconds, r.TurnsPerSecond)
	t := newTable(con.Stdout)
	for _, x := range []struct {
		name  string
		count int64
		note  string
	}{
		{"created", r.Created, ""},
		{"updated", r.Updated, "stored before with other words"},
		{"unchanged", r.Unchanged, "stored before"},
		{"kept", r.Kept, "changed since by an update, which stays"},
		{"deleted", r.Deleted, "deleted before, which stays so"},
		{"refused", r.Refused, ""},
		{"skipped", r.Skipped, "without text"},
	} {
		if x.count > 0 || x.name == "created" {
			t.row(x.name, fmt.Sprint(x.count), x.note)
		}
	}
	return errors.Join(err, t.close())
}
