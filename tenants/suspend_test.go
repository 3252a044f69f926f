package tenants_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

func TestSuspend_AndResume(t *testing.T) {
	b := setup(t)
	acme := b.mustCreate("acme")
	by := uuid.New()
	call := func(f func(db pg.DB) (tenants.Tenant, error)) (got tenants.Tenant, err error) {
		err = b.app.With(t.Context(), func(db pg.DB) (err error) { got, err = f(db); return err })
		return got, err
	}
	suspend := func(at time.Time, name, reason string) (tenants.Tenant, error) {
		return call(func(db pg.DB) (tenants.Tenant, error) { return tenants.Suspend(t.Context(), db, at, name, by, reason) })
	}
	resume := func(at time.Time) (tenants.Tenant, error) {
		return call(func(db pg.DB) (tenants.Tenant, error) { return tenants.Resume(t.Context(), db, at, "acme", by, "paid") })
	}
	if _, err := suspend(start, "acme", "unpaid"); !errors.Is(err, memd.ErrTenantInactive) {
		t.Errorf("of a tenant that is being made: %v", err)
	}
	b.provision(acme.No)
	if err := b.activate(acme.No); err != nil {
		t.Fatal(err)
	}
	for name, reason := range map[string]string{"none": "", "long": strings.Repeat("x", tenants.MaxReason+1), "bytes": "\xff"} {
		var invalid *memd.InvalidError
		if _, err := suspend(start, "acme", reason); !errors.As(err, &invalid) || invalid.Field != "reason" {
			t.Errorf("reason %s: %v", name, err)
		}
	}
	if _, err := suspend(start, "nobody", "unpaid"); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("of nobody: %v", err)
	}
	later := start.Add(time.Hour)
	for range 2 { // Safe to repeat.
		if got, err := suspend(later, "acme", "unpaid"); err != nil || got.State != tenants.StateSuspended || !got.UpdatedAt.Equal(later) {
			t.Errorf("%v at %v, %v", got.State, got.UpdatedAt, err)
		}
	}
	if got, err := resume(later.Add(time.Hour)); err != nil || got.State != tenants.StateActive {
		t.Errorf("%v, %v", got.State, err)
	}
	var got []tenants.Transition
	if err := b.app.With(t.Context(), func(db pg.DB) (err error) {
		got, err = tenants.Transitions(t.Context(), db, acme.No)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	want := []tenants.Transition{
		{At: later.Add(time.Hour), From: tenants.StateSuspended, To: tenants.StateActive, By: by, Reason: "paid"},
		{At: later, From: tenants.StateActive, To: tenants.StateSuspended, By: by, Reason: "unpaid"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// The application changes no state by itself.
	if err := b.app.With(t.Context(), func(db pg.DB) error {
		_, err := db.Exec(t.Context(), `UPDATE memd.tenants SET state = 3`)
		return err
	}); !errors.Is(err, memd.ErrPermissionDenied) && pg.SQLState(err) != "42501" {
		t.Errorf("by hand: %v", err)
	}
}
