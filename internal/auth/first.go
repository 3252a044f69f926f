package auth

import (
	"context"
	"fmt"

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
