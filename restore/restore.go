package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/journal"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/ledger"
)

const (
	// DefaultSample is how many rows of a tenant must open.
	DefaultSample = 10000
	// concurrency is how many erasures are carried out at once.
	concurrency = 8
)

// Config says what a restore works with.
type Config struct {
	// Pool reaches the database as its owner, not behind a gate. Required.
	Pool *pg.Pool
	// Ledgers are all the places outside the database, in the order that the
	// other processes have. At least one.
	Ledgers []ledger.Ledger
	// KMS is the worker's identity, which opens key trees. Required.
	KMS shred.KMS
	// Clock and Logger are required.
	Clock  memd.Clock
	Logger *slog.Logger
	// Sample is how many rows of each tenant must open; zero means DefaultSample.
	Sample int
}

func (c *Config) validate() error {
	switch {
	case c.Pool == nil || c.KMS == nil || c.Clock == nil || c.Logger == nil:
		return errors.New("restore: Config needs Pool, KMS, Clock and Logger")
	case len(c.Ledgers) == 0:
		return errors.New("restore: Config.Ledgers is empty")
	}
	if c.Sample == 0 {
		c.Sample = DefaultSample
	}
	return nil
}

// Report says what a restore did.
type Report struct {
	// Missing is false when the database had everything: then nothing was done.
	Missing bool
	// From and To are the records of the journal before and after.
	From, To int64
	// Facts counts the facts that were brought back, by kind.
	Facts map[journal.Kind]int
	// Fell counts rows that fell to tombstones, Erasures those that were carried
	// out again.
	Fell     int64
	Erasures int
	// Receipts counts those that had been issued since.
	Receipts int
	// Tenants and Rows count what was opened to see that it opens.
	Tenants, Rows int
	// Generation is the one that numbers are given out in from now on.
	Generation int64
	Took       time.Duration
}

// UnreadableError lists what keeps the gate closed: rows that do not open and
// have no tombstone.
type UnreadableError struct {
	// Lost are tenants whose keys cannot be had.
	Lost []*shred.LostKeysError
	// Rows are ids of rows that do not open, by tenant, the first of each; Count
	// is how many there are in what was looked at.
	Rows  map[memd.TenantNo][]uuid.UUID
	Count int
}

// Error implements error.
func (e *UnreadableError) Error() string {
	text := "the gate stays closed"
	for _, l := range e.Lost {
		text += "; " + l.Error()
	}
	if e.Count > 0 {
		text += fmt.Sprintf("; %d rows do not open and have no tombstone", e.Count)
	}
	for t, ids := range e.Rows {
		text += fmt.Sprintf("; tenant %s, among them: %v", t, ids)
	}
	return text
}

// Unwrap makes it a memd.ErrCorrupt.
func (e *UnreadableError) Unwrap() error { return memd.ErrCorrupt }

// Run restores. It is safe to repeat, from wherever it stopped. It returns
// memd.ErrRolledBack when no restore can help, as when the ledgers are older
// than the database; nothing was changed then. *UnreadableError leaves the gate
// closed.
func Run(ctx context.Context, c Config) (Report, error) {
	began := time.Now()
	if err := c.validate(); err != nil {
		return Report{}, err
	}
	release, err := alone(ctx, c.Pool)
	if err != nil {
		return Report{}, err
	}
	defer release()
	j, err := journal.For(ctx, journal.Config{Pool: c.Pool, Ledgers: c.Ledgers, Logger: c.Logger})
	if err != nil {
		return Report{}, err
	}
	defer j.Close()
	r := &restorer{Config: c, journal: j, report: Report{Facts: map[journal.Kind]int{}}}
	err = r.run(ctx)
	r.report.Took = time.Since(began)
	return r.report, err
}

// Release lets rotations and the destruction of key versions go on after a
// restore. The pool is the owner's. False: nothing was waiting for it.
func Release(ctx context.Context, pool *pg.Pool) (bool, error) {
	return journal.ReleaseRestore(ctx, pool)
}

// RebuildLedger writes ledgers that were lost, all of them, anew from the
// database: see journal.Journal.Rebuild. The pool is the owner's. It returns how
// many facts it told.
func RebuildLedger(ctx context.Context, pool *pg.Pool, ledgers []ledger.Ledger, logger *slog.Logger) (int64, error) {
	j, err := journal.For(ctx, journal.Config{Pool: pool, Ledgers: ledgers, Logger: logger, Rebuilding: true})
	if err != nil {
		return 0, err
	}
	defer j.Close()
	return j.Rebuild(ctx, func(ctx context.Context, db pg.DB) error {
		if err := shred.PutTrees(ctx, db, ledgers); err != nil {
			return err
		}
		return receipts.Refill(ctx, db, ledger.Mirror(ledgers))
	})
}

// alone keeps every other restore of the database away.
func alone(ctx context.Context, pool *pg.Pool) (release func(), err error) {
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	held, err := pg.TryLock(ctx, conn.Conn(), pg.LockRestore)
	if err != nil || !held {
		conn.Release()
		if err == nil {
			err = errors.New("another restore of this database is under way")
		}
		return nil, err
	}
	return func() {
		_ = pg.Unlock(ctx, conn.Conn(), pg.LockRestore) // Closes the connection when it cannot.
		conn.Release()
	}, nil
}

// restorer is one run.
type restorer struct {
	Config
	journal *journal.Journal
	report  Report
}

func (r *restorer) run(ctx context.Context) error {
	standing, p, err := r.journal.Compare(ctx)
	if err != nil {
		return err
	}
	r.report.From, r.report.To = p.Seq, p.Seq
	switch standing {
	case journal.StandingEqual:
		return nil
	case journal.StandingBehind:
		if err := r.journal.BeginRestore(ctx); err != nil {
			return err
		}
	}
	r.report.Missing = true
	if p, err = r.replay(ctx, p); err != nil {
		return err
	}
	if err := r.Pool.With(ctx, func(db pg.DB) error { return shred.PendAgain(ctx, db) }); err != nil {
		return err
	}
	if err := r.erase(ctx); err != nil {
		return err
	}
	if r.report.Receipts, err = receipts.Recover(ctx, r.Pool, ledger.Mirror(r.Ledgers), p.Installation); err != nil {
		return err
	}
	if err := r.verify(ctx); err != nil {
		return err
	}
	r.report.Generation, err = r.journal.EndRestore(ctx, p)
	return err
}

// replay brings back every record that the database lacks.
func (r *restorer) replay(ctx context.Context, p journal.Position) (journal.Position, error) {
	for {
		record, err := journal.Next(ctx, r.Ledgers, p)
		if errors.Is(err, memd.ErrNotFound) {
			return p, nil
		}
		if err != nil {
			return p, err
		}
		next, fell, err := r.journal.Replay(ctx, p, record, func(tx pgx.Tx, fact json.RawMessage) error {
			return shred.MergeTree(ctx, tx, r.Ledgers, fact)
		})
		if err != nil {
			return p, err
		}
		p = next
		r.report.To, r.report.Fell = p.Seq, r.report.Fell+fell
		for _, f := range record.Facts {
			r.report.Facts[f.Kind]++
		}
	}
}

// erase carries out again what had been accepted: first what had been done, then
// the holds that were set since, then what was still open and no hold stops.
func (r *restorer) erase(ctx context.Context) error {
	runner := &erasure.Runner{Pool: r.Pool, Clock: r.Clock, Logger: r.Logger}
	if err := r.eraseAll(ctx, runner, true); err != nil {
		return err
	}
	if err := r.journal.RestoreHolds(ctx); err != nil {
		return err
	}
	return r.eraseAll(ctx, runner, false)
}

func (r *restorer) eraseAll(ctx context.Context, runner *erasure.Runner, done bool) error {
	all, err := r.journal.Replays(ctx)
	if err != nil {
		return err
	}
	// Two erasures of one user take turns, so each user's are done one by one.
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for _, list := range r.byUser(ctx, all, done) {
		group.Go(func() error {
			for _, a := range list {
				if err := r.again(ctx, runner, a); err != nil {
					return fmt.Errorf("carrying out erasure %s of tenant %s again: %w", a.Request, a.Tenant, err)
				}
				mu.Lock()
				r.report.Erasures++
				mu.Unlock()
			}
			return nil
		})
	}
	return group.Wait()
}

// byUser groups erasures by whom they are about.
func (r *restorer) byUser(ctx context.Context, all []journal.Again, done bool) [][]journal.Again {
	type who struct {
		tenant memd.TenantNo
		user   memd.Ref
	}
	index := map[who]int{}
	var lists [][]journal.Again
	for _, a := range all {
		if (erasure.State(a.Reached) >= erasure.StateDone) != done {
			continue
		}
		var job erasure.Job
		_ = r.Pool.With(ctx, func(db pg.DB) (err error) {
			job, err = erasure.Read(ctx, db, a.Tenant, a.Request)
			return err // One that cannot be read is met again where it is carried out.
		})
		w := who{a.Tenant, job.User}
		i, ok := index[w]
		if !ok {
			i = len(lists)
			index[w] = i
			lists = append(lists, nil)
		}
		lists[i] = append(lists[i], a)
	}
	return lists
}

// again carries one erasure out, up to where keys would be destroyed. The worker
// goes on from there after the release.
func (r *restorer) again(ctx context.Context, runner *erasure.Runner, a journal.Again) error {
	had, reached := erasure.State(a.Had), erasure.State(a.Reached)
	if had < erasure.StateDone {
		if err := r.journal.Reopen(ctx, a); err != nil {
			return err
		}
	}
	var job erasure.Job
	err := r.Pool.With(ctx, func(db pg.DB) (err error) {
		job, err = erasure.Read(ctx, db, a.Tenant, a.Request)
		return err
	})
	if err != nil {
		return err
	}
	if err := runner.Again(ctx, job, had, reached); err != nil {
		return err
	}
	return r.journal.Replayed(ctx, a)
}
