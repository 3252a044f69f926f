package main

import (
	"context"
	"fmt"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// listCmd lists memories, oldest row first.
type listCmd struct {
	scopeFlags
	Limit     int    `default:"100" help:"How many at most; 0 means all."`
	PageToken string `placeholder:"TOKEN" help:"Go on where a list with a limit ended."`
	filterFlags
	Full bool `help:"Do not cut texts to the width of the terminal."`
	outputFlags
	serverFlags
}

// Run fetches pages until the limit and prints them as they come, or as one
// answer in JSON.
func (c *listCmd) Run(ctx context.Context, con *console) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	filter, err := c.filter()
	if err != nil {
		return err
	}
	if c.Limit < 0 {
		return usagef("--limit must not be negative")
	}
	server, err := c.connect()
	if err != nil {
		return err
	}
	all := &memdv1.ListResponse{NextPageToken: c.PageToken}
	for first := true; first || all.NextPageToken != ""; first = false {
		size := memd.MaxPageSize
		if c.Limit > 0 {
			size = min(size, c.Limit-len(all.Memories))
		}
		if size == 0 {
			break
		}
		resp, err := server.Memory.List(ctx, &memdv1.ListRequest{
			Scope: scope, Filter: filter, PageSize: int32(size), PageToken: all.NextPageToken,
		})
		if err != nil {
			return err
		}
		all.Memories = append(all.Memories, resp.GetMemories()...)
		all.NextPageToken, all.Fenced = resp.GetNextPageToken(), resp.GetFenced()
	}
	if c.JSON {
		return writeMessage(con.Stdout, all)
	}
	switch {
	case all.Fenced:
		con.notef("The user is being erased: there is nothing.")
		return nil
	case len(all.Memories) == 0:
		con.notef("No memories.")
		return nil
	}
	t := newTable(con.Stdout, "MEMORY", "KIND", "SPOKEN", "VERSION", "TEXT")
	fitMemories(t, con, c.Full)
	for _, m := range all.Memories {
		t.row(m.GetMemoryId(), kindName(m.GetKind()), formatTime(m.GetSourceTime()), fmt.Sprint(m.GetVersion()), memoryText(m))
	}
	if err := t.close(); err != nil {
		return err
	}
	if all.NextPageToken != "" {
		con.notef("There are more: --limit=0 lists all, and --page-token=%s goes on from here.", all.NextPageToken)
	}
	return nil
}
