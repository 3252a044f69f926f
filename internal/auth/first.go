package auth

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

const sqlNoKeys = `SELECT NOT EXISTS (SELECT FROM memd.principals)`

// None reports whether no key was ever made: the installation is new, and its
// first key is made by whoever has the database, because no key could.
func None(ctx context.Context, db pg.DB) (bool, error) {
	var none bool
	if err := db.QueryRow(ctx, sqlNoKeys).Scan(&none); err != nil {
		return false, fmt.Errorf("looking for API keys: %w", err)
	}
	return none, nil
}

const (
	sqlLockKeys = `SELECT pg_advisory_xact_lock(@lock)`

	sqlHasKeys = `SELECT EXISTS (SELECT FROM memd.principals WHERE tenant_no = @tenant)`
)

// CreateFirst is Create for a tenant that never had a key; for one that had, it makes
// none, and returns the zero Key. Safe to repeat, and to call twice at once.
func CreateFirst(ctx context.Context, tx pgx.Tx, now time.Time, n NewKey) (Key, string, error) {
	if _, err := tx.Exec(ctx, sqlLockKeys, pg.Args{"lock": int64(pg.LockProvision.ForTenant(n.Tenant))}); err != nil {
		return Key{}, "", fmt.Errorf("waiting for a tenant's first API key: %w", err)
	}
	var had bool
	if err := tx.QueryRow(ctx, sqlHasKeys, pg.Args{"tenant": n.Tenant}).Scan(&had); err != nil {
		return Key{}, "", fmt.Errorf("looking for a tenant's API keys: %w", err)
	}
	if had {
		return Key{}, "", nil
	}
	return Create(ctx, tx, now, n)
}

const sqlHadApprover = `
SELECT EXISTS (SELECT FROM memd.principals WHERE tenant_no IS NOT DISTINCT FROM @tenant AND roles & @approver <> 0)`

// HadApprover reports whether the installation, or a tenant, ever had a key with
// the role approver, revoked ones counted: the first is made by an operator, and
// further ones by approvers.
func HadApprover(ctx context.Context, db pg.DB, tenant memd.TenantNo) (bool, error) {
	var had bool
	var of *memd.TenantNo
	if tenant != Installation {
		of = &tenant
	}
	if err := db.QueryRow(ctx, sqlHadApprover, pg.Args{"tenant": of, "approver": Approver}).Scan(&had); err != nil {
		return false, fmt.Errorf("looking for approvers: %w", err)
	}
	return had, nil
}
