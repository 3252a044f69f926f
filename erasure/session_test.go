package erasure_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/shred"
)

func TestForgetSession_TakesThatSessionOnly(t *testing.T) {
	w := newWorld(t)
	a := w.add(
		said("alice", "s1", "in s1"), said("alice", "s2", "in s2"), said("alice", "", "outside"),
		contributed("alice", "s1", "shared from s1"), contributed("alice", "s2", "shared from s2"),
		said("bob", "s1", "bob in his own s1"),
	)
	drawnRows := w.add(
		drawn(memory.KindFact, user("alice"), "from s1 and s2", from(a[0]), from(a[1])),
		drawn(memory.KindFact, user("alice"), "from s2 alone", from(a[1])),
		drawn(memory.KindSummary, shared, "from s1 by name", fromSession("alice", "s1"), from(a[5])),
	)
	r := w.forgetSession("alice", "s1")
	want := []erasure.StoreCount{
		{Store: "memories", Before: 4}, {Store: "memories_derived", Before: 2}, {Store: "vectors", Before: 4}, {Store: "sessions", Before: 1},
	}
	if diff := cmp.Diff(want, something(r.Stores)); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	got := map[uuid.UUID]erasure.FallenRow{}
	for _, f := range r.Fallen {
		got[f.ID] = f
	}
	fallen := map[uuid.UUID]erasure.FallenRow{
		drawnRows[0]: {ID: drawnRows[0], Scope: user("alice"), Kind: memory.KindFact, Sources: []memory.Source{from(a[1])}},
		drawnRows[2]: {ID: drawnRows[2], Scope: shared, Kind: memory.KindSummary, Sources: []memory.Source{from(a[5])}},
	}
	if diff := cmp.Diff(fallen, got); diff != "" {
		t.Errorf("fallen (-want +got):\n%s", diff)
	}
	w.wants(user("alice"), "in s2", "outside", "from s2 alone")
	w.wants(user("bob"), "bob in his own s1")
	w.wants(shared, "shared from s2")

	// Refused for ever, whatever its time; her other sessions go on, without one.
	w.refused(said("alice", "s1", "late"), memd.ErrSessionForgotten)
	w.refused(at(said("alice", "s1", "late"), time.Now()), memd.ErrSessionForgotten)
	w.refused(contributed("alice", "s1", "late"), memd.ErrSessionForgotten)
	w.refused(drawn(memory.KindFact, user("alice"), "late", fromSession("alice", "s1")), memd.ErrSessionForgotten)
	w.add(at(said("alice", "s2", "goes on"), time.Time{}), at(said("alice", "s3", "new"), time.Time{}))
	w.wants(user("alice"), "in s2", "outside", "from s2 alone", "goes on", "new")

	again := w.forgetSession("alice", "s1")
	if len(something(again.Stores)) != 0 || again.FallenTotal != 0 {
		t.Errorf("the second time: %+v", again.Stores)
	}
	// One that was never seen, of somebody never seen: refused from now on.
	w.forgetSession("dora", "d1")
	w.refused(at(said("dora", "d1", "x"), time.Now()), memd.ErrSessionForgotten)
	w.add(said("dora", "d2", "dora"))
	w.wants(user("dora"), "dora")
}

func TestForgetSession_PuncturesBothOfItsLeavesAndNoOther(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "one"), said("alice", "s2", "two"))
	old := w.copyOf(w.tenant)
	w.forgetSession("alice", "s1")
	tree := w.openHead(w.tenant)
	defer tree.Zero()
	var alice memd.Number
	for _, s := range old.sessions {
		alice = s.subject
	}
	first, second := session(1), session(2)
	for _, c := range []struct {
		session memd.Number
		class   memd.Class
		gone    bool
	}{
		{first, memd.ClassContent, true},
		{first, memd.ClassMemory, true},
		{second, memd.ClassContent, false},
		{second, memd.ClassMemory, false},
		{memd.OwnScope, memd.ClassContent, false},
		{memd.OwnScope, memd.ClassMemory, false},
	} {
		_, err := tree.Derive(shred.SessionPath(alice, c.class, c.session))
		if errors.Is(err, memd.ErrShredded) != c.gone || !c.gone && err != nil {
			t.Errorf("session %v, class %v: %v, gone: want %v", c.session, c.class, err, c.gone)
		}
	}
	// Its id in an old copy of the directory does not open either; that of the
	// other does.
	keys := shred.NewKeys(w.openHead(w.tenant))
	defer keys.Drop()
	for _, s := range old.sessions {
		id, err := keys.OpenSessionID(s.subject, s.session, s.sealed)
		if gone := s.session == first; errors.Is(err, memd.ErrShredded) != gone || !gone && id != "s2" {
			t.Errorf("id of session %v: %q %v", s.session, id, err)
		}
	}
	if n := w.count(`SELECT count(*) FROM memd.sessions WHERE session_no = $1 AND sealed_id = '' AND state = 2`, first); n != 1 {
		t.Error("the session's stub still has its id")
	}
}

// session is the nth session number of a subject: (1,1) is its own scope.
func session(n memd.Number) memd.Number { return memd.OwnScope + n }

// From the first request after its tombstone committed nothing of the session is
// shown, on any replica and in any scope, long before its rows are deleted.
func TestForget_HidesAtOnce(t *testing.T) {
	for _, c := range []struct {
		name, session string
		step          erasure.Step
		alice         []string
	}{
		{"session", "s1", erasure.StepBury, []string{"in s2"}},
		{"user", "", erasure.StepFence, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			a := w.add(said("alice", "s1", "in s1"), said("alice", "s2", "in s2"), said("bob", "b1", "bob"), contributed("alice", "s1", "shared"))
			ids := w.add(
				drawn(memory.KindFact, user("bob"), "bob on alice", from(a[0]), from(a[2])),
				drawn(memory.KindSummary, shared, "summary", from(a[0]), from(a[2])),
			)
			w.wants(shared, "shared", "summary") // In memory on both replicas.
			w.wants(user("bob"), "bob", "bob on alice")
			w.wants(user("alice"), "in s1", "in s2")
			w.StopWorker()
			j := w.accept(w.tenant, "alice", c.session)
			if err := erasure.RunStep(t.Context(), w.runner(), j, c.step); err != nil {
				t.Fatal(err)
			}
			if n := w.count(`SELECT count(*) FROM memd.memories`); n != 6 {
				t.Fatalf("%d rows: the test is about those that are there", n)
			}
			w.wants(shared)
			w.wants(user("bob"), "bob")
			w.wants(user("alice"), c.alice...)
			for _, srv := range []*node.Server{w.a, w.b} {
				for scope, id := range map[memd.Scope]uuid.UUID{user("alice"): a[0], user("bob"): ids[0], shared: ids[1]} {
					if _, err := srv.Memory.Get(t.Context(), w.tenant, scope, id, false); !errors.Is(err, memd.ErrNotFound) {
						t.Errorf("getting a hidden row of %+v: %v", scope, err)
					}
				}
			}
			if c.session != "" {
				w.refused(said("alice", "s1", "late"), memd.ErrSessionForgotten)
				w.add(said("alice", "s2", "goes on"))
				return
			}
			w.refused(said("alice", "s1", "late"), memd.ErrFenced)
			w.refused(at(said("alice", "s9", "late"), time.Now()), memd.ErrFenced)
			res, err := w.b.Memory.Search(t.Context(), w.tenant, memory.Query{Scope: user("alice"), Vector: vector(), TopK: 5})
			if err != nil || !res.Fenced {
				t.Errorf("fenced: %v, %v", res.Fenced, err)
			}
		})
	}
}
