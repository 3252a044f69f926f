package main

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/node"
)

// workerCmd carries out erasures, sets up tenants and sweeps. It has two
// identities at the key service: its own, which wraps and unwraps, and the
// shredder's, which destroys and does nothing else.
type workerCmd struct {
	processFlags
	witnessFlags
	ledgerFlags
	compactionFlags
	Purges              int    `default:"1" help:"Purges of whole tenants that run at once, 1 to 16. Each deletes as fast as the database bears; erasures of users do not wait behind them."`
	ShredderKMS         string `name:"shredder-kms" env:"MEMD_SHREDDER_KMS" help:"Key service of the shredder. Default: that of --kms."`
	ShredderToken       string `name:"shredder-kms-token" env:"MEMD_SHREDDER_KMS_TOKEN" help:"The shredder's token at the KMS emulator."`
	ShredderCredentials string `name:"shredder-kms-credentials" env:"MEMD_SHREDDER_KMS_CREDENTIALS" help:"The shredder's credentials file for Cloud KMS."`
	ShredderImpersonate string `name:"shredder-kms-impersonate" env:"MEMD_SHREDDER_KMS_IMPERSONATE" help:"Service account that the shredder acts as."`
}

func (c *workerCmd) Run(ctx context.Context, con *console) (err error) {
	if err := c.checkLedgers(); err != nil {
		return err
	}
	if c.Purges < 1 || c.Purges > erasure.MaxPurges {
		return usagef("--purges must be 1 to %d", erasure.MaxPurges)
	}
	witness, err := c.witness()
	if err != nil {
		return err
	}
	common, flush, err := c.common(ctx, con)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, flush(context.WithoutCancel(ctx))) }()
	common.Ledgers = c.Ledger
	w, err := node.OpenWorker(ctx, node.WorkerConfig{
		Common: common, Witness: witness, Purges: c.Purges, Compaction: c.compaction(),
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
