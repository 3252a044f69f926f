package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// addCmd stores one memory.
type addCmd struct {
	Text string `arg:"" help:"What to remember; - reads it from standard input."`
	scopeFlags
	Session     string            `placeholder:"ID" help:"The conversation that the words are from."`
	Contributor string            `placeholder:"ID" help:"In the shared scope: the user whose words these are."`
	Impersonal  bool              `help:"In the shared scope: these are nobody's words, and no erasure of a user touches them."`
	Kind        string            `enum:"raw,fact,summary" default:"raw" help:"raw (what was said), fact or summary."`
	EventID     string            `placeholder:"ID" help:"Your own id of the event. Adding it again updates the memory instead of storing another."`
	SourceTime  time.Time         `placeholder:"TIME" help:"When the words were spoken (RFC 3339); now, if left out."`
	ExpiresAt   time.Time         `placeholder:"TIME" help:"From when on the memory is not returned (RFC 3339)."`
	Meta        map[string]string `placeholder:"KEY=VALUE" mapsep:"none" help:"A metadata entry. May be repeated."`
	Source      []string          `placeholder:"MEMORY-ID" help:"Of a fact or summary: a memory that it was drawn from. May be repeated."`
	outputFlags
	serverFlags
}

// Run stores the memory and prints its id.
func (c *addCmd) Run(ctx context.Context, con *console) error {
	row, err := c.row(con)
	if err != nil {
		return err
	}
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	t := newTable(con.Stdout, "MEMORY", "VERSION", "STATUS")
	for _, r := range resp.GetResults() {
		t.row(r.GetMemoryId(), fmt.Sprint(r.GetVersion()), addStatusName(r.GetStatus()))
	}
	return t.close()
}

func (c *addCmd) row(con *console) (*memdv1.Row, error) {
	scope, err := c.scope()
	if err != nil {
		return nil, err
	}
	text := c.Text
	if text == "-" {
		data, err := io.ReadAll(io.LimitReader(con.Stdin, memd.MaxTextBytes+1))
		if err != nil {
			return nil, fmt.Errorf("reading standard input: %w", err)
		}
		text = string(data)
	}
	switch {
	case strings.TrimSpace(text) == "":
		return nil, usagef("there is no text to remember")
	case len(text) > memd.MaxTextBytes:
		return nil, usagef("the text is longer than %d bytes", memd.MaxTextBytes)
	}
	row := &memdv1.Row{
		Scope:      scope,
		Kind:       kindOf(c.Kind),
		Text:       text,
		Metadata:   c.Meta,
		EventId:    c.EventID,
		SourceTime: timestamp(c.SourceTime),
		ExpiresAt:  timestamp(c.ExpiresAt),
		Impersonal: c.Impersonal,
	}
	switch {
	case !c.Shared && (c.Contributor != "" || c.Impersonal):
		return nil, usagef("--contributor and --impersonal belong to --shared")
	case c.Contributor != "":
		row.Contributor = &memdv1.Session{UserId: c.Contributor, SessionId: c.Session}
	case c.Shared && c.Session != "":
		return nil, usagef("--session needs the --contributor whose conversation it is")
	default:
		row.SessionId = c.Session
	}
	for _, id := range c.Source {
		row.Sources = append(row.Sources, &memdv1.Source{Source: &memdv1.Source_MemoryId{MemoryId: id}})
	}
	return row, nil
}

func addStatusName(s memdv1.AddStatus) string { return enumName(s, "ADD_STATUS_", true) }
