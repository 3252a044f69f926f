package tenants

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// MaxDisplayName is the length of a display name in bytes.
const MaxDisplayName = 256

var namePattern = regexp.MustCompile(`^[a-z][a-z0-9-]{1,62}$`)

// Tenant is a customer of the installation.
type Tenant struct {
	No          memd.TenantNo
	Name        string
	DisplayName string
	State       State
	Policy      Policy
	// Epoch is the tenant's newest key epoch; 0 before it has keys.
	Epoch     int64
	CreatedAt time.Time
	UpdatedAt time.Time
	Usage     Usage
}

const sqlInsertTenant = `
INSERT INTO memd.tenants (name, display_name, state, policy, created_at, updated_at)
VALUES (@name, @display_name, @state, @policy, @now, @now)
ON CONFLICT (name) DO NOTHING`

// Create announces a tenant, in state Creating, to the workers; the insert
// itself notifies them. Safe to repeat: a tenant of that name, display name and
// policy is returned as it is by now. One that differs is ErrExists.
func Create(ctx context.Context, db pg.DB, now time.Time, name, displayName string, p Policy) (Tenant, error) {
	if !namePattern.MatchString(name) {
		return Tenant{}, invalid("name", "must be 2 to 63 lower-case letters, digits and hyphens, the first a letter")
	}
	if len(displayName) > MaxDisplayName || !utf8.ValidString(displayName) {
		return Tenant{}, invalid("display_name", fmt.Sprintf("must be at most %d bytes of UTF-8", MaxDisplayName))
	}
	if err := p.Validate(); err != nil {
		return Tenant{}, err
	}
	tag, err := db.Exec(ctx, sqlInsertTenant, pg.Args{
		"name": name, "display_name": displayName, "state": StateCreating, "policy": p, "now": now,
	})
	if err != nil {
		return Tenant{}, fmt.Errorf("inserting a tenant: %w", err)
	}
	t, err := Get(ctx, db, name)
	if err != nil {
		return Tenant{}, err
	}
	if tag.RowsAffected() == 0 && (t.DisplayName != displayName || t.Policy != p) {
		return Tenant{}, fmt.Errorf("creating a tenant: %w", memd.ErrExists)
	}
	return t, nil
}

const sqlSelectTenant = `
SELECT t.tenant_no, t.name, t.display_name, t.state, t.policy, coalesce(k.epoch, 0), t.created_at, t.updated_at,
  t.used_rows, t.used_bytes, coalesce(t.measured_at, '0001-01-01Z'), t.full_up
FROM memd.tenants t LEFT JOIN memd.key_epochs k USING (tenant_no)
WHERE t.name = @name`

// Get returns the tenant of that name, or ErrNotFound.
func Get(ctx context.Context, db pg.DB, name string) (Tenant, error) {
	if !namePattern.MatchString(name) {
		return Tenant{}, memd.ErrNotFound // The database could not even be asked for every string.
	}
	return one(ctx, db, sqlSelectTenant, pg.Args{"name": name})
}

const sqlSelectTenantByNo = `
SELECT t.tenant_no, t.name, t.display_name, t.state, t.policy, coalesce(k.epoch, 0), t.created_at, t.updated_at,
  t.used_rows, t.used_bytes, coalesce(t.measured_at, '0001-01-01Z'), t.full_up
FROM memd.tenants t LEFT JOIN memd.key_epochs k USING (tenant_no)
WHERE t.tenant_no = @tenant_no`

// GetByNo returns the tenant of that number, or ErrNotFound.
func GetByNo(ctx context.Context, db pg.DB, no memd.TenantNo) (Tenant, error) {
	return one(ctx, db, sqlSelectTenantByNo, pg.Args{"tenant_no": no})
}

const sqlSelectTenants = `
SELECT t.tenant_no, t.name, t.display_name, t.state, t.policy, coalesce(k.epoch, 0), t.created_at, t.updated_at,
  t.used_rows, t.used_bytes, coalesce(t.measured_at, '0001-01-01Z'), t.full_up
FROM memd.tenants t LEFT JOIN memd.key_epochs k USING (tenant_no)
WHERE t.name COLLATE "C" > @after
ORDER BY t.name COLLATE "C"
LIMIT @limit`

// List returns at most limit tenants in the order of their names, from the
// first whose name sorts after `after`.
func List(ctx context.Context, db pg.DB, after string, limit int) ([]Tenant, error) {
	return many(ctx, db, sqlSelectTenants, pg.Args{"after": after, "limit": limit})
}

// Whoever begins a step of an erasure shares the lock of holds: a month is expired
// by the policy of then, or by the next.
const sqlLockSteps = `SELECT pg_advisory_xact_lock(@lock)`

const sqlLockPolicy = `SELECT policy FROM memd.tenants WHERE name = @name FOR UPDATE`

// The operator || keeps what a newer release stored beside what this one knows.
const sqlUpdatePolicy = `
UPDATE memd.tenants SET policy = policy || @policy::jsonb, updated_at = @now WHERE name = @name`

// SetPolicy makes the decisions of c, in a transaction of the caller's. Safe to
// repeat. Another embedder or dimension has the rows embedded anew, in the background
// (memory.Reembedder); the destroy delay cannot change. ErrNotFound when there is no
// such tenant.
func SetPolicy(ctx context.Context, tx pgx.Tx, now time.Time, name string, c Change) (Tenant, error) {
	t, err := Get(ctx, tx, name)
	if err != nil {
		return Tenant{}, err
	}
	if _, err := tx.Exec(ctx, sqlLockSteps, pg.Args{"lock": int64(pg.LockHolds.ForTenant(t.No))}); err != nil {
		return Tenant{}, fmt.Errorf("waiting for steps to begin: %w", err)
	}
	var old Policy
	err = tx.QueryRow(ctx, sqlLockPolicy, pg.Args{"name": name}).Scan(&old)
	if errors.Is(err, pgx.ErrNoRows) {
		return Tenant{}, memd.ErrNotFound
	}
	if err != nil {
		return Tenant{}, fmt.Errorf("locking a policy: %w", err)
	}
	p := c.Apply(old)
	if err := p.Validate(); err != nil {
		return Tenant{}, err
	}
	if p, err = p.replaces(old); err != nil {
		return Tenant{}, err
	}
	if _, err := tx.Exec(ctx, sqlUpdatePolicy, pg.Args{"name": name, "policy": p, "now": now}); err != nil {
		return Tenant{}, fmt.Errorf("updating a policy: %w", err)
	}
	return Get(ctx, tx, name)
}

func one(ctx context.Context, db pg.DB, sql string, args pg.Args) (Tenant, error) {
	rows, err := db.Query(ctx, sql, args)
	if err != nil {
		return Tenant{}, fmt.Errorf("selecting a tenant: %w", err)
	}
	t, err := pgx.CollectExactlyOneRow(rows, scan)
	if errors.Is(err, pgx.ErrNoRows) {
		return Tenant{}, memd.ErrNotFound
	}
	if err != nil {
		return Tenant{}, fmt.Errorf("selecting a tenant: %w", err)
	}
	return t, nil
}

func many(ctx context.Context, db pg.DB, sql string, args pg.Args) ([]Tenant, error) {
	rows, err := db.Query(ctx, sql, args)
	if err != nil {
		return nil, fmt.Errorf("selecting tenants: %w", err)
	}
	ts, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("selecting tenants: %w", err)
	}
	return ts, nil
}

func scan(row pgx.CollectableRow) (Tenant, error) {
	var t Tenant
	err := row.Scan(&t.No, &t.Name, &t.DisplayName, &t.State, &t.Policy, &t.Epoch, &t.CreatedAt, &t.UpdatedAt,
		&t.Usage.Rows, &t.Usage.Bytes, &t.Usage.MeasuredAt, &t.Usage.Full)
	t.CreatedAt, t.UpdatedAt, t.Usage.MeasuredAt = t.CreatedAt.UTC(), t.UpdatedAt.UTC(), t.Usage.MeasuredAt.UTC()
	return t, err
}
