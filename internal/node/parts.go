package node

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd"
	"forgettable.dev/memd/canary"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/export"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/ledger"
)

// Witness says what a worker's verifier may look at beside the tables. The zero
// value looks at no raw pages and no logs.
type Witness struct {
	// PagesURL reaches the database as somebody who may read raw pages.
	PagesURL string
	// LogFiles are searched for the ids of whom an erasure is about.
	LogFiles []string
	// Budget bounds each search of the verifier; zero fields are its defaults.
	Budget canary.Budget
}

// parts makes what the worker's erasures reach and call beside memd's stores.
func (w *Worker) parts(ctx context.Context, c WorkerConfig, kms shred.KMS, installation uuid.UUID) (erasure.Parts, error) {
	var p erasure.Parts
	var err error
	if w.instance, err = shred.Register(ctx, shred.InstanceConfig{Pool: w.Pool, Kind: "worker", Logger: c.Logger}); err != nil {
		return p, fmt.Errorf("registering this worker: %w", err)
	}
	w.later(signOff(w.instance.Close))
	w.keyring, err = shred.NewKeyring(shred.KeyringConfig{
		Pool: w.Pool, KMS: kms, Instance: w.instance, Logger: c.Logger, Exists: tenantExists,
	})
	if err != nil {
		return p, err
	}
	w.closers = append(w.closers, func(context.Context) error { w.keyring.Close(); return nil })
	p.Keys = func(ctx context.Context, t memd.TenantNo) (*shred.Keys, error) { return w.keyring.Keys(ctx, t, 0) }

	pages, err := w.openPages(ctx, c)
	if err != nil {
		return p, err
	}
	p.Verifier, err = canary.New(canary.Config{
		Pool: w.Pool, Keys: w.keyring, KMS: kms, Ledgers: w.Ledgers, Pages: pages, LogFiles: c.Witness.LogFiles,
		Budget: c.Witness.Budget, Clock: c.Clock, Logger: c.Logger,
	})
	if err != nil {
		return p, err
	}
	caller, err := c.openPurge(w.keyring)
	if err != nil {
		return p, err
	}
	w.closers = append(w.closers, func(context.Context) error { caller.Close(); return nil })
	p.Targets = caller
	store, err := c.openExports(ctx, w.later)
	if err != nil {
		return p, err
	}
	w.exports, err = export.NewWorker(export.WorkerConfig{
		Pool: w.Pool, Keys: p.Keys, Store: store, Clock: c.Clock, Logger: c.Logger, OnPart: c.Metrics.exported,
	})
	if err != nil {
		return p, err
	}
	p.Exports = w.exports
	p.Receipts = &issuer{
		signing: receipts.SignerConfig{
			Pool: w.Pool, KMS: kms, Ledger: ledger.Mirror(w.Ledgers), Installation: installation, Clock: c.Clock,
		},
	}
	return p, nil
}

// openPages opens the way to raw pages, if there is one.
func (w *Worker) openPages(ctx context.Context, c WorkerConfig) (*pg.Pool, error) {
	if c.Witness.PagesURL == "" {
		return nil, nil
	}
	pages, err := pg.Open(ctx, pg.Config{URL: c.Witness.PagesURL, MaxConns: 2, ApplicationName: "memd residue"})
	if err != nil {
		return nil, fmt.Errorf("opening the database for raw pages: %w", err)
	}
	w.closers = append(w.closers, func(context.Context) error { pages.Close(); return nil })
	return pages, nil
}

// issuer opens the signer with the first receipt, because a worker starts, and
// sweeps, and waits, while the key service is away, and takes up a new key with the
// next one.
type issuer struct {
	signing receipts.SignerConfig

	mu     sync.Mutex
	signer *receipts.Signer
}

// Issue implements erasure.Receipts.
func (i *issuer) Issue(ctx context.Context, tenant memd.TenantNo, r receipts.Receipt) (receipts.Bundle, error) {
	signer, err := i.open(ctx)
	if err != nil {
		return receipts.Bundle{}, fmt.Errorf("opening the signing key of receipts: %w", err)
	}
	opened := &receipts.Issuer{Pool: i.signing.Pool, Signer: signer, Ledger: i.signing.Ledger, Clock: i.signing.Clock}
	return opened.Issue(ctx, tenant, r)
}

func (i *issuer) open(ctx context.Context) (_ *receipts.Signer, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.signer, err = receipts.Renew(ctx, i.signing, i.signer)
	return i.signer, err
}

// runAll runs the worker's parts until ctx ends, or one of them: without the one
// that drops its keys a worker would keep what an erasure destroys.
func (w *Worker) runAll(ctx context.Context) error {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, background := errgroup.WithContext(background)
	g.Go(func() error { return w.instance.Run(background) })
	g.Go(func() error { return w.keyring.Run(background) })
	working, end := context.WithCancel(ctx)
	defer end()
	exporting := make(chan struct{})
	go func() {
		defer close(exporting)
		w.exports.Run(working)
	}()
	context.AfterFunc(background, end)
	err := w.work.Run(working)
	end()
	<-exporting
	stop()
	return errors.Join(err, ignoreEnd(g.Wait()))
}
