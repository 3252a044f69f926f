package erasure

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
	"forgettable.dev/memd/tombstones"
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
	// MaxBackoff bounds the wait before a failed erasure is tried again.
	MaxBackoff = time.Minute

	openBatch = 100
	// heldPause is how long a request waits before it looks again whether the
	// other request for its user is done.
	heldPause = 50 * time.Millisecond
)

// WorkerConfig says what a Worker works with. All fields are required but
// Metrics.
type WorkerConfig struct {
	Pool    *pg.Pool
	Rotator *shred.Rotator
	// Provision sets up a new tenant's keys; it may be repeated.
	Provision func(ctx context.Context, t tenants.Tenant) error
	Clock     memd.Clock
	Logger    *slog.Logger
	Metrics   Metrics
}

// Metrics is told how the work goes. The zero value keeps nothing.
type Metrics struct {
	// Done is called for each erasure that ended, with the time since it was
	// accepted; Failed for each try that did not.
	Done   func(kind Kind, took time.Duration)
	Failed func(kind Kind)
	// Open is told, each round, how many erasures are open and overdue.
	Open func(open, overdue int64)
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
}

// task names a piece of work: an erasure, or what is to be done for a tenant.
type task struct {
	what   string
	tenant memd.TenantNo
	id     uuid.UUID // of an erasure
}

// What a task is.
const (
	taskErasure   = "erasure"
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
	return &Worker{
		c:       c,
		runner:  &Runner{Pool: c.Pool, Rotator: c.Rotator, Clock: c.Clock, Logger: c.Logger},
		slots:   make(chan struct{}, Concurrency),
		failing: map[task]retry{},
		running: map[task]bool{},
	}, nil
}

// Run works until ctx ends, and returns when nothing that it started is under
// way any more.
func (w *Worker) Run(ctx context.Context) error {
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
	var swept time.Time
	for {
		if err := w.round(ctx, &group, nudge); err != nil && ctx.Err() == nil {
			w.c.Logger.ErrorContext(ctx, "looking for work", "error", err)
		}
		if now := time.Now(); now.Sub(swept) >= SweepInterval {
			swept = now
			if err := w.sweep(ctx); err != nil && ctx.Err() == nil {
				w.c.Logger.ErrorContext(ctx, "sweeping expired rows", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-poll.C:
		case <-wake:
		}
	}
}

// round starts whatever is to be done and not under way.
func (w *Worker) round(ctx context.Context, group *sync.WaitGroup, nudge func()) error {
	var creating []tenants.Tenant
	var open []Job
	var unfinished []memd.TenantNo
	busy := w.busy()
	err := w.c.Pool.With(ctx, func(db pg.DB) (err error) {
		if creating, err = tenants.Creating(ctx, db); err != nil {
			return err
		}
		if open, err = Open(ctx, db, busy, openBatch); err != nil {
			return err
		}
		if unfinished, err = shred.Unfinished(ctx, db); err != nil || w.c.Metrics.Open == nil {
			return err
		}
		n, overdue, err := CountOpen(ctx, db, w.c.Clock.Now())
		if err == nil {
			w.c.Metrics.Open(n, overdue)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, t := range creating {
		w.start(ctx, group, task{what: taskProvision, tenant: t.No}, nudge, func() error { return w.provision(ctx, t) }, w.failed)
	}
	waiting := map[memd.TenantNo]bool{}
	for _, j := range open {
		waiting[j.Tenant] = true
		w.start(ctx, group, task{what: taskErasure, tenant: j.Tenant, id: j.ID}, nudge,
			func() error { return w.exclusively(ctx, j) },
			func(ctx context.Context, t task, tries int, err error) { w.stopped(ctx, j, tries, err) })
	}
	for _, t := range unfinished {
		if waiting[t] {
			continue // its erasure rotates
		}
		w.start(ctx, group, task{what: taskRotation, tenant: t}, nudge, func() error {
			_, err := w.c.Rotator.Rotate(ctx, t)
			return err
		}, w.failed)
	}
	return nil
}

// busy returns the erasures that are under way here or whose time to be tried
// again has not come.
func (w *Worker) busy() []uuid.UUID {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []uuid.UUID
	now := time.Now()
	for t, f := range w.failing {
		switch {
		case now.Before(f.after):
			if t.what == taskErasure {
				ids = append(ids, t.id)
			}
		case now.Sub(f.after) > 2*MaxBackoff && !w.running[t]:
			delete(w.failing, t) // Somebody else has done it, or it would have been tried.
		}
	}
	for t := range w.running {
		if t.what == taskErasure {
			ids = append(ids, t.id)
		}
	}
	return ids
}

func (w *Worker) provision(ctx context.Context, t tenants.Tenant) error {
	if err := w.c.Provision(ctx, t); err != nil {
		return err
	}
	return w.c.Pool.With(ctx, func(db pg.DB) error { return tenants.Activate(ctx, db, w.c.Clock.Now(), t.No) })
}

// start runs a task in the background, unless it is under way here or its time
// to be tried again has not come. One that fails waits longer each time.
func (w *Worker) start(ctx context.Context, group *sync.WaitGroup, t task, nudge func(), run func() error,
	failed func(ctx context.Context, t task, tries int, err error),
) {
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
			failed(ctx, t, tries, err)
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
	switch {
	case err == nil:
		delete(w.failing, t)
		return 0, 0
	case errors.Is(err, errElsewhere):
		wait = PollInterval
		w.failing[t] = retry{after: time.Now().Add(wait)}
		return 0, wait
	case errors.Is(err, tombstones.ErrHeld):
		// Two requests for one user take turns; that is no failure.
		wait = heldPause
		w.failing[t] = retry{after: time.Now().Add(wait)}
		return 0, wait
	}
	f := w.failing[t]
	wait = min(MaxBackoff, 100*time.Millisecond<<min(f.tries, 10))
	wait = wait/2 + rand.N(wait/2+1)
	w.failing[t] = retry{tries: f.tries + 1, after: time.Now().Add(wait)}
	return f.tries + 1, wait
}

// failed reports a task that has no metric of its own.
func (w *Worker) failed(ctx context.Context, t task, tries int, err error) {
	w.c.Logger.ErrorContext(ctx, t.what+" stopped and will be tried again", "tenant_no", t.tenant, "tries", tries, "error", err)
}

// stopped reports an erasure that could not be done.
func (w *Worker) stopped(ctx context.Context, j Job, tries int, err error) {
	if w.c.Metrics.Failed != nil {
		w.c.Metrics.Failed(j.Kind)
	}
	w.c.Logger.WarnContext(ctx, "erasure stopped and will be tried again", "tenant_no", j.Tenant,
		"request_id", j.ID, "user", j.User, "kind", j.Kind.String(), "tries", tries, "error", err)
}

// exclusively runs an erasure under its lock, which dies with this process. It
// leaves an erasure alone that another worker has, or has done.
func (w *Worker) exclusively(ctx context.Context, j Job) error {
	conn, err := w.c.Pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	id := pg.LockID(pg.LockErasure).ForID(j.ID)
	held, err := pg.TryLock(ctx, conn.Conn(), id)
	if err != nil {
		return err
	}
	if !held {
		return errElsewhere
	}
	defer func() { _ = pg.Unlock(ctx, conn.Conn(), id) }()
	// It was listed before it was locked.
	if now, err := Read(ctx, conn, j.Tenant, j.ID); err != nil || now.State == StateDone {
		return err
	}
	if err := w.runner.Run(ctx, j); err != nil {
		return err
	}
	if w.c.Metrics.Done != nil {
		w.c.Metrics.Done(j.Kind, w.c.Clock.Now().Sub(j.AcceptedAt))
	}
	return nil
}

// errElsewhere says that another worker runs the erasure.
var errElsewhere = errors.New("another worker runs it")

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
