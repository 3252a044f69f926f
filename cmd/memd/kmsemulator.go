package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd/shred/kmsemu"
)

// kmsEmulatorCmd serves Cloud KMS's API from a file, for development and tests.
type kmsEmulatorCmd struct {
	Dir         string `required:"" help:"Folder of the key file and the tokens file. Not on the database's volume."`
	Listen      string `default:"127.0.0.1:8788" help:"Address to listen on."`
	AllowRemote bool   `help:"Accept an address beyond this machine: tokens and keys then cross the network in clear."`
}

func (c *kmsEmulatorCmd) Run(ctx context.Context, con *console) (err error) {
	noCoreDumps()
	s, err := kmsemu.Open(kmsemu.Config{Dir: c.Dir, AllowRemote: c.AllowRemote})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop(context.WithoutCancel(ctx))) }()
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Serve(l) })
	g.Go(func() error {
		<-ctx.Done()
		return s.Stop(context.WithoutCancel(ctx))
	})
	fmt.Fprintf(con.Stdout, "The KMS emulator answers as emulator:%s; its callers' tokens are in %s.\nIt protects nothing: it is for development and tests.\n",
		l.Addr(), filepath.Join(c.Dir, kmsemu.TokensFile))
	return g.Wait()
}
