package auth

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// MaxName is the length of a key's name in bytes.
const MaxName = 128

// Installation is the tenant number of keys that belong to no tenant.
const Installation memd.TenantNo = 0

// installationRoles are the roles that mean something without a tenant.
const installationRoles = Auditor | Operator | Approver

// Key is an API key without its secret.
type Key struct {
	ID     uuid.UUID
	Tenant memd.TenantNo // Installation, or a tenant
	Name   string
	Roles  Roles
	// CreatedAt is to the microsecond.
	CreatedAt time.Time
	// CreatedBy is the key that made it; zero for one made at the command line.
	CreatedBy uuid.UUID
	// LastUsedAt is up to a minute and a flush behind; zero for never.
	LastUsedAt time.Time
	// RevokedAt is zero for a key that is good.
	RevokedAt time.Time
}

// NewKey is what a key is made from.
type NewKey struct {
	Tenant    memd.TenantNo
	Name      string
	Roles     Roles
	CreatedBy uuid.UUID // zero for none
}

func (n NewKey) validate() error {
	switch {
	case n.Name == "" || len(n.Name) > MaxName || !utf8.ValidString(n.Name):
		return &memd.InvalidError{Field: "name", Problem: fmt.Sprintf("must be 1 to %d bytes of UTF-8", MaxName)}
	case n.Roles == 0 || n.Roles&^allRoles != 0:
		return &memd.InvalidError{Field: "roles", Problem: "must be at least one known role"}
	case n.Tenant == Installation && n.Roles&^installationRoles != 0:
		return &memd.InvalidError{Field: "roles", Problem: "of an installation key can be " + installationRoles.String() + " only"}
	}
	return nil
}

const sqlInsertKey = `
INSERT INTO memd.principals (key_id, tenant_no, name, roles, secret_hash, created_at, created_by)
VALUES (@key_id, nullif(@tenant_no::bigint, 0), @name, @roles, @secret_hash, @now, @created_by)`

// Create makes a key and returns its secret, which nobody can ask for again.
// Each call makes another key. The caller has made sure that the tenant exists.
func Create(ctx context.Context, db pg.DB, now time.Time, n NewKey) (Key, string, error) {
	if err := n.validate(); err != nil {
		return Key{}, "", err
	}
	secret := newSecret()
	hash, err := hashSecret(secret)
	if err != nil {
		return Key{}, "", err
	}
	k := Key{
		ID: uuid.New(), Tenant: n.Tenant, Name: n.Name, Roles: n.Roles,
		CreatedAt: now.UTC().Truncate(time.Microsecond), CreatedBy: n.CreatedBy,
	}
	_, err = db.Exec(ctx, sqlInsertKey, pg.Args{
		"key_id": k.ID, "tenant_no": k.Tenant, "name": k.Name, "roles": int16(k.Roles),
		"secret_hash": hash, "now": k.CreatedAt, "created_by": uuid.NullUUID{UUID: k.CreatedBy, Valid: k.CreatedBy != uuid.Nil},
	})
	if err != nil {
		return Key{}, "", fmt.Errorf("inserting an API key: %w", err)
	}
	return k, secret, nil
}

// Cursor is the place of a key in a List: after it comes the next page.
type Cursor struct {
	CreatedAt time.Time
	ID        uuid.UUID
}

// Cursor returns k's place.
func (k Key) Cursor() Cursor { return Cursor{k.CreatedAt, k.ID} }

const sqlSelectKeys = `
SELECT key_id, coalesce(tenant_no, 0), name, roles, created_at, created_by, last_used_at, revoked_at
FROM memd.principals
WHERE tenant_no IS NOT DISTINCT FROM nullif(@tenant_no::bigint, 0)
  AND (created_at, key_id) > (@created_at, @key_id)
ORDER BY created_at, key_id
LIMIT @limit`

// List returns at most limit keys of a tenant, or of the Installation, oldest
// first and from the first after the cursor. Revoked keys are among them. The
// zero cursor means from the start.
func List(ctx context.Context, db pg.DB, tenant memd.TenantNo, after Cursor, limit int) ([]Key, error) {
	rows, err := db.Query(ctx, sqlSelectKeys, pg.Args{
		"tenant_no": tenant, "created_at": after.CreatedAt, "key_id": after.ID, "limit": limit,
	})
	if err != nil {
		return nil, fmt.Errorf("selecting API keys: %w", err)
	}
	keys, err := pgx.CollectRows(rows, scanKey)
	if err != nil {
		return nil, fmt.Errorf("selecting API keys: %w", err)
	}
	return keys, nil
}

// A trigger keeps the first time of a key that is revoked again. What is
// another tenant's does not match, so that it cannot be told from nothing.
const sqlRevokeKey = `
UPDATE memd.principals SET revoked_at = @now
WHERE key_id = @key_id AND (@any OR tenant_no IS NOT DISTINCT FROM nullif(@tenant_no::bigint, 0))
RETURNING key_id, coalesce(tenant_no, 0), name, roles, created_at, created_by, last_used_at, revoked_at`

// Revoke ends a key. The next call with it is refused, by every replica. Safe to
// repeat. A caller of a tenant revokes that tenant's keys only, one of the
// Installation any; anything else is ErrNotFound.
func Revoke(ctx context.Context, db pg.DB, now time.Time, caller memd.TenantNo, id uuid.UUID) (Key, error) {
	rows, err := db.Query(ctx, sqlRevokeKey, pg.Args{
		"now": now, "key_id": id, "any": caller == Installation, "tenant_no": caller,
	})
	if err != nil {
		return Key{}, fmt.Errorf("revoking an API key: %w", err)
	}
	k, err := pgx.CollectExactlyOneRow(rows, scanKey)
	if errors.Is(err, pgx.ErrNoRows) {
		return Key{}, memd.ErrNotFound
	}
	if err != nil {
		return Key{}, fmt.Errorf("revoking an API key: %w", err)
	}
	return k, nil
}

func scanKey(row pgx.CollectableRow) (Key, error) {
	var k Key
	var createdBy uuid.NullUUID
	var roles int16
	var lastUsed, revoked *time.Time
	err := row.Scan(&k.ID, &k.Tenant, &k.Name, &roles, &k.CreatedAt, &createdBy, &lastUsed, &revoked)
	k.Roles, k.CreatedBy, k.CreatedAt = Roles(roles), createdBy.UUID, k.CreatedAt.UTC()
	if lastUsed != nil {
		k.LastUsedAt = lastUsed.UTC()
	}
	if revoked != nil {
		k.RevokedAt = revoked.UTC()
	}
	return k, err
}
