package sessions_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/sessions"
)

func TestDelete_OfASessionLeavesUserAndAppState(t *testing.T) {
	b := full(t)
	before := b.get(id("ada", "s2"))
	other := b.get(id("bob", "s1"))
	of := b.number(id("ada", "s1"))
	if diff := cmp.Diff(sessions.Counts{Sessions: 1, Events: 3, SessionState: 1}, b.counts(of)); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	b.buryContent(id("ada", "s1"))
	// From the tombstone on nobody reads it, though the rows are still there.
	_, err := b.s.Get(t.Context(), b.tenant, id("ada", "s1"), sessions.Query{})
	wantErr(t, err, memd.ErrNotFound)
	_, err = b.s.Events(t.Context(), b.tenant, id("ada", "s1"), 0, 10)
	wantErr(t, err, memd.ErrNotFound)
	if p, err := b.s.List(t.Context(), b.tenant, "app", "ada", 10, ""); err != nil || len(p.Sessions) != 1 || p.Sessions[0].SessionID != "s2" {
		t.Errorf("listed %v, %v", p, err)
	}
	if n := b.deleteAll(of); n != 5 {
		t.Errorf("deleted %d rows, want 5", n)
	}
	if n := b.deleteAll(of); n != 0 {
		t.Errorf("deleting again deleted %d", n)
	}
	if c := b.counts(of); c.Total() != 0 {
		t.Errorf("left %+v", c)
	}
	if diff := cmp.Diff(before, b.get(id("ada", "s2"))); diff != "" {
		t.Errorf("the user's other session (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(other, b.get(id("bob", "s1"))); diff != "" {
		t.Errorf("somebody else's session of the same id (-before +after):\n%s", diff)
	}
}

func TestDelete_OfAUserLeavesNothing(t *testing.T) {
	b := full(t)
	ada := memd.Contribution{Subject: b.number(id("ada", "s1")).Subject}
	other := b.get(id("bob", "s1"))
	if diff := cmp.Diff(sessions.Counts{Sessions: 2, Events: 6, SessionState: 2, UserState: 2, AppState: 1}, b.counts(ada)); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	b.fence("ada")
	if p, err := b.s.List(t.Context(), b.tenant, "app", "ada", 10, ""); err != nil || !p.Fenced || len(p.Sessions) > 0 {
		t.Errorf("listed %v, %v", p, err)
	}
	if p, err := b.s.List(t.Context(), b.tenant, "app", "", 10, ""); err != nil || p.Fenced || len(p.Sessions) != 2 {
		t.Errorf("the app's list %v, %v", p, err)
	}
	b.deleteAll(ada)
	if c := b.counts(ada); c.Total() != 0 {
		t.Errorf("left %+v", c)
	}
	delete(other.State, "app:ada")
	if diff := cmp.Diff(other, b.get(id("bob", "s1"))); diff != "" {
		t.Errorf("somebody else's (-before +after):\n%s", diff)
	}
}

// TestDelete_OfAUserWithoutSessions: user: state goes when no session is left
// that would list it.
func TestDelete_OfAUserWithoutSessions(t *testing.T) {
	b := full(t)
	s1, s2 := b.number(id("ada", "s1")), b.number(id("ada", "s2"))
	b.buryContent(id("ada", "s1"))
	b.buryContent(id("ada", "s2"))
	b.deleteAll(s1, s2)
	ada := memd.Contribution{Subject: s1.Subject}
	if diff := cmp.Diff(sessions.Counts{UserState: 2, AppState: 1}, b.counts(ada)); diff != "" {
		t.Errorf("what outlives the sessions (-want +got):\n%s", diff)
	}
	b.fence("ada")
	b.deleteAll(ada)
	if c := b.counts(ada); c.Total() != 0 {
		t.Errorf("left %+v", c)
	}
}

func TestDelete_OfATenant(t *testing.T) {
	b := full(t)
	b.must(b.worker.With(t.Context(), func(db pg.DB) error {
		for _, target := range [][]memd.Contribution{nil, {}} {
			if n, err := sessions.DeleteBatch(t.Context(), db, b.tenant.No, target, 100); n != 0 || err != nil {
				t.Errorf("an empty target deleted %d, %v", n, err)
			}
		}
		c, err := sessions.CountTenant(t.Context(), db, b.tenant.No)
		if diff := cmp.Diff(sessions.Counts{Sessions: 4, Events: 12, SessionState: 4, UserState: 4, AppState: 2}, c); diff != "" || err != nil {
			t.Errorf("counted, %v (-want +got):\n%s", err, diff)
		}
		if n, err := sessions.DeleteTenantBatch(t.Context(), db, b.tenant.No+1, 100); n != 0 || err != nil {
			t.Errorf("another tenant's: %d, %v", n, err)
		}
		for {
			n, err := sessions.DeleteTenantBatch(t.Context(), db, b.tenant.No, 5)
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
		}
		c, err = sessions.CountTenant(t.Context(), db, b.tenant.No)
		if c.Total() != 0 {
			t.Errorf("left %+v", c)
		}
		return err
	}))
}

// Events survive their session and come back when the id is used again.
func TestFailure_adk_python_2752_EventsComeBackWithTheID(t *testing.T) {
	b := full(t)
	of := b.number(id("ada", "s1"))
	b.buryContent(id("ada", "s1"))
	b.deleteAll(of)
	_, err := b.s.Create(t.Context(), b.tenant, id("ada", "s1"), nil, false)
	wantErr(t, err, memd.ErrSessionForgotten)
	_, err = b.s.Append(t.Context(), b.tenant, id("ada", "s1"), []sessions.Event{b.event("late", "x")}, time.Time{}, false)
	wantErr(t, err, memd.ErrSessionForgotten)
	// After the whole user went and came back, the id is a new session's.
	lift := b.fence("ada")
	b.deleteAll(memd.Contribution{Subject: of.Subject})
	b.sudo(`UPDATE memd.subjects SET retired_at = now() WHERE subject_no = $1`, of.Subject)
	lift()
	b.clock.advance(time.Second)
	if s := b.create(id("ada", "s9"), nil); len(s.State) != 1 || s.EventCount != 0 { // bob's app: entry
		t.Errorf("who came back starts with %+v", s)
	}
	_, err = b.s.Append(t.Context(), b.tenant, id("ada", "s9"), []sessions.Event{{ID: "old", Author: "user", Time: b.clock.Now().Add(-time.Hour)}}, time.Time{}, false)
	wantErr(t, err, memd.ErrErasedBefore)
	_, err = b.s.Append(t.Context(), b.tenant, id("ada", "s9"), []sessions.Event{{ID: "undated", Author: "user"}}, time.Time{}, false)
	wantErr(t, err, memd.ErrSourceTimeRequired)
	b.append(id("ada", "s9"), b.event("new", "x"))
	if got := fmt.Sprint(eventIDs(b.get(id("ada", "s9")))); got != "[new]" {
		t.Errorf("events %s", got)
	}
}

// Session delete ignores the owner: the numbers of one user's session never
// reach another's of the same id.
func TestFailure_adk_go_1195_DeleteIgnoresTheOwner(t *testing.T) {
	b := full(t)
	b.buryContent(id("ada", "s1"))
	b.deleteAll(b.number(id("ada", "s1")))
	if s := b.get(id("bob", "s1")); s.EventCount != 3 || len(s.Events) != 3 || s.State["k"] != `1` {
		t.Errorf("bob's session: %+v", s)
	}
	b.append(id("bob", "s1"), b.event("d", "x"))
	// Somebody who was never seen has nothing to delete, and takes nobody along.
	b.buryContent(id("eve", "s1"))
	if n := b.deleteAll(b.number(id("eve", "s1"))); n != 0 {
		t.Errorf("deleting a stranger's session deleted %d rows", n)
	}
}
