package erasure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

// Bounds of a Worker's rounds.
const (
	// PollInterval is how often a worker looks for work that nobody announced.
	PollInterval = 2 * time.Second
	// SweepInterval is how often expired rows are deleted.
	SweepInterval = 30 * time.Second
	// SweepBatch is how many expired rows one statement deletes.
	SweepBatch = 1000
	// Concurrency is how many erasures run at once. Those of one tenant share
	// their rotations.
	Concurrency = 4
	// DefaultPurges is how many purges of whole tenants a worker runs at once unless
	// it is told otherwise, and MaxPurges how many it may be told. Each takes a third
	// of a connection, and what it deletes everybody's disk has to bear.
	DefaultPurges, MaxPurges = 1, 16
	// MaxBackoff bounds the wait before a failed erasure is tried again.
	MaxBackoff = time.Minute

	// heldPause is how long a request waits before it looks again whether the
	// other request for its user is done.
	heldPause = 50 * time.Millisecond
	// busyPause is how long a request waits at first, and busyPauseMost at most, when
	// others of its tenant are calling purge targets.
	busyPause, busyPauseMost = 250 * time.Millisecond, 10 * time.Second
	// verifications is how many further looks of the verifier run at once, one of
	// each tenant.
	verifications = 2
	// fetchCooldown and fetchInterval say how soon a job is fetched: at once when
	// it is announced, and otherwise when its time has come.
	fetchCooldown = 10 * time.Millisecond
	fetchInterval = 200 * time.Millisecond
	// stopTimeout bounds how long jobs may take to break off.
	stopTimeout = 30 * time.Second
)

// WorkerConfig says what a Worker works with. All fields are required but
// Metrics, Purges and Parts.
type WorkerConfig struct {
	Pool    *pg.Pool
	Rotator *shred.Rotator
	// Provision sets up a new tenant's keys; it may be repeated.
	Provision func(ctx context.Context, t tenants.Tenant) error
	Clock     memd.Clock
	Logger    *slog.Logger
	Metrics   Metrics
	// Purges is how many purges of whole tenants run at once, up to MaxPurges; zero
	// is DefaultPurges. Erasures of users have slots of their own.
	Purges int
	Parts
}

// Metrics is told how the work goes. The zero value keeps nothing.
type Metrics struct {
	// Done is called for each erasure that ended, with the time since it was
	// accepted; Failed for each try that did not.
	Done   func(kind Kind, took time.Duration)
	Failed func(kind Kind)
	// Open is told, each round, what is not finished.
	Open func(Backlog)
	// Swept counts expired rows that were deleted.
	Swept func(rows int64)
}

// Worker carries out what the API accepted: erasures, new tenants, rotations
// that were left half-way, and the sweep of expired rows. Any number of workers
// may run; each piece of work is done by one at a time, and what one leaves
// behind when it dies another takes up.
type Worker struct {
	c      WorkerConfig
	runner *Runner
	slots  chan struct{}

	mu      sync.Mutex
	failing map[task]retry
	running map[task]bool
	// verifying are the tenants of which an erasure is verified again.
	verifying map[memd.TenantNo]bool
}

// task names what is to be done for a tenant beside erasures.
type task struct {
	what   string
	tenant memd.TenantNo
}

// What a task is.
const (
	taskProvision = "setting up a tenant"
	taskRotation  = "finishing a rotation"
)

type retry struct {
	tries int
	after time.Time
}

// NewWorker returns a Worker.
func NewWorker(c WorkerConfig) (*Worker, error) {
	if c.Pool == nil || c.Rotator == nil || c.Provision == nil || c.Clock == nil || c.Logger == nil {
		return nil, errors.New("erasure: WorkerConfig needs all its fields")
	}
	if c.Purges < 0 || c.Purges > MaxPurges {
		return nil, fmt.Errorf("erasure: WorkerConfig: Purges must be 1 to %d", MaxPurges)
	}
	c.Purges = cmp.Or(c.Purges, DefaultPurges)
	return &Worker{
		c:       c,
		runner:  &Runner{Pool: c.Pool, Rotator: c.Rotator, Clock: c.Clock, Logger: c.Logger, Parts: c.Parts},
		slots:   make(chan struct{}, Concurrency),
		failing: map[task]retry{},
		running: map[task]bool{},

		verifying: map[memd.TenantNo]bool{},
	}, nil
}

// Run works until ctx ends, and returns when nothing that it started is under
// way any more.
func (w *Worker) Run(ctx context.Context) error {
	queue, err := w.queue()
	if err != nil {
		return err
	}
	if err := queue.Start(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("starting the job queue: %w", err)
	}
	w.rounds(ctx)
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := queue.StopAndCancel(stopping); err != nil {
		return fmt.Errorf("stopping the job queue: %w", err)
	}
	return nil
}

// rounds does what is not in the queue, until ctx ends.
func (w *Worker) rounds(ctx context.Context) {
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
		err := pg.Listen(ctx, w.c.Pool, []string{"memd_work"}, nudge, func(_, _ string) { nudge() })
		if err != nil && ctx.Err() == nil {
			w.c.Logger.ErrorContext(ctx, "listening for work ended; polling goes on", "error", err)
		}
	})
	poll := time.NewTicker(PollInterval)
	defer poll.Stop()
	every := map[string]time.Time{}
	for {
		for _, p := range []struct {
			doing    string
			interval time.Duration
			do       func(context.Context) error
		}{
			{"looking for work", 0, func(ctx context.Context) error { return w.round(ctx, &group, nudge) }},
			{"looking for orphaned erasures", rescueAfter, w.rescue},
			{"looking for lost erasures", reconcileInterval, w.reconcile},
			{"sweeping expired rows", SweepInterval, w.sweep},
		} {
			if time.Since(every[p.doing]) < p.interval {
				continue
			}
			every[p.doing] = time.Now()
			if err := p.do(ctx); err != nil && ctx.Err() == nil {
				w.c.Logger.ErrorContext(ctx, p.doing, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		case <-wake:
		}
	}
}

// round starts whatever is to be done and not under way.
func (w *Worker) round(ctx context.Context, group *sync.WaitGroup, nudge func()) error {
	var creating []tenants.Tenant
	var unfinished, overdue []memd.TenantNo
	now := w.c.Clock.Now()
	err := w.c.Pool.With(ctx, func(db pg.DB) (err error) {
		if creating, err = tenants.Creating(ctx, db); err != nil {
			return err
		}
		if unfinished, err = shred.Unfinished(ctx, db); err != nil {
			return err
		}
		if unfinished, err = withoutErasures(ctx, db, unfinished); err != nil {
			return err
		}
		if overdue, err = shred.Overdue(ctx, db, now.Add(-RotateEvery)); err != nil || w.c.Metrics.Open == nil {
			return err
		}
		b, err := CountBacklog(ctx, db, now)
		if err == nil {
			w.c.Metrics.Open(b)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, t := range creating {
		w.start(ctx, group, task{taskProvision, t.No}, nudge, func() error { return w.provision(ctx, t) })
	}
	for _, t := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(unfinished, overdue)))) {
		w.start(ctx, group, task{taskRotation, t}, nudge, func() error {
			_, err := w.c.Rotator.Rotate(ctx, t)
			return err
		})
	}
	return nil
}

const sqlWithoutErasures = `
SELECT t FROM unnest(@tenants::bigint[]) AS t
WHERE NOT EXISTS (SELECT FROM memd.erasures e WHERE e.tenant_no = t AND e.state < 3)`

// withoutErasures leaves out tenants with an open erasure, which rotates itself.
func withoutErasures(ctx context.Context, db pg.DB, list []memd.TenantNo) ([]memd.TenantNo, error) {
	if len(list) == 0 {
		return nil, nil
	}
	rows, err := db.Query(ctx, sqlWithoutErasures, pg.Args{"tenants": list})
	if err != nil {
		return nil, fmt.Errorf("finding tenants without erasures: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[memd.TenantNo])
	if err != nil {
		return nil, fmt.Errorf("finding tenants without erasures: %w", err)
	}
	return out, nil
}

func (w *Worker) provision(ctx context.Context, t tenants.Tenant) error {
	if err := w.c.Provision(ctx, t); err != nil {
		return err
	}
	return w.c.Pool.With(ctx, func(db pg.DB) error { return tenants.Activate(ctx, db, w.c.Clock.Now(), t.No) })
}

// start runs a task in the background, unless it is under way here or its time
// to be tried again has not come. One that fails waits longer each time.
func (w *Worker) start(ctx context.Context, group *sync.WaitGroup, t task, nudge func(), run func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running[t] || time.Now().Before(w.failing[t].after) {
		return
	}
	select {
	case w.slots <- struct{}{}:
	default:
		return // as many as may are under way; their ends nudge
	}
	w.running[t] = true
	group.Go(func() {
		err := run()
		tries, wait := w.ended(t, err)
		if tries > 0 && ctx.Err() == nil {
			w.c.Logger.ErrorContext(ctx, t.what+" stopped and will be tried again", "tenant_no", t.tenant, "tries", tries, "error", err)
		}
		<-w.slots
		nudge()
		if wait > 0 {
			time.AfterFunc(wait, nudge)
		}
	})
}

// ended notes how a task went and returns how often it failed in a row, and
// after what time it may be tried again.
func (w *Worker) ended(t task, err error) (tries int, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, t)
	if err == nil {
		delete(w.failing, t)
		return 0, 0
	}
	f := w.failing[t]
	wait = backoff(f.tries + 1)
	w.failing[t] = retry{tries: f.tries + 1, after: time.Now().Add(wait)}
	return f.tries + 1, wait
}

// sweep deletes expired rows, batch after batch.
func (w *Worker) sweep(ctx context.Context) error {
	for {
		var n int64
		err := w.c.Pool.InTx(ctx, func(tx pgx.Tx) (err error) {
			n, err = memory.SweepExpired(ctx, tx, w.c.Clock.Now(), SweepBatch)
			return err
		})
		if err != nil {
			return err
		}
		if w.c.Metrics.Swept != nil {
			w.c.Metrics.Swept(n)
		}
		if n < SweepBatch {
			return nil
		}
	}
}
