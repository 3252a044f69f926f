package main

import (
	"context"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// getCmd shows one memory.
type getCmd struct {
	Memory string `arg:"" name:"memory-id" help:"Id of the memory."`
	scopeFlags
	Vector bool `help:"With --json: return the vector too."`
	outputFlags
	serverFlags
}

// Run prints the memory.
func (c *getCmd) Run(ctx context.Context, con *console) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Memory.Get(ctx, &memdv1.GetRequest{Scope: scope, MemoryId: c.Memory, IncludeVector: c.Vector && c.JSON})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	return printMemory(con, resp.GetMemory())
}
