package export

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// How a Worker goes about it.
const (
	// PollInterval is how often it looks for what nobody announced.
	PollInterval = 2 * time.Second
	// OrphanInterval is how often it looks for objects that no row knows.
	OrphanInterval = 10 * time.Minute
	// Concurrency is how many archives are made at once.
	Concurrency = 2
	maxBackoff  = time.Minute
)

// Worker makes archives, deletes those whose time is over, and what crashes left.
// Any number may run: each archive is made by one at a time.
type Worker struct {
	WorkerConfig
	mu      sync.Mutex
	running map[uuid.UUID]bool
	after   map[uuid.UUID]time.Time
}

// NewWorker returns a Worker.
func NewWorker(c WorkerConfig) (*Worker, error) {
	if c.Pool == nil || c.Keys == nil || c.Clock == nil || c.Logger == nil {
		return nil, errors.New("export: WorkerConfig needs Pool, Keys, Clock and Logger")
	}
	if c.OnPart == nil {
		c.OnPart = func(int64, Counts) {}
	}
	if c.PartSubjects == 0 {
		c.PartSubjects = PartSubjects
	}
	return &Worker{WorkerConfig: c, running: map[uuid.UUID]bool{}, after: map[uuid.UUID]time.Time{}}, nil
}

// Run works until ctx ends, and returns when nothing that it began is under way.
func (w *Worker) Run(ctx context.Context) {
	wake := make(chan struct{}, 1)
	nudge := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		err := pg.Listen(ctx, w.Pool, []string{"memd_work"}, nudge, func(_, _ string) { nudge() })
		if err != nil && ctx.Err() == nil {
			w.Logger.ErrorContext(ctx, "listening for exports ended; polling goes on", "error", err)
		}
	})
	poll := time.NewTicker(PollInterval)
	defer poll.Stop()
	var orphans time.Time
	for {
		err := w.Round(ctx, &group, nudge)
		if err == nil && time.Since(orphans) >= OrphanInterval {
			orphans = time.Now()
			err = w.SweepOrphans(ctx)
		}
		if err != nil && ctx.Err() == nil {
			w.Logger.ErrorContext(ctx, "looking after exports", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		case <-wake:
		}
	}
}

const sqlExpired = `SELECT memd.end_export(tenant_no, export_id, 'expired', @now) FROM memd.exports WHERE state IN (1, 2) AND expires_at <= @now`

const sqlMaking = `SELECT tenant_no, export_id FROM memd.exports WHERE state = 1 ORDER BY requested_at`

// Round ends what has expired, deletes what is doomed, and begins in the
// background to make what is not under way.
func (w *Worker) Round(ctx context.Context, group *sync.WaitGroup, nudge func()) error {
	err := w.Pool.InTx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlExpired, pg.Args{"now": w.Clock.Now()})
		return err
	})
	if err != nil {
		return fmt.Errorf("ending exports: %w", err)
	}
	if _, err := w.Sweep(ctx, nil); err != nil {
		return err
	}
	if w.Store == nil {
		return nil
	}
	var making []Followed
	err = w.Pool.With(ctx, func(db pg.DB) error {
		rows, err := db.Query(ctx, sqlMaking)
		if err != nil {
			return err
		}
		var f Followed
		_, err = pgx.ForEachRow(rows, []any{&f.Tenant, &f.Export}, func() error { making = append(making, f); return nil })
		return err
	})
	if err != nil {
		return fmt.Errorf("looking for exports: %w", err)
	}
	for _, f := range making {
		w.begin(ctx, group, f, nudge)
	}
	return nil
}

func (w *Worker) begin(ctx context.Context, group *sync.WaitGroup, f Followed, nudge func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running[f.Export] || len(w.running) >= Concurrency || time.Now().Before(w.after[f.Export]) {
		return
	}
	w.running[f.Export] = true
	group.Go(func() {
		err := w.Make(ctx, f.Tenant, f.Export)
		var wait time.Duration
		switch {
		case errors.Is(err, errElsewhere):
			wait = PollInterval
		case err != nil && ctx.Err() == nil:
			wait = w.stopped(ctx, f, err)
		}
		w.mu.Lock()
		delete(w.running, f.Export)
		delete(w.after, f.Export)
		if wait > 0 {
			w.after[f.Export] = time.Now().Add(wait)
		}
		w.mu.Unlock()
		if wait == 0 {
			nudge()
		}
	})
}

const sqlStopped = `
UPDATE memd.exports SET tries = tries + 1, failure = @code WHERE tenant_no = @tenant AND export_id = @id AND state = 1 RETURNING tries`

// stopped notes that an archive could not be gone on with, and returns how long to
// wait.
func (w *Worker) stopped(ctx context.Context, f Followed, err error) time.Duration {
	tries := 1
	noted := w.Pool.InTx(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, sqlStopped, pg.Args{"tenant": f.Tenant, "id": f.Export, "code": failureCode(err)}).Scan(&tries)
	})
	w.Logger.WarnContext(ctx, "an export stopped and will be gone on with", "tenant_no", f.Tenant, "export_id", f.Export,
		"tries", tries, "error", errors.Join(err, noted))
	return min(maxBackoff, 100*time.Millisecond<<min(tries, 10))
}

// failureCode names a failure in a word that says nothing about anybody.
func failureCode(err error) string {
	for _, c := range []struct {
		err  error
		code string
	}{
		{memd.ErrExportsUnavailable, "store"}, {memd.ErrKeyUnavailable, "key_service"}, {memd.ErrDatabaseBusy, "database_busy"},
		{memd.ErrDatabaseUnavailable, "database"}, {memd.ErrShredded, "shredded"}, {memd.ErrStale, "stale"}, {memd.ErrInvalid, "recipients"},
	} {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return "internal"
}

// errElsewhere says that another worker makes the archive.
var errElsewhere = errors.New("another worker makes it")

// Make makes what is missing of an archive, under its lock, which dies with this
// process. One that is not being made is left alone. It can be broken off at any
// time, and called again.
func (w *Worker) Make(ctx context.Context, tenant memd.TenantNo, id uuid.UUID) error {
	return w.locked(ctx, id, func() error {
		if err := w.clear(ctx, id); err != nil {
			return err
		}
		m := &maker{WorkerConfig: w.WorkerConfig, e: Export{Tenant: tenant, ID: id}}
		err := m.Pool.With(ctx, func(db pg.DB) (err error) {
			m.e, err = Get(ctx, db, tenant, id)
			return err
		})
		if err != nil || m.e.State != StateMaking {
			return err
		}
		return m.run(ctx)
	})
}

func (w *Worker) locked(ctx context.Context, id uuid.UUID, fn func() error) error {
	conn, err := w.Pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	lock := pg.LockExport.ForID(id)
	held, err := pg.TryLock(ctx, conn.Conn(), lock)
	if err != nil {
		return err
	}
	if !held {
		return errElsewhere
	}
	defer func() { _ = pg.Unlock(ctx, conn.Conn(), lock) }()
	return fn()
}
