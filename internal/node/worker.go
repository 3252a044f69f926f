package node

import (
	"context"
	"errors"
	"sync"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/compact"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/export"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/journal"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/ledger"
	"forgettable.dev/memd/tenants"
)

// WorkerConfig says how a worker runs.
type WorkerConfig struct {
	Common
	// Shredder is the KMS identity that destroys. Its URL is that of KMS if
	// empty. Required otherwise.
	Shredder   KMS
	Witness    Witness
	Compaction Compaction
	// Purges is how many purges of whole tenants run at once; zero is
	// erasure.DefaultPurges.
	Purges int
}

// Worker carries out what the API accepts.
type Worker struct {
	Pool    *pg.Pool
	Rotator *shred.Rotator
	Ledgers []ledger.Ledger

	journal  *journal.Journal
	work     *erasure.Worker
	instance *shred.Instance
	keyring  *shred.Keyring
	sweeper  *artifacts.Sweeper
	meter    *tenants.Meter
	exports  *export.Worker
	maintain *compact.Maintain // nil where nothing is compacted, as compact and sketcher
	compact  *compact.Runner
	sketcher *memory.Sketcher
	closers  []func(context.Context) error
}

// OpenWorker connects a worker. It does nothing before Run.
func OpenWorker(ctx context.Context, c WorkerConfig) (_ *Worker, err error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Shredder.URL == "" {
		c.Shredder.URL = c.KMS.URL
	}
	w := &Worker{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close(ctx))
		}
	}()
	if w.Ledgers, err = openLedgers(ctx, c.Ledgers, w.later); err != nil {
		return nil, err
	}
	if w.journal, err = c.openJournal(ctx, WorkerRole, w.Ledgers, w.later); err != nil {
		return nil, err
	}
	if w.Pool, err = c.openPool(ctx, WorkerRole, w.journal); err != nil {
		return nil, err
	}
	w.later(func(context.Context) error { w.Pool.Close(); return nil })
	worker, err := c.openKMS(ctx, c.KMS, "worker")
	if err != nil {
		return nil, err
	}
	w.later(func(context.Context) error { return worker.Close() })
	shredder, err := c.openKMS(ctx, c.Shredder, "shredder")
	if err != nil {
		return nil, err
	}
	w.later(func(context.Context) error { return shredder.Close() })
	w.Rotator, err = shred.NewRotator(shred.RotatorConfig{
		Pool: w.Pool, Worker: worker, Shredder: shredder, Ledgers: w.Ledgers, Clock: c.Clock, Logger: c.Logger,
		OnFinish: c.Metrics.rotated, Durable: w.journal.Flush, Allowed: w.journal.Released,
		Sample: func(ctx context.Context, _ memd.TenantNo, k *shred.Keys) error {
			return w.Pool.With(ctx, func(db pg.DB) error {
				if err := memory.Sample(ctx, db, k); err != nil {
					return err
				}
				if err := sessions.Sample(ctx, db, k); err != nil {
					return err
				}
				return artifacts.Sample(ctx, db, k)
			})
		},
	})
	if err != nil {
		return nil, err
	}
	var installation uuid.UUID
	err = w.Pool.With(ctx, func(db pg.DB) (err error) {
		installation, err = provenance.Installation(ctx, db)
		return err
	})
	if err != nil {
		return nil, err
	}
	w.sweeper = &artifacts.Sweeper{Pool: w.Pool, Clock: c.Clock, Logger: c.Logger}
	w.meter = &tenants.Meter{Pool: w.Pool, Clock: c.Clock, Logger: c.Logger}
	if err := w.openCompaction(ctx, c); err != nil {
		return nil, err
	}
	parts, err := w.parts(ctx, c, worker, installation)
	if err != nil {
		return nil, err
	}
	if err := w.openSketches(c); err != nil {
		return nil, err
	}
	parts.Compacts = w.compact != nil
	w.work, err = erasure.NewWorker(erasure.WorkerConfig{
		Pool: w.Pool, Rotator: w.Rotator, Clock: c.Clock, Logger: c.Logger, Metrics: c.Metrics.worker(), Purges: c.Purges, Parts: parts,
		Provision: func(ctx context.Context, t tenants.Tenant) error {
			return shred.Provision(ctx, shred.ProvisionConfig{
				Pool: w.Pool, KMS: worker, Ledgers: w.Ledgers, Installation: installation,
				DestroyDelay: t.Policy.DestroyDelay, Clock: c.Clock,
			}, t.No)
		},
	})
	return w, err
}

func (w *Worker) later(f func(context.Context) error) { w.closers = append(w.closers, f) }

// Run works until ctx ends and finishes the step that it is at. It returns
// journal.ErrRestored when the database was restored meanwhile.
func (w *Worker) Run(ctx context.Context) error {
	sweeping, stop := context.WithCancel(ctx)
	var background sync.WaitGroup
	background.Go(func() { w.sweeper.Run(sweeping) })
	background.Go(func() { w.meter.Run(sweeping) })
	if w.compact != nil {
		background.Go(func() { w.compact.Run(sweeping) })
		background.Go(func() { w.sketcher.Run(sweeping) })
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return ignoreEnd(w.journal.Run(ctx)) })
	g.Go(func() error { return w.runAll(ctx) })
	err := g.Wait()
	stop()
	background.Wait()
	return err
}

// Close releases what OpenWorker took. Run has ended before.
func (w *Worker) Close(ctx context.Context) error {
	err := closeAll(ctx, w.closers)
	w.closers = nil
	return err
}
