package main

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd/internal/node"
)

// workerCmd carries out erasures, sets up tenants and sweeps. It has two
// identities at the key service: its own, which wraps and unwraps, and the
// shredder's, which destroys and does nothing else.
type workerCmd struct {
	processFlags
	witnessFlags
	ShredderKMS         string   `name:"shredder-kms" env:"MEMD_SHREDDER_KMS" help:"Key service of the shredder. Default: that of --kms."`
	ShredderToken       string   `name:"shredder-kms-token" env:"MEMD_SHREDDER_KMS_TOKEN" help:"The shredder's token at the KMS emulator."`
	ShredderCredentials string   `name:"shredder-kms-credentials" env:"MEMD_SHREDDER_KMS_CREDENTIALS" help:"The shredder's credentials file for Cloud KMS."`
	ShredderImpersonate string   `name:"shredder-kms-impersonate" env:"MEMD_SHREDDER_KMS_IMPERSONATE" help:"Service account that the shredder acts as."`
	Ledger              []string `required:"" sep:"," help:"Where key trees are kept outside the database: folders, gs:// or s3:// URLs, separated by commas. Two, neither on the database's volume."`
	OneLedger           bool     `help:"Accept a single ledger: losing it and the database at once loses every key."`
}

// checkLedgers refuses one ledger that was not asked for, also in the guise of
// two: the same place twice keeps one copy.
func (c *workerCmd) checkLedgers() error {
	if len(c.Ledger) < 2 && !c.OneLedger {
		return usagef("two ledgers are needed, on different volumes; --one-ledger accepts one")
	}
	seen := map[string]bool{}
	for _, l := range c.Ledger {
		place := ledgerPlace(l)
		if seen[place] {
			return usagef("--ledger names the same place twice; two copies are needed, on different volumes")
		}
		seen[place] = true
	}
	return nil
}

// ledgerPlace is the same for two spellings of one folder or bucket.
func ledgerPlace(l string) string {
	scheme, rest, found := strings.Cut(l, "://")
	if found && scheme != "file" {
		// Parameters such as a region say how to reach a bucket; a prefix says
		// which part of it is meant.
		u, err := url.Parse(l)
		if err != nil {
			return l
		}
		return scheme + "://" + u.Host + "/" + strings.Trim(u.Path, "/") + "?prefix=" + u.Query().Get("prefix")
	}
	if found {
		l = rest
	}
	abs, err := filepath.Abs(l)
	if err != nil {
		return l
	}
	// A folder that is not there yet is no link either.
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real
	}
	return abs
}

func (c *workerCmd) Run(ctx context.Context, con *console) (err error) {
	if err := c.checkLedgers(); err != nil {
		return err
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
	w, err := node.OpenWorker(ctx, node.WorkerConfig{
		Common: common, Ledgers: c.Ledger, Witness: witness,
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
