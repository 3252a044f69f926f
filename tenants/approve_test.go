package tenants_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

// key stands in for package auth, which owns the table. Roles: 8 operator, 16
// approver.
func (b *bundle) key(tenant *memd.TenantNo, roles int) uuid.UUID {
	b.t.Helper()
	id := uuid.New()
	b.sudo(`INSERT INTO memd.principals (key_id, tenant_no, name, roles, secret_hash, created_at) VALUES ($1, $2, 'test', $3, sha256($4), now())`,
		id, tenant, roles, id[:])
	return id
}

func (b *bundle) sudo(sql string, args ...any) {
	b.t.Helper()
	if err := b.owner.With(b.t.Context(), func(db pg.DB) error { _, err := db.Exec(b.t.Context(), sql, args...); return err }); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) approve(at time.Time, no memd.TenantNo, digest byte, by uuid.UUID) (a tenants.Approval, err error) {
	err = b.app.With(b.t.Context(), func(db pg.DB) (err error) {
		a, err = tenants.Approve(b.t.Context(), db, at, no, [32]byte{digest}, by)
		return err
	})
	return a, err
}

func (b *bundle) spend(at time.Time, no memd.TenantNo, digest byte, by uuid.UUID) (request uuid.UUID, err error) {
	request = uuid.New()
	return request, b.app.InTx(b.t.Context(), func(tx pgx.Tx) error {
		return tenants.Spend(b.t.Context(), tx, at, no, request, [32]byte{digest}, by)
	})
}

// Who may approve, and what.
func TestApprove_NeedsAnApproverAndADrainedTenant(t *testing.T) {
	b := setup(t)
	acme := b.active("acme")
	approver := b.key(nil, 16)
	if _, err := b.approve(start, acme.No, 1, approver); !errors.Is(err, memd.ErrTenantInactive) {
		t.Errorf("of a tenant that is active: %v", err)
	}
	b.drain("acme")
	revoked := b.key(nil, 16)
	b.sudo(`UPDATE memd.principals SET revoked_at = now() WHERE key_id = $1`, revoked)
	for name, by := range map[string]uuid.UUID{
		"an operator": b.key(nil, 8), "nobody": uuid.New(), "a revoked key": revoked, "the tenant's own": b.key(&acme.No, 16),
	} {
		if _, err := b.approve(start, acme.No, 1, by); !errors.Is(err, memd.ErrPermissionDenied) {
			t.Errorf("by %s: %v", name, err)
		}
	}
	if a, err := b.approve(start, acme.No, 1, b.key(nil, 8|16)); err != nil || !a.ExpiresAt.Equal(start.Add(tenants.ApprovalLife)) {
		t.Errorf("%+v, %v", a, err)
	}
	if err := b.app.With(t.Context(), func(db pg.DB) error {
		_, err := db.Exec(t.Context(), `UPDATE memd.approvals SET expires_at = 'infinity'`)
		return err
	}); pg.SQLState(err) != "42501" {
		t.Errorf("by hand: %v", err)
	}
}

// An approval is spent once, by somebody else, in time, on what was shown.
func TestSpend_RefusesWhatDoesNotHold(t *testing.T) {
	b := setup(t)
	acme := b.active("acme")
	b.drain("acme")
	approver, operator := b.key(nil, 8|16), b.key(nil, 8)
	refused := func(name, want string, at time.Time, digest byte, by uuid.UUID) {
		t.Helper()
		var refusal *memd.RefusalError
		if _, err := b.spend(at, acme.No, digest, by); !errors.Is(err, memd.ErrNotApproved) || !errors.As(err, &refusal) || !strings.Contains(refusal.Problem, want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	refused("nothing approved", "has to approve it first", start, 1, operator)
	first, err := b.approve(start, acme.No, 1, approver)
	if err != nil {
		t.Fatal(err)
	}
	refused("by the approver", "cannot be the one who approves", start, 1, approver)
	refused("of another state", "has changed since", start, 2, operator)
	refused("too late", "expired", start.Add(tenants.ApprovalLife), 1, operator)
	b.sudo(`UPDATE memd.principals SET roles = 8 WHERE key_id = $1`, approver)
	refused("of one who is no approver any more", "revoked", start, 1, operator)
	b.sudo(`UPDATE memd.principals SET roles = 24 WHERE key_id = $1`, approver)
	for range 2 { // Safe to repeat.
		if err := b.app.With(t.Context(), func(db pg.DB) error {
			a, err := tenants.Void(t.Context(), db, start, acme.No, first.ID)
			if err == nil && a.Good(start) {
				t.Error("it holds")
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	refused("voided", "voided", start, 1, operator)
	if _, err := b.approve(start, acme.No, 1, approver); err != nil {
		t.Fatal(err)
	}
	for _, to := range []tenants.State{tenants.StateSuspended, tenants.StateDrained} {
		if _, err := b.move(start.Add(2*time.Hour), "acme", to, operator, "to and fro"); err != nil {
			t.Fatal(err)
		}
	}
	refused("drained anew", "voided", start, 1, operator)
	if _, err := b.approve(start, acme.No, 1, approver); err != nil {
		t.Fatal(err)
	}
	request, err := b.spend(start.Add(tenants.ApprovalLife-time.Second), acme.No, 1, operator)
	if err != nil {
		t.Fatal(err)
	}
	refused("spent", "", start, 1, operator)
	if err := b.app.With(t.Context(), func(db pg.DB) error {
		all, err := tenants.Approvals(t.Context(), db, acme.No)
		if err != nil || len(all) != 3 {
			t.Fatalf("%d approvals, %v", len(all), err)
		}
		for _, a := range all {
			if (a.Request == request) != a.VoidedAt.IsZero() {
				t.Errorf("%+v, of %v", a, request)
			}
			_, err := tenants.Void(t.Context(), db, start, acme.No, a.ID)
			if (a.Request == request) != errors.Is(err, memd.ErrNotFound) {
				t.Errorf("voiding %+v: %v", a, err)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// The database itself accepts no purge without an approval.
func TestPurge_NotWithoutAnApprovalByAnyPath(t *testing.T) {
	b := setup(t)
	acme := b.active("acme")
	b.drain("acme")
	approver, operator := b.key(nil, 16), b.key(nil, 8)
	insert := func(request, by uuid.UUID) error {
		return b.app.With(t.Context(), func(db pg.DB) error {
			_, err := db.Exec(t.Context(), `INSERT INTO memd.erasures (tenant_no, request_id, job_no, kind, app, requested_by, accepted_at, due_at)
				VALUES ($1, $2, 1, 4, '', $3, now(), now())`, acme.No, request, by)
			return err
		})
	}
	if err := insert(uuid.New(), operator); !errors.Is(err, memd.ErrNotApproved) {
		t.Errorf("nobody approved: %v", err)
	}
	if _, err := b.approve(start, acme.No, 1, approver); err != nil {
		t.Fatal(err)
	}
	request, err := b.spend(start, acme.No, 1, operator)
	if err != nil {
		t.Fatal(err)
	}
	if err := insert(request, approver); !errors.Is(err, memd.ErrNotApproved) {
		t.Errorf("asked for by the approver: %v", err)
	}
	if err := b.worker.With(t.Context(), func(db pg.DB) error { return tenants.BeginPurge(t.Context(), db, start, acme.No, request) }); !errors.Is(err, memd.ErrNotApproved) {
		t.Errorf("begun without having been accepted: %v", err)
	}
	if err := insert(request, operator); err != nil {
		t.Error(err)
	}
	if got, err := b.move(start, "acme", tenants.StateActive, operator, "a mistake"); !errors.Is(err, memd.ErrTenantInactive) {
		t.Errorf("resumed: %v, %v", got.State, err)
	}
}
