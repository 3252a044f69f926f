package tenants_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

// active makes a tenant that is active.
func (b *bundle) active(name string) tenants.Tenant {
	b.t.Helper()
	t := b.mustCreate(name)
	b.provision(t.No)
	if err := b.activate(t.No); err != nil {
		b.t.Fatal(err)
	}
	return t
}

// sealed stands for what the tenant's keys make of a reason.
func sealed(_ time.Time, reason string) ([]byte, error) { return []byte("sealed " + reason), nil }

func (b *bundle) move(at time.Time, name string, to tenants.State, by uuid.UUID, reason string) (got tenants.Tenant, err error) {
	err = b.app.With(b.t.Context(), func(db pg.DB) (err error) {
		got, err = tenants.Move(b.t.Context(), db, at, name, to, by, reason, sealed)
		return err
	})
	return got, err
}

// drain takes an active tenant to where it can be purged.
func (b *bundle) drain(name string) {
	b.t.Helper()
	for _, s := range []tenants.State{tenants.StateSuspended, tenants.StateDrained} {
		if _, err := b.move(start.Add(time.Hour), name, s, uuid.New(), "it leaves"); err != nil {
			b.t.Fatal(err)
		}
	}
}

// The application goes these ways and no other, and each is in the log.
func TestMove_GoesTheAllowedWaysAlone(t *testing.T) {
	b := setup(t)
	const (
		active, suspended, exporting, drained = tenants.StateActive, tenants.StateSuspended, tenants.StateExporting, tenants.StateDrained
	)
	all := []tenants.State{tenants.StateUnknown, tenants.StateCreating, active, suspended, exporting, drained, tenants.StatePurging, tenants.StatePurged, 8}
	allowed := map[tenants.State][]tenants.State{
		active: {suspended}, suspended: {active, exporting, drained}, exporting: {active, suspended, drained},
		drained: {active, suspended, exporting},
	}
	acme := b.active("acme")
	set := func(s tenants.State) {
		t.Helper()
		if err := b.owner.With(t.Context(), func(db pg.DB) error {
			_, err := db.Exec(t.Context(), `UPDATE memd.tenants SET state = $1`, int16(s))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	by, entries := uuid.New(), 1 // It was activated.
	for _, from := range all[1:8] {
		for _, to := range all {
			set(from)
			got, err := b.move(start.Add(time.Hour), "acme", to, by, "a try")
			works := false
			for _, s := range allowed[from] {
				works = works || s == to
			}
			switch {
			case works && (err != nil || got.State != to):
				t.Errorf("from %v to %v: %v, %v", from, to, got.State, err)
			case !works && from == to && len(allowed[from]) > 0 && (err != nil || got.State != to):
				t.Errorf("again %v: %v, %v", to, got.State, err)
			case !works && (from != to || len(allowed[from]) == 0) && !errors.Is(err, memd.ErrTenantInactive):
				t.Errorf("from %v to %v: %v", from, to, err)
			}
			if works {
				entries++
			}
		}
	}
	var got []tenants.Transition
	if err := b.app.With(t.Context(), func(db pg.DB) (err error) {
		got, err = tenants.Transitions(t.Context(), db, acme.No)
		return err
	}); err != nil || len(got) != entries {
		t.Errorf("%d entries in the log, not %d, %v", len(got), entries, err)
	}
	// Neither process changes a state by itself.
	for name, pool := range map[string]*pg.Pool{"the application": b.app, "the worker": b.worker} {
		for _, sql := range []string{
			`UPDATE memd.tenants SET state = 3`, `INSERT INTO memd.tenant_transitions SELECT * FROM memd.tenant_transitions`,
			`DELETE FROM memd.tenant_transitions`, `SELECT memd.take_tenant(1, 2::smallint, NULL, 'x', NULL, now())`,
		} {
			if err := pool.With(t.Context(), func(db pg.DB) error { _, err := db.Exec(t.Context(), sql); return err }); pg.SQLState(err) != "42501" {
				t.Errorf("%s: %s: %v", name, sql, err)
			}
		}
	}
}

func TestSuspend_AndResume(t *testing.T) {
	b := setup(t)
	acme := b.mustCreate("acme")
	by := uuid.New()
	if _, err := b.move(start, "acme", tenants.StateSuspended, by, "unpaid"); !errors.Is(err, memd.ErrTenantInactive) {
		t.Errorf("of a tenant that is being made: %v", err)
	}
	b.provision(acme.No)
	if err := b.activate(acme.No); err != nil {
		t.Fatal(err)
	}
	for name, reason := range map[string]string{"none": "", "long": strings.Repeat("x", tenants.MaxReason+1), "bytes": "\xff"} {
		var invalid *memd.InvalidError
		if _, err := b.move(start, "acme", tenants.StateSuspended, by, reason); !errors.As(err, &invalid) || invalid.Field != "reason" {
			t.Errorf("reason %s: %v", name, err)
		}
	}
	if _, err := b.move(start, "nobody", tenants.StateSuspended, by, "unpaid"); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("of nobody: %v", err)
	}
	later := start.Add(time.Hour)
	for range 2 { // Safe to repeat.
		got, err := b.move(later, "acme", tenants.StateSuspended, by, "unpaid")
		if err != nil || got.State != tenants.StateSuspended || !got.UpdatedAt.Equal(later) {
			t.Errorf("%v at %v, %v", got.State, got.UpdatedAt, err)
		}
	}
	if err := b.activate(acme.No); !errors.Is(err, memd.ErrTenantInactive) {
		t.Errorf("a worker that comes late activates it: %v", err)
	}
	if err := b.app.With(t.Context(), func(db pg.DB) error {
		got, err := tenants.Move(t.Context(), db, later.Add(time.Hour), "acme", tenants.StateActive, by, "paid", sealed)
		if err == nil && got.State != tenants.StateActive {
			t.Errorf("it is %v", got.State)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	var got []tenants.Transition
	if err := b.app.With(t.Context(), func(db pg.DB) (err error) {
		got, err = tenants.Transitions(t.Context(), db, acme.No)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	want := []tenants.Transition{
		{At: later.Add(time.Hour), From: tenants.StateSuspended, To: tenants.StateActive, By: by, Sealed: []byte("sealed paid")},
		{At: later, From: tenants.StateActive, To: tenants.StateSuspended, By: by, Sealed: []byte("sealed unpaid")},
		{At: start.Add(time.Minute), From: tenants.StateCreating, To: tenants.StateActive, Reason: "its keys are made"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A tenant that is being purged, or is gone, gets no API key.
func TestMove_NoKeysPastTheEnd(t *testing.T) {
	b := setup(t)
	acme := b.active("acme")
	for state, want := range map[tenants.State]string{tenants.StateDrained: "", tenants.StatePurging: "MD004", tenants.StatePurged: "MD004"} {
		err := b.owner.InTx(t.Context(), func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `UPDATE memd.tenants SET state = $1`, int16(state)); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), `INSERT INTO memd.principals (key_id, tenant_no, name, roles, secret_hash, created_at)
				VALUES ($1, $2, 'late', 1, sha256($3), now())`, uuid.New(), acme.No, []byte(state.String()))
			return err
		})
		if pg.SQLState(err) != want {
			t.Errorf("a key of a tenant that is %v: %v", state, err)
		}
	}
}
