package main

import (
	"context"
	"fmt"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// deleteCmd deletes one memory.
type deleteCmd struct {
	Memory string `arg:"" name:"memory-id" help:"Id of the memory."`
	scopeFlags
	Derived bool `help:"Delete what was derived from it too, in whatever scope it is."`
	outputFlags
	serverFlags
}

// Help is the longer text of --help.
func (deleteCmd) Help() string {
	return "Delete removes one row from the live store. Backups keep it until its user or its conversation is forgotten: that is what \"memd forget\" is for."
}

// Run deletes the memory and says what was derived from it.
func (c *deleteCmd) Run(ctx context.Context, con *console) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Memory.Delete(ctx, &memdv1.DeleteRequest{Scope: scope, MemoryId: c.Memory, DeleteDerived: c.Derived})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	t := newTable(con.Stdout, "MEMORY", "DERIVED DELETED", "DERIVED LEFT")
	t.row(c.Memory, fmt.Sprint(resp.GetDerivedDeleted()), fmt.Sprint(resp.GetDerivedRemaining()))
	return t.close()
}
