package shred

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/pg"
)

// Defaults of an InstanceConfig.
const (
	DefaultLease      = 15 * time.Second
	DefaultLeaseRenew = 5 * time.Second
)

// leaseMargin is the part of a lease that an instance does not use itself: it
// has dropped its keys before anybody else takes the lease for ended, even when
// its timer fires late or its clock runs slow.
const leaseMargin = 5 // a fifth

// leaseRetry is the time from a heartbeat that failed to the next. It is short
// because every call waits for it once the lease has ended, and costs one
// statement of a database that cannot do much else.
const leaseRetry = 250 * time.Millisecond

// InstanceConfig says how a process registers itself.
type InstanceConfig struct {
	// Pool reaches the database. Required.
	Pool *pg.Pool
	// Kind is what the process is: "serve", "worker", "dev". Required.
	Kind string
	// Lease is how long the process may go on using keys after its last
	// heartbeat, and so how long a rotation may have to wait for a process that
	// hangs. Zero means DefaultLease.
	Lease time.Duration
	// Renew is the time between heartbeats that succeed. Zero means
	// DefaultLeaseRenew.
	Renew time.Duration
	// Logger is told when the lease lapses and when it is back. Required.
	Logger *slog.Logger
}

func (c InstanceConfig) validate() error {
	switch {
	case c.Pool == nil:
		return errors.New("shred.InstanceConfig: Pool is not set")
	case c.Kind == "":
		return errors.New("shred.InstanceConfig: Kind is not set")
	case c.Lease < 0 || c.Renew < 0 || c.Renew >= c.Lease:
		return errors.New("shred.InstanceConfig: Renew is not shorter than Lease")
	case c.Logger == nil:
		return errors.New("shred.InstanceConfig: Logger is not set")
	}
	return nil
}

// Instance is this process in the list of those that may hold keys. A rotation
// is finished when every listed instance has dropped the old epoch or its lease
// has ended, so an instance must stop using keys when it could not renew the
// lease: then Lapsed is true and the functions given to OnLapse were called.
//
// The lease's end in the database is by the database's clock, the only one that
// all processes share. Locally it is by the monotonic clock, counted from
// before the heartbeat was sent, and by the wall clock too, because the
// monotonic one stands still while a machine sleeps.
type Instance struct {
	id     uuid.UUID
	c      InstanceConfig
	origin time.Time
	// until is the end of the lease, as time since origin; untilWall by the wall
	// clock, in Unix nanoseconds.
	until, untilWall atomic.Int64

	// writing is held while the instance's row is written, so that a heartbeat
	// cannot bring back what Close removed.
	writing sync.Mutex
	mu      sync.Mutex
	lapsed  bool // the functions were called and no heartbeat came since
	closed  bool
	onLapse []func()
}

// Register writes this process into the list and begins its lease. The caller
// runs Run, which renews it, and calls Close at the end.
func Register(ctx context.Context, c InstanceConfig) (*Instance, error) {
	if c.Lease == 0 {
		c.Lease = DefaultLease
	}
	if c.Renew == 0 {
		c.Renew = min(DefaultLeaseRenew, c.Lease/3)
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	i := &Instance{id: uuid.New(), c: c, origin: time.Now()}
	if err := i.enter(ctx); err != nil {
		return nil, err
	}
	return i, nil
}

// ID names the instance. It is new for each process.
func (i *Instance) ID() uuid.UUID { return i.id }

// Lapsed reports whether the lease has ended: no key may be used then.
func (i *Instance) Lapsed() bool {
	return i.remaining() <= 0
}

// OnLapse registers f to be called when the lease lapses and at Close. It must
// drop what the lease protects before it returns.
func (i *Instance) OnLapse(f func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.onLapse = append(i.onLapse, f)
}

// Run renews the lease until ctx ends, then returns nil. A heartbeat that does
// not get through is tried again soon, not only when the next is due; when the
// lease ends meanwhile the keys are dropped, and it begins anew with the next
// heartbeat that does.
func (i *Instance) Run(ctx context.Context) error {
	next := time.NewTimer(i.c.Renew)
	defer next.Stop()
	lapse := time.NewTimer(i.remaining())
	defer lapse.Stop()
	var warned time.Time // Zero unless the last heartbeat failed.
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-lapse.C:
			if left := i.remaining(); left > 0 {
				lapse.Reset(left)
				continue
			}
			i.expire()
		case <-next.C:
		}
		wait := i.c.Renew
		switch err := i.beat(ctx); {
		case err == nil:
			warned = time.Time{}
		case ctx.Err() == nil:
			wait = min(leaseRetry, i.c.Renew)
			// One line for each heartbeat that was due, not for each retry.
			if time.Since(warned) >= i.c.Renew {
				warned = time.Now()
				i.c.Logger.WarnContext(ctx, "heartbeat did not get through", "instance", i.id, "error", err)
			}
		}
		next.Reset(wait)
		if left := i.remaining(); left > 0 {
			lapse.Reset(left)
		} else {
			i.expire()
			lapse.Stop()
		}
	}
}

const sqlRenewLease = `
UPDATE memd.instances SET lease_until = clock_timestamp() + @lease::interval
WHERE instance_id = @id AND lease_until > clock_timestamp()`

// beat renews the lease, or begins a new one when it has ended by either
// clock. It gives up when the lease ends, so that Run can see to that.
func (i *Instance) beat(ctx context.Context) error {
	i.writing.Lock()
	defer i.writing.Unlock()
	if i.isClosed() {
		return nil
	}
	if i.Lapsed() {
		i.expire()
		ctx, cancel := context.WithTimeout(ctx, i.c.Renew)
		defer cancel()
		return i.enter(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, min(i.c.Renew, i.remaining()))
	defer cancel()
	sent := time.Now()
	var renewed bool
	err := i.c.Pool.With(ctx, func(db pg.DB) error {
		tag, err := db.Exec(ctx, sqlRenewLease, pg.Args{"id": i.id, "lease": i.c.Lease})
		renewed = tag.RowsAffected() == 1
		return err
	})
	if err != nil {
		return fmt.Errorf("renewing the lease: %w", err)
	}
	if !renewed {
		// The database saw the lease end, or somebody removed us: a rotation may
		// have counted us out.
		i.expire()
		return i.enter(ctx)
	}
	i.extend(sent)
	return nil
}

const (
	sqlDeleteInstance = `DELETE FROM memd.instances WHERE instance_id = @id`

	sqlDeleteDeadInstances = `DELETE FROM memd.instances WHERE lease_until < clock_timestamp() - interval '1 hour'`

	sqlInsertInstance = `
INSERT INTO memd.instances (instance_id, kind, started_at, lease_until)
VALUES (@id, @kind, clock_timestamp(), clock_timestamp() + @lease::interval)`
)

// enter begins a lease with no epochs reported: every key was dropped before.
func (i *Instance) enter(ctx context.Context) error {
	sent := time.Now()
	err := i.c.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlDeleteInstance, pg.Args{"id": i.id}); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlDeleteDeadInstances); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlInsertInstance, pg.Args{
			"id": i.id, "kind": i.c.Kind, "lease": i.c.Lease,
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("registering the instance: %w", err)
	}
	i.mu.Lock()
	back := i.lapsed
	i.lapsed = false
	i.mu.Unlock()
	i.extend(sent)
	if back {
		i.c.Logger.InfoContext(ctx, "lease is back", "instance", i.id)
	}
	return nil
}

// Close drops the keys, by calling what OnLapse was given, and takes the
// process out of the list, so that no rotation waits for it. Lapsed is true
// from then on. Safe to repeat.
func (i *Instance) Close(ctx context.Context) error {
	i.mu.Lock()
	i.closed = true
	i.mu.Unlock()
	i.expire()
	i.writing.Lock()
	defer i.writing.Unlock()
	err := i.c.Pool.With(ctx, func(db pg.DB) error {
		_, err := db.Exec(ctx, sqlDeleteInstance, pg.Args{"id": i.id})
		return err
	})
	if err != nil {
		return fmt.Errorf("removing the instance: %w", err)
	}
	return nil
}

// expire ends the lease and calls the functions, once for each lapse.
func (i *Instance) expire() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.until.Store(0)
	if i.lapsed {
		return
	}
	i.lapsed = true
	if !i.closed {
		i.c.Logger.Warn("lease has ended, dropping every key", "instance", i.id)
	}
	for _, f := range i.onLapse {
		f()
	}
}

func (i *Instance) isClosed() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.closed
}

func (i *Instance) extend(sent time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return
	}
	lease := i.c.Lease - i.c.Lease/leaseMargin
	i.untilWall.Store(sent.Add(lease).UnixNano())
	i.until.Store(int64(sent.Sub(i.origin) + lease))
}

func (i *Instance) remaining() time.Duration {
	monotonic := time.Duration(i.until.Load()) - time.Since(i.origin)
	wall := time.Duration(i.untilWall.Load() - time.Now().UnixNano())
	return min(monotonic, wall)
}
