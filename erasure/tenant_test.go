package erasure_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/tenants"
)

func (w *world) deleteTenant(name string, request uuid.UUID) (erasure.Report, error) {
	w.t.Helper()
	return w.a.Erasure.DeleteTenant(w.t.Context(), erasure.Caller{KeyID: uuid.New()}, name, name, request)
}

// A purge takes everything of everybody, journals each subject, destroys the
// last key and the API keys, and harms no other tenant.
func TestDeleteTenant_TakesAllAndNothingElse(t *testing.T) {
	w := newWorld(t)
	gone := w.Tenant("gone", delayed(time.Second))
	const users = 2*erasure.PurgePage + 3 // Above every page.
	for i := range users {
		w.addTo(gone, said(fmt.Sprint("user", i), "s1", "words"))
	}
	w.addTo(gone, memory.Row{Scope: shared, Kind: memory.KindRaw, Text: "of nobody", Vector: vector(), SourceTime: spoken, Contributor: &memory.Contributor{UserID: "user1"}})
	w.addTo(w.tenant, said("user1", "s1", "of the other tenant"))
	secret := w.Key(gone.No, auth.Agent)
	old := w.copyOf(gone)
	if found, _ := w.readable(old); len(found) == 0 {
		t.Fatal("nothing can be read of the copy before")
	}
	for _, c := range []struct {
		name, display string
		want          error
	}{{"gone", "gone", memd.ErrTenantInactive}, {"gone", "Gone", memd.ErrInvalid}, {"nobody", "nobody", memd.ErrNotFound}} {
		_, err := w.a.Erasure.DeleteTenant(t.Context(), erasure.Caller{}, c.name, c.display, uuid.New())
		if !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	w.Approve(w.a, gone.No)
	request := uuid.New()
	r, err := w.deleteTenant("gone", request)
	if err != nil || r.State < erasure.StateDone {
		t.Fatalf("state %v, %v; log:\n%s", r.State, err, w.Logs)
	}
	if n := w.count(`SELECT count(*) FROM memd.memories WHERE tenant_no = $1`, gone.No); n != 0 {
		t.Errorf("%d rows left", n)
	}
	if n := w.count(`SELECT count(*) FROM memd.erasure_subjects WHERE request_id = $1`, request); n != users+1 {
		t.Errorf("%d subjects are journalled, of %d and the shared scope", n, users)
	}
	if n := w.count(`SELECT count(*) FROM memd.principals WHERE tenant_no = $1`, gone.No); n != 0 || secret == "" {
		t.Errorf("%d API keys left", n)
	}
	var state tenants.Tenant
	if err := w.owner.With(t.Context(), func(db pg.DB) (err error) {
		state, err = tenants.Get(t.Context(), db, "gone")
		return err
	}); err != nil || state.State != tenants.StatePurged {
		t.Errorf("the tenant is %v, %v", state.State, err)
	}
	if found, _ := w.readable(old); len(found) != 0 {
		t.Errorf("of the old copy can be read: %v", found)
	}
	versions, err := w.identity(kmsemu.Worker).List(t.Context(), old.key)
	if err != nil || len(versions) == 0 {
		t.Fatalf("%d versions, %v", len(versions), err)
	}
	for _, v := range versions {
		if !v.State.Doomed() {
			t.Errorf("a version is %v", v.State)
		}
	}
	w.wants(user("user1"), "of the other tenant")
	again, err := w.deleteTenant("gone", request)
	if err != nil || again.ID != r.ID || something(again.Stores)[0].Before != users+1 {
		t.Errorf("asked again: %+v, %v", again.Stores, err)
	}
	w.state(r.Job, erasure.StateFinal)
	if n := w.count(`SELECT count(*) FROM memd.receipts WHERE request_id = $1`, request); n != 2 {
		t.Errorf("%d receipts; log:\n%s", n, w.Logs)
	}
}

// A user's erasure that meets the purge of the whole tenant ends with it, and one
// that comes later is refused.
func TestForgetUser_DuringDeleteTenant(t *testing.T) {
	w := newWorld(t)
	gone := w.Tenant("gone", delayed(0))
	w.addTo(gone, said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	w.StopWorker()
	before := w.accept(gone, "alice", "")
	r := w.runner()
	for _, s := range []erasure.Step{erasure.StepFence, erasure.StepBury} {
		if err := erasure.RunStep(t.Context(), r, before, s); err != nil {
			t.Fatal(err)
		}
	}
	w.Approve(w.a, gone.No)
	no := time.Duration(0)
	request := uuid.New()
	report, err := w.a.Erasure.DeleteTenant(t.Context(), erasure.Caller{Wait: &no}, "gone", "gone", request)
	if err != nil || report.State != erasure.StateAccepted {
		t.Fatalf("state %v, %v", report.State, err)
	}
	w.StartWorker()
	w.state(report.Job, erasure.StateFinal)
	w.state(before, erasure.StateFinal)
	if n := w.count(`SELECT count(*) FROM memd.memories WHERE tenant_no = $1`, gone.No); n != 0 {
		t.Errorf("%d rows left", n)
	}
	_, err = w.a.Erasure.ForgetUser(t.Context(), erasure.Caller{Tenant: gone.No}, app, "bob", uuid.New())
	if err == nil {
		t.Error("accepted for a tenant without keys")
	}
}

// Under a hold on one of its users a tenant is not purged.
func TestDeleteTenant_WaitsForAHold(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"))
	hold, _ := w.hold("alice", "")
	w.Approve(w.a, w.tenant.No)
	no := time.Duration(0)
	r, err := w.a.Erasure.DeleteTenant(t.Context(), erasure.Caller{Wait: &no}, "acme", "acme", uuid.New())
	if err != nil || !r.Held {
		t.Fatalf("%+v, %v", r.Job, err)
	}
	if n := w.count(`SELECT state FROM memd.tenants WHERE tenant_no = $1`, w.tenant.No); n != 5 {
		t.Errorf("the tenant is in state %d under a hold", n)
	}
	w.release(hold)
	w.state(r.Job, erasure.StateDone)
	if n := w.count(`SELECT count(*) FROM memd.memories`); n != 0 {
		t.Errorf("%d rows left", n)
	}
}
