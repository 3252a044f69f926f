package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

// Principal is who makes a call, and the tenant that the call is about, as the
// database had both when the call was authenticated.
type Principal struct {
	Key   uuid.UUID
	Roles Roles
	// Tenant is Installation for keys that belong to no tenant; what follows is
	// then zero.
	Tenant     memd.TenantNo
	TenantName string
	State      tenants.State
	// Epoch is the tenant's newest key epoch: older keys must not be used for
	// this call. 0 before the tenant has keys.
	Epoch  int64
	Policy tenants.Policy
}

// FlushInterval is how often the times of last use are written, and so also how
// far last_used_at may be behind, at most twice.
const FlushInterval = time.Minute

// flushTimeout bounds one write of them, the one at shutdown included.
const flushTimeout = 5 * time.Second

// Config is what an Authenticator needs. All fields are required.
type Config struct {
	Pool   *pg.Pool
	Clock  memd.Clock
	Logger *slog.Logger
}

func (c Config) validate() error {
	switch {
	case c.Pool == nil:
		return errors.New("auth: Pool is not set")
	case c.Clock == nil:
		return errors.New("auth: Clock is not set")
	case c.Logger == nil:
		return errors.New("auth: Logger is not set")
	}
	return nil
}

// Authenticator knows callers by their keys. It is safe for concurrent use.
type Authenticator struct {
	config  Config
	recalls *recollections

	mu   sync.Mutex
	used map[uuid.UUID]time.Time // since the last flush
}

// New returns an Authenticator. Without Run it works, and last_used_at stays
// where it is.
func New(c Config) (*Authenticator, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Authenticator{config: c, recalls: newRecollections(), used: map[uuid.UUID]time.Time{}}, nil
}

const sqlAuthenticate = `
SELECT key_id, coalesce(tenant_no, 0), roles, revoked, coalesce(tenant_name, ''), coalesce(tenant_state, 0), coalesce(epoch, 0), policy, revision
FROM memd.authenticate(@secret_hash)`

// Authenticate returns who holds the secret, in one round trip. A key that is
// malformed, unknown or revoked is ErrUnauthenticated, and the three cannot be
// told apart.
func (a *Authenticator) Authenticate(ctx context.Context, secret string) (Principal, error) {
	hash, err := hashSecret(secret)
	if err != nil {
		return Principal{}, err
	}
	var p Principal
	var roles int16
	var revoked bool
	var policy *tenants.Policy
	var revision []*uint32
	err = a.config.Pool.With(ctx, func(db pg.DB) error {
		return db.QueryRow(ctx, sqlAuthenticate, pg.Args{"secret_hash": hash}).
			Scan(&p.Key, &p.Tenant, &roles, &revoked, &p.TenantName, &p.State, &p.Epoch, &policy, &revision)
	})
	if errors.Is(err, pgx.ErrNoRows) || err == nil && revoked {
		return Principal{}, memd.ErrUnauthenticated
	}
	if err != nil {
		return Principal{}, fmt.Errorf("authenticating: %w", err)
	}
	p.Roles = Roles(roles)
	if policy != nil {
		p.Policy = *policy
	}
	a.mark(p.Key)
	a.remember(hash, p, revision)
	return p, nil
}

func (a *Authenticator) mark(key uuid.UUID) {
	now := a.config.Clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used[key] = now
}

// Run writes the times of last use until ctx ends, and once more then. It
// returns nil; a write that fails is logged and made up for by the next.
func (a *Authenticator) Run(ctx context.Context) error {
	tick := time.NewTicker(FlushInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.flushOrLog(ctx)
		case <-ctx.Done():
			a.flushOrLog(context.WithoutCancel(ctx))
			return nil
		}
	}
}

func (a *Authenticator) flushOrLog(ctx context.Context) {
	if err := a.Flush(ctx); err != nil {
		a.config.Logger.LogAttrs(ctx, slog.LevelWarn, "times of last use were not written", slog.Any("error", err))
	}
}

// greatest, because replicas flush in any order; locked in one order, because
// they flush at the same time.
const sqlTouchKeys = `
UPDATE memd.principals p SET last_used_at = greatest(p.last_used_at, u.used_at)
FROM (SELECT l.key_id, t.used_at
      FROM memd.principals l JOIN unnest(@key_ids::uuid[], @times::timestamptz[]) AS t (key_id, used_at) USING (key_id)
      ORDER BY l.key_id FOR UPDATE OF l) u
WHERE p.key_id = u.key_id`

// Flush writes the times of last use now, in one statement however many keys
// were used. After an error they are kept for the next time.
func (a *Authenticator) Flush(ctx context.Context) error {
	a.mu.Lock()
	used := a.used
	a.used = make(map[uuid.UUID]time.Time, len(used))
	a.mu.Unlock()
	if len(used) == 0 {
		return nil
	}
	ids := make([]uuid.UUID, 0, len(used))
	times := make([]time.Time, 0, len(used))
	for id, t := range used {
		ids, times = append(ids, id), append(times, t)
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	err := a.config.Pool.With(ctx, func(db pg.DB) error {
		_, err := db.Exec(ctx, sqlTouchKeys, pg.Args{"key_ids": ids, "times": times})
		return err
	})
	if err == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, t := range used {
		if t.After(a.used[id]) {
			a.used[id] = t
		}
	}
	return fmt.Errorf("writing times of last use: %w", err)
}
