package main

import (
	"context"
	"fmt"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// searchCmd finds the memories that are nearest to a text.
type searchCmd struct {
	Query string `arg:"" help:"What to look for."`
	scopeFlags
	IncludeShared bool     `help:"Search the app's shared scope as well."`
	TopK          int32    `default:"10" help:"How many hits at most, 1 to 1000."`
	LexicalWeight float32  `placeholder:"WEIGHT" help:"How much words count beside the vector, 0 to 1: 0.5 is as much. Only in scopes whose vectors are in the server's memory."`
	MinScore      *float32 `placeholder:"COSINE" help:"Leave out hits below this cosine, -1 to 1."`
	filterFlags
	Full bool `help:"Do not cut texts to the width of the terminal."`
	outputFlags
	serverFlags
}

// Run prints the hits, best first.
func (c *searchCmd) Run(ctx context.Context, con *console) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	filter, err := c.filter()
	if err != nil {
		return err
	}
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Memory.Search(ctx, &memdv1.SearchRequest{
		Scope: scope, Text: c.Query, TopK: c.TopK, MinScore: c.MinScore,
		Filter: filter, IncludeShared: c.IncludeShared, LexicalWeight: c.LexicalWeight,
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	switch {
	case resp.GetFenced():
		con.notef("The user is being erased: nothing is found, and nothing will be.")
		return nil
	case len(resp.GetHits()) == 0:
		con.notef("Nothing found.")
		return nil
	}
	if c.LexicalWeight > 0 && !resp.GetFused() {
		con.notef("The scope is too large for its words to be in memory: found by vectors alone.")
	}
	t := newTable(con.Stdout, "SCORE", "KIND", "SPOKEN", "MEMORY", "TEXT")
	fitMemories(t, con, c.Full)
	for _, h := range resp.GetHits() {
		m := h.GetMemory()
		t.row(fmt.Sprintf("%.3f", h.GetScore()), kindName(m.GetKind()), formatTime(m.GetSourceTime()), m.GetMemoryId(), memoryText(m))
	}
	return t.close()
}
