package purge

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/eraser"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// tokenPrefix makes a bearer token of memd's recognisable, to people and to
// what looks for leaked secrets.
const tokenPrefix = "memdt_"

const sqlInsertTarget = `
INSERT INTO memd.purge_targets (tenant_no, target_id, name, kind, order_class, required, url, timeout_ms, allow_private,
  path, retention_s, user_field, session_field, app_field, secret, created_at, created_by)
SELECT @tenant, @id, @name, @kind, @order_class, @required, @url, @timeout_ms, @allow_private,
  @path, @retention_s, @user_field, @session_field, @app_field, @secret, @now, @created_by
WHERE (SELECT count(*) FROM memd.purge_targets WHERE tenant_no = @tenant) < @max
ON CONFLICT (tenant_no, name) DO NOTHING`

// Create registers a target and returns the secret that was made for it, or ""
// when it was given or the target needs none. Nobody can ask for it again. A
// name that is taken is memd.ErrExists.
func (c *Caller) Create(ctx context.Context, db pg.DB, n New) (Target, string, error) {
	t, made, err := c.Prepare(ctx, n)
	if err != nil {
		return Target{}, "", err
	}
	tag, err := db.Exec(ctx, sqlInsertTarget, pg.Args{
		"tenant": t.Tenant, "id": t.ID, "name": t.Name, "kind": t.Kind, "order_class": t.Order, "required": t.Required,
		"url": t.URL, "timeout_ms": t.Timeout.Milliseconds(), "allow_private": t.AllowPrivate, "path": t.Path,
		"retention_s": int64(t.Retention / time.Second), "user_field": t.Fields.User, "session_field": t.Fields.Session,
		"app_field": t.Fields.App, "secret": t.secret, "now": t.CreatedAt, "created_by": orNull(t.CreatedBy), "max": MaxTargets,
	})
	if err != nil {
		return Target{}, "", fmt.Errorf("inserting a purge target: %w", err)
	}
	if tag.RowsAffected() == 0 {
		if _, err := Get(ctx, db, t.Tenant, t.Name); !errors.Is(err, memd.ErrNotFound) {
			return Target{}, "", errors.Join(err, memd.ErrExists)
		}
		return Target{}, "", invalid("tenant", fmt.Sprintf("has %d purge targets, which is all it may have", MaxTargets))
	}
	return t, made, nil
}

// Prepare is Create without storing the target: for trying out what was not
// registered.
func (c *Caller) Prepare(ctx context.Context, n New) (t Target, made string, err error) {
	if err := n.validate(c.c.AllowPrivate); err != nil {
		return Target{}, "", err
	}
	t = Target{
		Tenant: n.Tenant, ID: uuid.New(), Name: n.Name, Kind: n.Kind, Order: n.Order, Required: !n.BestEffort,
		URL: n.URL, Timeout: n.Timeout, AllowPrivate: n.AllowPrivate, Path: n.Path, Fields: n.Fields,
		Retention: n.Retention.Truncate(time.Second), CreatedAt: c.c.Clock.Now(), CreatedBy: n.CreatedBy,
	}
	if !n.Kind.remote() {
		return t, "", nil
	}
	secret := n.Secret
	if secret == "" {
		secret = newSecret(n.Kind)
		made = secret
	}
	err = c.c.Keys(ctx, n.Tenant, func(k *shred.Keys) error {
		s, err := k.Targets()
		if err == nil {
			t.secret, err = s.Seal([]byte(secret), shred.AADTargetSecret(t.Tenant, t.ID))
		}
		return err
	})
	if err != nil {
		return Target{}, "", fmt.Errorf("sealing a target's secret: %w", err)
	}
	return t, made, nil
}

func newSecret(k Kind) string {
	if k == KindWebhook {
		return eraser.NewKey().Secret()
	}
	token := make([]byte, 32)
	_, _ = rand.Read(token) // It never fails: the process ends instead.
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(token)
}

// orNull keeps a missing id out of the column.
func orNull(id uuid.UUID) *uuid.UUID {
	if id == uuid.Nil {
		return nil
	}
	return &id
}

const sqlTargets = `
SELECT tenant_no, target_id, name, kind, order_class, required, url, timeout_ms, allow_private,
  path, retention_s, user_field, session_field, app_field, secret, created_at, created_by
FROM memd.purge_targets WHERE tenant_no = @tenant AND (@name = '' OR name = @name)
ORDER BY order_class, name COLLATE "C"`

// Targets returns a tenant's targets in the order in which an erasure calls
// them: by order class, then by name.
func Targets(ctx context.Context, db pg.DB, tenant memd.TenantNo) ([]Target, error) {
	return query(ctx, db, tenant, "")
}

// Get returns one target, or memd.ErrNotFound.
func Get(ctx context.Context, db pg.DB, tenant memd.TenantNo, name string) (Target, error) {
	if name == "" {
		return Target{}, memd.ErrNotFound // In the statement it would mean all.
	}
	ts, err := query(ctx, db, tenant, name)
	if err == nil && len(ts) == 0 {
		err = memd.ErrNotFound
	}
	if err != nil {
		return Target{}, err
	}
	return ts[0], nil
}

func query(ctx context.Context, db pg.DB, tenant memd.TenantNo, name string) ([]Target, error) {
	rows, err := db.Query(ctx, sqlTargets, pg.Args{"tenant": tenant, "name": name})
	if err != nil {
		return nil, fmt.Errorf("reading purge targets: %w", err)
	}
	ts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Target, error) {
		var t Target
		var timeout, retention int64
		var by *uuid.UUID
		err := row.Scan(&t.Tenant, &t.ID, &t.Name, &t.Kind, &t.Order, &t.Required, &t.URL, &timeout, &t.AllowPrivate,
			&t.Path, &retention, &t.Fields.User, &t.Fields.Session, &t.Fields.App, &t.secret, &t.CreatedAt, &by)
		t.Timeout, t.Retention, t.CreatedAt = time.Duration(timeout)*time.Millisecond, time.Duration(retention)*time.Second, t.CreatedAt.UTC()
		if by != nil {
			t.CreatedBy = *by
		}
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading purge targets: %w", err)
	}
	return ts, nil
}

const sqlDeleteTarget = `DELETE FROM memd.purge_targets WHERE tenant_no = @tenant AND name = @name`

// Delete forgets a target and its secret. One that is not there is
// memd.ErrNotFound. Acknowledgements that name it stay.
func Delete(ctx context.Context, db pg.DB, tenant memd.TenantNo, name string) error {
	tag, err := db.Exec(ctx, sqlDeleteTarget, pg.Args{"tenant": tenant, "name": name})
	if err != nil {
		return fmt.Errorf("deleting a purge target: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return memd.ErrNotFound
	}
	return nil
}

const sqlDeleteTargets = `DELETE FROM memd.purge_targets WHERE tenant_no = @tenant`

// DeleteTenant forgets all targets of a tenant, of which there are at most
// MaxTargets, and returns how many there were. It is for the end of a tenant's
// purge, when they have been called for the last time. Safe to repeat.
func DeleteTenant(ctx context.Context, db pg.DB, tenant memd.TenantNo) (int64, error) {
	tag, err := db.Exec(ctx, sqlDeleteTargets, pg.Args{"tenant": tenant})
	if err != nil {
		return 0, fmt.Errorf("deleting a tenant's purge targets: %w", err)
	}
	return tag.RowsAffected(), nil
}
