package main

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd/internal/node"
)

// workerCmd carries out erasures, sets up tenants and sweeps. It has two
// identities at the key service: its own, which wraps and unwraps, and the
// shredder's, which destroys and does nothing else.
type workerCmd struct {
	processFlags
	ShredderKMS         string   `name:"shredder-kms" env:"MEMD_SHREDDER_KMS" help:"Key service of the shredder. Default: that of --kms."`
	ShredderToken       string   `name:"shredder-kms-token" env:"MEMD_SHREDDER_KMS_TOKEN" help:"The shredder's token at the KMS emulator."`
	ShredderCredentials string   `name:"shredder-kms-credentials" env:"MEMD_SHREDDER_KMS_CREDENTIALS" help:"The shredder's credentials file for Cloud KMS."`
	ShredderImpersonate string   `name:"shredder-kms-impersonate" env:"MEMD_SHREDDER_KMS_IMPERSONATE" help:"Service account that the shredder acts as."`
	Ledger              []string `required:"" sep:"," help:"Where key trees are kept outside the database: folders, gs:// or s3:// URLs, separated by commas. Two, neither on the database's volume."`
	OneLedger           bool     `help:"Accept a single ledger: losing it and the database at once loses every key."`
}

func (c *workerCmd) Run(ctx context.Context, con *console) (err error) {
	if len(c.Ledger) < 2 && !c.OneLedger {
		return &usageError{"two ledgers are needed, on different volumes; --one-ledger accepts one"}
	}
	common, flush, err := c.common(ctx, con)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, flush(context.WithoutCancel(ctx))) }()
	w, err := node.OpenWorker(ctx, node.WorkerConfig{
		Common: common, Ledgers: c.Ledger,
		Shredder: node.KMS{
			URL: c.ShredderKMS, Token: c.ShredderToken, CredentialsFile: c.ShredderCredentials, Impersonate: c.ShredderImpersonate,
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close(ctx)) }()
	g, ctx := errgroup.WithContext(ctx)
	if err := c.metrics(ctx, g, common); err != nil {
		return err
	}
	common.Logger.InfoContext(ctx, "working")
	g.Go(func() error { return w.Run(ctx) })
	return g.Wait()
}
