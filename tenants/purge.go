package tenants

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

const sqlBeginPurge = `SELECT memd.begin_purge(@tenant_no, @request, @now)`

// BeginPurge takes a drained tenant past the point of no return, on account of a
// request that was accepted and approved: from its commit on no write of the
// tenant's is begun. For the worker. Safe to repeat; a tenant in any other state
// is ErrTenantInactive.
func BeginPurge(ctx context.Context, db pg.DB, now time.Time, no memd.TenantNo, request uuid.UUID) error {
	if _, err := db.Exec(ctx, sqlBeginPurge, pg.Args{"tenant_no": no, "request": request, "now": now}); err != nil {
		return fmt.Errorf("beginning a purge: %w", err)
	}
	return nil
}

const sqlEndPurge = `SELECT memd.end_purge(@tenant_no, @now)`

const sqlPurgePrincipals = `SELECT memd.purge_principals(@tenant_no)`

// EndPurge ends a purge: the tenant's API keys are deleted, and it gets no new
// ones. Its name stays, so that nobody else gets it. Safe to repeat.
func EndPurge(ctx context.Context, db pg.DB, now time.Time, no memd.TenantNo) error {
	if _, err := db.Exec(ctx, sqlPurgePrincipals, pg.Args{"tenant_no": no}); err != nil {
		return fmt.Errorf("deleting a purged tenant's API keys: %w", err)
	}
	if _, err := db.Exec(ctx, sqlEndPurge, pg.Args{"tenant_no": no, "now": now}); err != nil {
		return fmt.Errorf("ending a purge: %w", err)
	}
	return nil
}

const sqlGiveUp = `SELECT memd.give_up_tenant(@tenant_no, @now)`

// GiveUp ends a tenant whose keys are lost, from whatever state, as EndPurge ends
// one that was purged. For the database's owner. Safe to repeat; false: it had
// ended.
func GiveUp(ctx context.Context, db pg.DB, now time.Time, no memd.TenantNo) (ended bool, err error) {
	if err := db.QueryRow(ctx, sqlGiveUp, pg.Args{"tenant_no": no, "now": now}).Scan(&ended); err != nil {
		return false, fmt.Errorf("giving up a tenant: %w", err)
	}
	return ended, nil
}

// Stranger is a subject to whom something of a tenant's belongs, and whom the
// directory does not know.
type Stranger struct {
	Store  string      `json:"store"`
	Number memd.Number `json:"number"`
	Things int64       `json:"things"`
}

const sqlStrangers = `SELECT store, subject_no, things FROM memd.strangers(@tenant_no, @limit)`

// MaxStrangers bounds what Strangers returns.
const MaxStrangers = 100

// Strangers asks every store by the tenant's number alone for subjects that the
// directory does not know, at most MaxStrangers. There are none unless somebody
// went past admission.
func Strangers(ctx context.Context, db pg.DB, no memd.TenantNo) ([]Stranger, error) {
	rows, err := db.Query(ctx, sqlStrangers, pg.Args{"tenant_no": no, "limit": MaxStrangers})
	var all []Stranger
	if err == nil {
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Stranger])
	}
	if err != nil {
		return nil, fmt.Errorf("looking for subjects that the directory does not know: %w", err)
	}
	return all, nil
}

// Size is what a tenant has: rows of content in all stores, and the bytes that
// are sealed in them.
type Size struct{ Rows, Bytes int64 }

const sqlSize = `SELECT "rows", bytes FROM memd.tenant_size(@tenant_no)`

// SizeOf measures a tenant, asking the tables: it reads an entry of each row.
func SizeOf(ctx context.Context, db pg.DB, no memd.TenantNo) (Size, error) {
	var s Size
	if err := db.QueryRow(ctx, sqlSize, pg.Args{"tenant_no": no}).Scan(&s.Rows, &s.Bytes); err != nil {
		return s, fmt.Errorf("measuring a tenant: %w", err)
	}
	return s, nil
}
