package shred

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// How often a lock that another process holds is tried.
const (
	lockPollMin = 2 * time.Millisecond
	lockPollMax = 50 * time.Millisecond

	rollbackTimeout = 5 * time.Second
)

// gates lets one rotation of a tenant through at a time. The others of this
// process wait here and not at the database's lock, where each would hold a
// connection that the one which goes on may need.
type gates struct {
	mu    sync.Mutex
	inUse map[memd.TenantNo]*gate
}

type gate struct {
	token chan struct{} // capacity 1: full while somebody is inside
	users int
}

func (g *gates) enter(ctx context.Context, tenant memd.TenantNo) (leave func(), err error) {
	g.mu.Lock()
	if g.inUse == nil {
		g.inUse = make(map[memd.TenantNo]*gate)
	}
	t, ok := g.inUse[tenant]
	if !ok {
		t = &gate{token: make(chan struct{}, 1)}
		g.inUse[tenant] = t
	}
	t.users++
	g.mu.Unlock()
	forget := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(g.inUse, tenant)
		}
	}
	select {
	case t.token <- struct{}{}:
		return func() { <-t.token; forget() }, nil
	case <-ctx.Done():
		forget()
		return nil, fmt.Errorf("waiting for another rotation of the tenant: %w", ctx.Err())
	}
}

// session is the one connection of a rotation: it holds the tenant's advisory
// lock and runs all of the rotation's statements. When it breaks, lock and
// rotation end together.
type session struct {
	conn  *pgxpool.Conn
	id    pg.LockID
	leave func()
}

var _ pg.DB = (*session)(nil)

// lock waits until no other rotation of the tenant runs, in any process.
func (r *Rotator) lock(ctx context.Context, tenant memd.TenantNo) (*session, error) {
	leave, err := r.gates.enter(ctx, tenant)
	if err != nil {
		return nil, err
	}
	id := r.lockPurpose.ForTenant(tenant)
	poll := lockPollMin
	for {
		conn, err := r.c.Pool.Conn(ctx)
		if err != nil {
			leave()
			return nil, fmt.Errorf("locking the tenant's rotation: %w", err)
		}
		held, err := pg.TryLock(ctx, conn.Conn(), id)
		if err == nil && held {
			return &session{conn: conn, id: id, leave: leave}, nil
		}
		if err != nil {
			// Whether the lock was taken is unknown, so the connection must go.
			_ = conn.Conn().Close(context.WithoutCancel(ctx))
		}
		conn.Release()
		if err == nil {
			err = pause(ctx, &poll, lockPollMax)
		}
		if err != nil {
			leave()
			return nil, fmt.Errorf("locking the tenant's rotation: %w", err)
		}
	}
}

// unlock gives the lock and the connection back.
func (s *session) unlock(ctx context.Context) error {
	defer s.leave()
	defer s.conn.Release()
	if s.conn.Conn().IsClosed() {
		return nil // The server gave up the lock when the connection ended.
	}
	return pg.Unlock(ctx, s.conn.Conn(), s.id)
}

// inTx runs f in a READ COMMITTED transaction of the session. A commit whose
// answer was lost may have happened.
func (s *session) inTx(ctx context.Context, f func(tx pgx.Tx) error) error {
	tx, err := s.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return pg.Classify(fmt.Errorf("beginning: %w", err))
	}
	if err := f(tx); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		undone := tx.Rollback(ctx)
		if undone == nil || errors.Is(undone, pgx.ErrTxClosed) || tx.Conn().IsClosed() {
			return pg.Classify(err)
		}
		return errors.Join(pg.Classify(err), pg.Classify(fmt.Errorf("rolling back: %w", undone)))
	}
	if err := tx.Commit(ctx); err != nil {
		return pg.Classify(fmt.Errorf("committing: %w", err))
	}
	return nil
}

// Exec implements pg.DB.
func (s *session) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return s.conn.Exec(ctx, sql, args...)
}

// Query implements pg.DB.
func (s *session) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return s.conn.Query(ctx, sql, args...)
}

// QueryRow implements pg.DB.
func (s *session) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return s.conn.QueryRow(ctx, sql, args...)
}

// SendBatch implements pg.DB.
func (s *session) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return s.conn.SendBatch(ctx, b)
}

// pause waits for *d, or until ctx ends, and doubles *d up to most.
func pause(ctx context.Context, d *time.Duration, most time.Duration) error {
	timer := time.NewTimer(*d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		*d = min(2**d, most)
		return nil
	}
}
