package erasure_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/tenants"
)

// plant writes a row as a superuser with all triggers off: past the guard.
func (w *world) plant(t memory.Tenant, owner, contributor, session int, sourceTime string) uuid.UUID {
	w.t.Helper()
	id := uuid.New()
	w.exec(fmt.Sprintf(`DO $do$ BEGIN
	SET LOCAL session_replication_role = replica;
	INSERT INTO memd.memories (tenant_no, memory_id, owner_no, kind, month, contributor_no, contributor_session,
	  source_time, created_at, updated_at, content_digest, sealed_text)
	VALUES (%d, '%s', %d, 1, 600, %d, %d, %s, now(), now(), '', '\x00');
	END $do$`, t.No, id, owner, contributor, session, sourceTime))
	return id
}

// The second sweep proves itself: what came by a way past the guard is found,
// erased and reported, by dead number, by contribution, and, of somebody who has
// returned, by what they cannot have said. What they did say stays.
func TestSweep_FindsWhatWasPlanted(t *testing.T) {
	w := newWorld(t)
	late := w.Tenant("late", delayed(5*time.Second))
	w.addTo(late, said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	r := w.ForgetUser(w.a, late, app, "alice")
	number := func(name, alive string) int {
		ref := w.Keys(w.a, late).UserRef(app, name)
		return w.count(`SELECT subject_no FROM memd.subjects WHERE tenant_no = $1 AND user_ref = $2 AND retired_at IS `+alive, late.No, ref[:])
	}
	dead, bob := number("alice", "NOT NULL"), number("bob", "NULL")
	w.addTo(late, at(said("alice", "s2", "alice is back"), time.Now()))
	back := number("alice", "NULL")
	planted := []uuid.UUID{
		w.plant(late, dead, dead, int(memd.OwnScope), "NULL"),
		w.plant(late, bob, dead, int(memd.OwnScope)+1, "now()"),
		w.plant(late, back, back, int(memd.OwnScope), "'2020-01-01'"),
		w.plant(late, bob, back, int(memd.OwnScope), "NULL"),
	}
	if w.job(r.Job).State != erasure.StateDone {
		t.Fatal("swept before the row was planted: the test shows nothing")
	}
	w.state(r.Job, erasure.StateFinal)
	if n := w.count(`SELECT count(*) FROM memd.memories WHERE memory_id = ANY ($1)`, planted); n != 0 {
		t.Errorf("%d of the planted rows are left", n)
	}
	got := w.report(late, r.ID)
	if got.Found["memories"] != 2 || got.Found["memories_stale"] != 2 {
		t.Errorf("the report says that %v was found", got.Found)
	}
	if texts := w.textsOf(late, user("alice")); len(texts) != 1 || texts[0] != "alice is back" {
		t.Errorf("of alice, who has returned: %q", texts)
	}
	if texts := w.textsOf(late, user("bob")); len(texts) != 1 {
		t.Errorf("of bob: %q", texts)
	}
	// What the job remembered went with it.
	if n := w.count(`SELECT count(*) FROM memd.erasures WHERE request_id = $1
		AND (sealed_user_id IS NOT NULL OR sealed_salt IS NOT NULL OR sealed_probes IS NOT NULL)`, r.ID); n != 0 {
		t.Error("the job still remembers whom it was about")
	}
	if n := w.count(`SELECT count(*) FROM memd.receipts WHERE request_id = $1`, r.ID); n != 2 {
		t.Errorf("%d receipts", n)
	}
}

// A sweep that finds nothing says so.
func TestSweep_FindsNothingAsARule(t *testing.T) {
	w := newWorld(t)
	soon := w.Tenant("soon", delayed(0))
	w.addTo(soon, said("alice", "s1", "alice"))
	r := w.ForgetSession(w.a, soon, app, "alice", "s1")
	j := w.state(r.Job, erasure.StateFinal)
	got := w.report(soon, r.ID)
	if got.Found == nil {
		t.Error("no counts of the sweep")
	}
	for store, n := range got.Found {
		if n != 0 {
			t.Errorf("%d %s", n, store)
		}
	}
	if j.FinalAt.Before(j.SweepAt) || j.SweepAt.IsZero() {
		t.Errorf("swept at %v, due at %v", j.FinalAt, j.SweepAt)
	}
}

// By policy the fence stays up until the second sweep.
func TestSweep_LiftsTheFenceByPolicy(t *testing.T) {
	w := newWorld(t)
	p := delayed(4 * time.Second)
	p.LiftFence = tenants.LiftAfterSweep
	strict := w.Tenant("strict", p)
	w.addTo(strict, said("alice", "s1", "alice"))
	r := w.ForgetUser(w.a, strict, app, "alice")
	_, err := w.a.Memory.Add(t.Context(), strict, []memory.Row{at(said("alice", "s2", "back"), time.Now())})
	if !isError(err, memd.ErrFenced) {
		t.Errorf("before the sweep: %v", err)
	}
	w.state(r.Job, erasure.StateFinal)
	w.addTo(strict, at(said("alice", "s2", "back"), time.Now()))
}

// The content of a session goes and what memory drew from it stays, and may be
// drawn on; its keys go with the next rotation that anybody needs.
func TestDeleteSession_KeepsMemories(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	r, err := w.a.Erasure.DeleteSession(t.Context(), w.caller(), app, "alice", "s1", false, uuid.Nil)
	if err != nil || r.State != erasure.StateDone || r.Key.Epoch != 0 {
		t.Fatalf("state %v, key %+v, %v", r.State, r.Key, err)
	}
	again, err := w.a.Erasure.DeleteSession(t.Context(), w.caller(), app, "alice", "s1", false, uuid.Nil)
	if err != nil || again.ID != r.ID {
		t.Errorf("deleted twice: %v and %v, %v", again.ID, r.ID, err)
	}
	w.wants(user("alice"), "alice")
	w.add(said("alice", "s1", "more of the same session"))
	w.wants(user("alice"), "alice", "more of the same session")
	if n := w.count(`SELECT count(*) FROM memd.tombstones WHERE kind = 2`); n != 1 {
		t.Errorf("%d tombstones of content", n)
	}
	if n := w.count(`SELECT count(*) FROM memd.punctures WHERE epoch IS NULL`); n != 1 {
		t.Errorf("%d punctures wait", n)
	}
	w.forgetUser("bob") // Whose rotation takes it along.
	if n := w.count(`SELECT count(*) FROM memd.punctures WHERE epoch IS NULL`); n != 0 {
		t.Errorf("%d punctures wait", n)
	}
	w.wants(user("alice"), "alice", "more of the same session")
}

// What a session said is drawn before its content goes, is found then, and is not
// found afterwards, and the receipt that its deletion gets at once says so. Checks of
// keys wait for their rotation.
func TestDeleteSession_IsWitnessed(t *testing.T) {
	w := newWorld(t)
	of := sessions.Tenant{No: w.tenant.No, Epoch: w.tenant.Epoch}
	for _, id := range []string{"alice", "bob"} {
		session := sessions.ID{App: app, UserID: id, SessionID: id + "1"}
		_, err := w.a.Sessions.Create(t.Context(), of, session, nil, false)
		if err == nil {
			_, err = w.a.Sessions.Append(t.Context(), of, session, []sessions.Event{
				{ID: "e1", Author: "user", Content: `"The order ` + map[string]string{"alice": "QX-4471", "bob": "ZB-9302"}[id] + ` is late."`},
			}, time.Time{}, false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c := w.caller()
	c.KeyID = uuid.New()
	r, err := w.a.Erasure.DeleteSession(t.Context(), c, app, "alice", "alice1", false, uuid.Nil)
	if err != nil || r.State != erasure.StateDone {
		t.Fatalf("state %v, %v; log:\n%s", r.State, err, w.Logs)
	}
	issued := w.receipts(w.tenant, r.ID)
	if len(issued) != 1 {
		t.Fatalf("%d receipts", len(issued))
	}
	got := map[receipts.CheckName]receipts.Check{}
	for _, c := range issued[0].Entry.Receipt.Checks {
		got[c.Name] = c
	}
	for _, name := range []receipts.CheckName{"session_events", "sessions", "fence", "unique_probes"} {
		if c := got[name]; c.Result != receipts.Pass || c.ControlBefore == 0 || c.Count != 0 {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if c := got["derivation_refused"]; c.Result != receipts.CheckNotRun || c.Reason != "policy" {
		t.Errorf("keys that have not gone yet: %+v", c)
	}
}

// Who has returned is no business of an erasure that is over.
func TestVerify_OfAUserWhoHasReturned(t *testing.T) {
	w := newWorld(t)
	quick := w.Tenant("quick", delayed(0))
	w.addTo(quick, said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	r := w.ForgetUser(w.a, quick, app, "alice")
	w.state(r.Job, erasure.StateFinal)
	w.addTo(quick, at(said("alice", "s2", "back"), time.Now()))
	v, err := w.a.Erasure.Verify(t.Context(), erasure.Caller{Tenant: quick.No, Epoch: quick.Epoch}, r.ID, memd.SearchBudget{}, 0)
	if err != nil || !v.Done || len(v.Checks) == 0 {
		t.Fatalf("%+v, %v; log:\n%s", v, err, w.Logs)
	}
	for _, c := range v.Checks {
		if c.Result == memd.ResultFail {
			t.Errorf("%+v", c)
		}
	}
}

// An erasure under a failing verifier is not done, says why, and tries on.
func TestVerify_AgainByRequest(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "The order is QX-4471."), said("bob", "b1", "bob"), said("dora", "d1", "dora"), said("dora", "d1", "dora again"))
	r, other := w.forgetUser("alice"), w.forgetSession("bob", "b9")
	// How far it searches is the caller's to say, up to all of it.
	for _, budget := range []memd.SearchBudget{{}, {Rows: 1}, {Whole: true}} {
		v, err := w.a.Erasure.Verify(t.Context(), w.caller(), r.ID, budget, 0)
		if err != nil || !v.Done || len(v.Checks) == 0 {
			t.Fatalf("%+v, %v; log:\n%s", v, err, w.Logs)
		}
		for _, c := range v.Checks {
			if c.Result == memd.ResultFail {
				t.Errorf("%+v", c)
			}
			if c.Name == "unique_probes" && (c.Scanned > 1) != (budget.Rows == 0) || c.Name == "unique_probes" && (c.Unscanned > 0) != (budget.Rows == 1) {
				t.Errorf("with %+v: %+v", budget, c)
			}
		}
		// One that is over is still to be had by its number, but not of another erasure.
		again, err := w.a.Erasure.Verify(t.Context(), w.caller(), r.ID, memd.SearchBudget{}, v.No)
		if err != nil || again.No != v.No || len(again.Checks) != len(v.Checks) {
			t.Errorf("asked for again: %+v, %v", again, err)
		}
		if _, err := w.a.Erasure.Verify(t.Context(), w.caller(), other.ID, memd.SearchBudget{}, v.No); !isError(err, memd.ErrNotFound) {
			t.Errorf("of another erasure: %v", err)
		}
	}
	w.StopWorker()
	open := w.accept(w.tenant, "bob", "")
	if _, err := w.a.Erasure.Verify(t.Context(), w.caller(), open.ID, memd.SearchBudget{}, 0); !isError(err, memd.ErrErasureUnfinished) {
		t.Errorf("of an erasure that is not done: %v", err)
	}
	if _, err := w.a.Erasure.Verify(t.Context(), w.caller(), uuid.New(), memd.SearchBudget{}, 0); !isError(err, memd.ErrNotFound) {
		t.Errorf("of none: %v", err)
	}
	if strings.Contains(w.Logs.String(), "verification stopped") {
		t.Errorf("log:\n%s", w.Logs)
	}
}
