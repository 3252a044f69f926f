package erasure

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

// Preview is what an erasure would do: exact counts by store, of one moment.
type Preview struct {
	Kind   Kind
	Counts Counts
	// Sessions is how many the directory knows that would be forgotten; Subjects,
	// of a tenant, how many users and shared scopes.
	Sessions, Subjects int64
	// Held says that a legal hold would keep it from beginning.
	Held bool
	// What follows is of a tenant alone. Bytes are what is sealed in its rows.
	DisplayName string
	TenantState tenants.State
	Bytes       int64
	// Strangers have something although the directory does not know them.
	Strangers []tenants.Stranger
	// Digest is that of all of the above, and of since when the tenant is in its
	// state: an approval of it is none of a tenant that has changed.
	Digest [sha256.Size]byte
}

// Stores returns the names of the counts in order.
func (c Counts) Stores() []string { return slices.Sorted(maps.Keys(c)) }

// readOnly: not even a bug may change anything.
var readOnly = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}

// DryRun counts what forgetting a user, or a session when one is given, would
// delete. It changes nothing: the transaction could not.
func (s *Service) DryRun(ctx context.Context, c Caller, kind Kind, app, userID, sessionID string) (Preview, error) {
	if err := validateIDs(app, userID); err != nil {
		return Preview{}, err
	}
	if kind != KindUser {
		if err := validateID("session_id", sessionID); err != nil {
			return Preview{}, err
		}
	}
	j := Job{Tenant: c.Tenant, Kind: kind, App: app}
	err := s.withKeys(ctx, c, func(k *shred.Keys) error {
		j.User = k.UserRef(app, userID)
		if kind != KindUser {
			j.Session = k.SessionRef(j.User, sessionID)
		}
		return nil
	})
	if err != nil {
		return Preview{}, err
	}
	return s.preview(ctx, j)
}

// DryRunTenant counts what deleting a tenant would delete.
func (s *Service) DryRunTenant(ctx context.Context, name string) (Preview, error) {
	var t tenants.Tenant
	err := s.Pool.With(ctx, func(db pg.DB) (err error) {
		t, err = tenants.Get(ctx, db, name)
		return err
	})
	if err != nil {
		return Preview{}, err
	}
	return s.preview(ctx, Job{Tenant: t.No, Kind: KindTenant})
}

const sqlHeldNow = `
SELECT EXISTS (SELECT FROM memd.holds h WHERE h.tenant_no = @tenant AND h.released_at IS NULL
  AND (h.kind = 4 OR @kind = 4 OR h.user_ref = @user AND (h.kind = 1 OR @kind = 1 OR h.session_ref = @session)))`

func (s *Service) preview(ctx context.Context, j Job) (Preview, error) {
	p := Preview{Kind: j.Kind}
	counter := &Runner{Parts: Parts{Stores: s.Stores}}
	err := s.Pool.Look(ctx, readOnly, func(tx pgx.Tx) error {
		about, err := counter.about(ctx, tx, j)
		if err != nil {
			return err
		}
		if p.Counts, err = countAll(ctx, tx, counter.stores(), j, about.target); err != nil {
			return err
		}
		if j.Kind == KindTenant {
			err = p.whole(ctx, tx, j.Tenant)
		} else if j.Kind != KindContent {
			p.Sessions, err = provenance.CountLiveSessions(ctx, tx, j.Tenant, about.target)
		}
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, sqlHeldNow, pg.Args{
			"tenant": j.Tenant, "kind": j.Kind, "user": refOrNull(j.User), "session": refOrNull(j.Session),
		}).Scan(&p.Held)
	})
	if err != nil {
		return Preview{}, fmt.Errorf("counting what would go: %w", err)
	}
	return p, nil
}
