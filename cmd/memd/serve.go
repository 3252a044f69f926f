package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd/internal/node"
)

// serveCmd answers the API: a replica without state, of which any number run.
// It can neither destroy a key nor write a key tree.
type serveCmd struct {
	processFlags
	embeddingFlags
	ledgerFlags
	Listen             string `default:"127.0.0.1:8787" help:"Address of the API. Put TLS in front of anything but this machine."`
	ResidentBytes      int64  `default:"536870912" help:"Memory for the vectors of scopes that are searched, in bytes. With garbage, a process takes at most twice that and 256 MiB, unless GOGC or GOMEMLIMIT are set."`
	CodedRows          int    `default:"2000000" help:"Rows of the largest scope that is searched by codes in memory, some 110 bytes a row with 384 components. Larger ones are not kept in memory."`
	MaxArtifactBytes   int64  `default:"1073741824" help:"Size of the largest version of an artifact, in bytes."`
	MaxArtifactStreams int    `default:"64" help:"How many artifacts are saved and loaded at once; more are told RESOURCE_EXHAUSTED. Each takes up to 20 MB."`
	ServeMetrics       bool   `help:"Also serve /metrics on the API's address, without an API key."`
}

func (c *serveCmd) Run(ctx context.Context, con *console) (err error) {
	if err := c.checkLedgers(); err != nil {
		return err
	}
	embedding, err := c.config(con.Getenv)
	if err != nil {
		return err
	}
	tuneGarbage(con.Getenv, c.ResidentBytes)
	common, flush, err := c.common(ctx, con)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, flush(context.WithoutCancel(ctx))) }()
	common.Ledgers = c.Ledger
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	s, err := node.OpenServer(ctx, node.ServerConfig{
		Common: common, Embed: embedding, ServeMetrics: c.ServeMetrics, MaxResidentBytes: c.ResidentBytes, MaxCodedRows: c.CodedRows,
		MaxArtifactBytes: c.MaxArtifactBytes, MaxArtifactStreams: c.MaxArtifactStreams,
	})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	g, ctx := errgroup.WithContext(ctx)
	if err := c.metrics(ctx, g, common); err != nil {
		return errors.Join(err, l.Close())
	}
	common.Logger.InfoContext(ctx, "serving", "address", l.Addr().String())
	g.Go(func() error { return s.Run(ctx, l) })
	return g.Wait()
}
