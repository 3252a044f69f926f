package compact

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory/sketches"
)

// Config says what a Runner works with. Pool, Maintain, Clock and Logger are
// required; a duration that is zero has its default.
type Config struct {
	// Pool is of the worker's role, and has the journal.
	Pool *pg.Pool
	// Maintain is of memd_maintain, and compacts.
	Maintain *Maintain
	Disk     Disk
	Clock    memd.Clock
	Logger   *slog.Logger
	Metrics  Metrics
	// LockTimeout is how long a rewrite queues for its lock, and others behind it,
	// each time: 1 s. LockPatience is how long it tries: 10 minutes.
	LockTimeout, LockPatience time.Duration
	// HorizonPatience is how long it waits for older transactions: 10 minutes.
	HorizonPatience time.Duration
	// Pause is how long it waits between two tries: 2 s.
	Pause time.Duration
	// ErasureInterval is the least time from one compaction that erasures asked for
	// to the next: 10 minutes, so that many erasures cost one vacuum.
	ErasureInterval time.Duration
}

// Metrics is told how compactions go. Nil functions are not called.
type Metrics struct {
	// Ended is called for each compaction, with the longest time that a table was
	// locked.
	Ended func(m Mode, f Failure, took, blocked time.Duration)
	// Progress is told what share of the bytes is done, from 0 to 1, while one runs.
	Progress func(m Mode, share float64)
}

// Bounds of a Runner.
const (
	// PollInterval is how often a Runner looks whether there is something to do.
	PollInterval = 2 * time.Second
	// WatchInterval is how often it looks, while it works, how far it is and whether
	// it is to pause.
	WatchInterval = 500 * time.Millisecond
	// MaxTries is how often a table is tried that breaks off, before it has failed.
	MaxTries = 5
	// moment is how long somebody has to keep a table locked to be waited for
	// without queueing.
	moment = 100 * time.Millisecond
)

// Runner carries out what is asked for, and what the schedule says.
type Runner struct{ c Config }

// NewRunner returns a Runner. It does nothing before Run.
func NewRunner(c Config) (*Runner, error) {
	if c.Pool == nil || c.Maintain == nil || c.Clock == nil || c.Logger == nil {
		return nil, errors.New("compact: Config needs Pool, Maintain, Clock and Logger")
	}
	for _, d := range []struct {
		field *time.Duration
		usual time.Duration
	}{
		{&c.LockTimeout, time.Second}, {&c.LockPatience, 10 * time.Minute}, {&c.HorizonPatience, 10 * time.Minute},
		{&c.Pause, 2 * time.Second}, {&c.ErasureInterval, 10 * time.Minute},
	} {
		if *d.field == 0 {
			*d.field = d.usual
		}
	}
	return &Runner{c: c}, nil
}

// Run works until ctx ends, and breaks off what it is at. Any number of runners may
// run; one of them works.
func (r *Runner) Run(ctx context.Context) {
	tick := time.NewTicker(PollInterval)
	defer tick.Stop()
	for {
		if _, err := r.Round(ctx); err != nil && ctx.Err() == nil {
			r.c.Logger.ErrorContext(ctx, "compaction broke off and will be taken up again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Round takes up one compaction, if one is due, and takes it as far as it goes. It
// returns its number, or 0 if there was nothing to do. An error says that it broke
// off; failures of single tables are in the journal.
func (r *Runner) Round(ctx context.Context) (no int64, err error) {
	conn, err := r.c.Maintain.pool.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	held, err := pg.TryLock(ctx, conn.Conn(), pg.LockCompact)
	if err != nil || !held {
		return 0, err
	}
	defer func() { err = errors.Join(err, pg.Unlock(ctx, conn.Conn(), pg.LockCompact)) }()
	c, err := r.next(ctx)
	if err != nil || c.No == 0 {
		return 0, err
	}
	return c.No, r.compact(ctx, conn, c)
}

// errPaused and errShut end what is under way; it is taken up again.
var (
	errPaused = errors.New("compaction is paused")
	errShut   = errors.New("the window has closed")
)

// compact takes a compaction through the tables that are not done.
func (r *Runner) compact(ctx context.Context, conn *pgxpool.Conn, c Compaction) (err error) {
	began := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	watching := make(chan struct{})
	defer func() { cancel(nil); <-watching }()
	pid := conn.Conn().PgConn().PID()
	go func() {
		defer close(watching)
		r.watch(ctx, c, pid, cancel)
	}()
	horizon, tables, err := r.begin(ctx, c)
	if err != nil {
		return r.brokeOff(ctx, err)
	}
	r.announce(ctx, c, tables)
	heldBack, err := r.awaitOlder(ctx, conn, horizon)
	if err != nil {
		return r.brokeOff(ctx, err)
	}
	// What somebody's words resembled is in no sealed column: it goes first.
	if kept, err := sketches.Drop(ctx, conn); err != nil || kept > 0 {
		return r.brokeOff(ctx, errors.Join(pg.Classify(err), keptSketches(kept)))
	}
	for _, t := range tables {
		if err := r.table(ctx, conn, c, t, heldBack); err != nil {
			return r.brokeOff(ctx, err)
		}
	}
	return r.end(ctx, c, time.Since(began))
}

// keptSketches is that sketches which are to go were being read.
func keptSketches(n int) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d tables of sketches are being read", n)
}

// brokeOff tells a pause, a window that closed and a stop from errors.
func (r *Runner) brokeOff(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errPaused) || errors.Is(cause, errShut):
		r.c.Logger.InfoContext(ctx, "compaction waits", "because", cause.Error())
		return nil
	case cause != nil:
		return cause
	}
	return err
}

// announce says before it begins how long each table will be locked.
func (r *Runner) announce(ctx context.Context, c Compaction, tables []Table) {
	var bytes int64
	var longest, all time.Duration
	for _, t := range tables {
		bytes += t.Bytes
		if c.Mode == Rewrite && t.Content {
			longest, all = max(longest, t.Estimate), all+t.Estimate
		}
	}
	r.c.Logger.InfoContext(ctx, "compaction begins", "compaction", c.No, "mode", c.Mode.String(), "cause", c.Cause.String(),
		"tables", len(tables), "bytes", bytes, "locks_longest_estimated", longest, "locks_in_all_estimated", all)
}

// awaitOlder waits until nobody may still see what was deleted before the horizon,
// for as long as the patience; heldBack says that it was not enough.
func (r *Runner) awaitOlder(ctx context.Context, db pg.DB, horizon string) (heldBack bool, err error) {
	for end := time.Now().Add(r.c.HorizonPatience); ; {
		n, err := older(ctx, db, horizon)
		if err != nil || n == 0 {
			return false, err
		}
		if time.Now().After(end) {
			return true, nil
		}
		if err := sleep(ctx, min(r.c.Pause, WatchInterval)); err != nil {
			return false, err
		}
	}
}

// table compacts one and notes how that went. An error breaks the compaction off.
func (r *Runner) table(ctx context.Context, conn *pgxpool.Conn, c Compaction, t Table, heldBack bool) error {
	tries, err := r.noteRunning(ctx, c, t)
	if err != nil || tries == 0 {
		return err // Somebody has done it.
	}
	var blocked time.Duration
	if heldBack && c.Mode == Rewrite && t.Content {
		err = &TableError{Table: t.Name, Failure: HeldBack} // It would lock everybody out for nothing.
	} else {
		blocked, err = r.clean(ctx, conn, c, t)
		if err == nil && heldBack {
			err = &TableError{Table: t.Name, Failure: HeldBack}
		}
	}
	failed := failureOf(err)
	gone := pg.SQLState(err) == undefinedTable
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.Join(err, r.noteWaiting(context.WithoutCancel(ctx), c, t))
	case err == nil || failed != nil || gone:
	case tries >= MaxTries:
		failed = &TableError{Table: t.Name, Failure: Refused, SQLState: pg.SQLState(err)}
	default:
		return err // The table is tried again when the compaction is.
	}
	if failed != nil {
		r.c.Logger.ErrorContext(ctx, "a table was not compacted", "compaction", c.No, "error", failed)
	}
	return r.noteTable(ctx, c, t, blocked, failed, gone)
}

const (
	undefinedTable = "42P01"
	lockTimeout    = "55P03"
	diskFull       = "53100"
)

// clean compacts a table, and returns for how long that locked it.
func (r *Runner) clean(ctx context.Context, conn *pgxpool.Conn, c Compaction, t Table) (blocked time.Duration, err error) {
	if c.Mode == Rewrite && t.Content {
		if blocked, err = r.rewrite(ctx, conn, t); err != nil {
			return blocked, err
		}
	}
	// After a rewrite too: it leaves no visibility map, and index-only reads want one.
	_, err = r.statement(ctx, conn, t, vacuumOf(t.Name))
	return blocked, err
}

// rewrite makes a table's files anew.
func (r *Runner) rewrite(ctx context.Context, conn *pgxpool.Conn, t Table) (blocked time.Duration, err error) {
	if err := r.c.Disk.headroom(ctx, conn, t); err != nil {
		return 0, err
	}
	before, err := fileOf(ctx, conn, t.OID)
	if err != nil {
		return 0, err
	}
	if blocked, err = r.statement(ctx, conn, t, rewriteOf(t.Name)); err != nil {
		return blocked, err
	}
	after, err := fileOf(ctx, conn, t.OID)
	if err == nil && after == before {
		err = &TableError{Table: t.Name, Failure: NotRewritten}
	}
	return blocked, err
}

// statement runs a VACUUM as soon as it gets its lock, and fails where it raised a
// notice: whatever it warns of, it has not done all of it.
func (r *Runner) statement(ctx context.Context, conn *pgxpool.Conn, t Table, sql string) (took time.Duration, err error) {
	if err := limitLocks(ctx, conn, r.c.LockTimeout); err != nil {
		return 0, err
	}
	for end := time.Now().Add(r.c.LockPatience); ; {
		kept := false
		if sql == rewriteOf(t.Name) { // A plain vacuum waits for no reader and no writer.
			if kept, err = occupied(ctx, conn, t.OID, moment); err != nil {
				return 0, err
			}
		}
		if !kept {
			began := time.Now()
			notices, err := r.c.Maintain.run(ctx, conn, sql)
			switch state := pg.SQLState(err); {
			case err == nil && len(notices) == 0:
				return time.Since(began), nil
			case err == nil:
				return 0, r.noticed(ctx, t, notices[0])
			case state == diskFull:
				return 0, &TableError{Table: t.Name, Failure: DiskFull, SQLState: state}
			case state != lockTimeout || ctx.Err() != nil:
				return 0, fmt.Errorf("compacting %s: %w", t.Name, err)
			}
		}
		if time.Now().After(end) {
			return 0, &TableError{Table: t.Name, Failure: Locked}
		}
		if err := sleep(ctx, r.c.Pause); err != nil {
			return 0, err
		}
	}
}

// noticed says why a VACUUM raised a notice. What it says itself is in the server's
// language, so the catalogue is asked.
func (r *Runner) noticed(ctx context.Context, t Table, state string) error {
	failed := &TableError{Table: t.Name, Failure: Notice, SQLState: state}
	var now []Table
	err := r.c.Pool.With(ctx, func(db pg.DB) (err error) {
		now, err = Tables(ctx, db)
		return err
	})
	if err != nil {
		return err
	}
	for _, n := range now {
		if n.OID == t.OID && !n.Permitted {
			failed.Failure = NoRight
		}
	}
	return failed
}
