package erasure_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/memory"
)

func isError(err, want error) bool { return errors.Is(err, want) }

func TestForgetUser_TakesAllOfTheirsAndNothingElse(t *testing.T) {
	w := newWorld(t)
	a := w.add(
		said("alice", "s1", "alice in s1"),
		said("alice", "s2", "alice in s2"),
		said("alice", "", "alice outside sessions"),
		contributed("alice", "s1", "alice shared"),
	)
	b := w.add(
		said("bob", "b1", "bob in b1"),
		said("bob", "", "bob outside sessions"),
		contributed("bob", "b1", "bob shared"),
	)
	c := w.add(said("carol", "c1", "carol in c1"))
	own := w.add(drawn(memory.KindFact, user("alice"), "fact about alice", from(a[0])))
	bobs := w.add(
		drawn(memory.KindFact, user("bob"), "bob on alice", from(b[0]), from(a[3])),
		drawn(memory.KindFact, user("bob"), "bob on bob", from(b[0])),
	)
	group := w.add(
		drawn(memory.KindSummary, shared, "alice and bob", from(a[0]), from(b[0]), fromSession("bob", "b1"), fromSession("alice", "s2")),
		drawn(memory.KindSummary, shared, "bob and carol", from(b[2]), from(c[0])),
	)
	// Alice is in it by way of the summary alone.
	top := w.add(drawn(memory.KindSummary, shared, "of summaries", from(group[0]), from(group[1]), from(c[0])))

	alice := w.Keys(w.a, w.tenant).UserRef(app, "alice")
	number := w.count(`SELECT subject_no FROM memd.subjects WHERE tenant_no = $1 AND user_ref = $2`, w.tenant.No, alice[:])
	sql := `SELECT (SELECT count(*) FROM memd.memories WHERE owner_no = $1 OR contributor_no = $1)
	             + (SELECT count(*) FROM memd.memory_contributions WHERE contributor_no = $1)`
	if n := w.count(sql, number); n < 8 {
		t.Fatalf("%d rows and contributions before", n)
	}
	r := w.forgetUser("alice")
	if n := w.count(sql, number); n != 0 {
		t.Errorf("%d rows and contributions left in the tables", n)
	}
	counts := []erasure.StoreCount{
		{Store: "memories", Before: 8}, {Store: "memories_derived", Before: 4}, {Store: "vectors", Before: 8}, {Store: "sessions", Before: 2},
	}
	if diff := cmp.Diff(counts, something(r.Stores)); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	fallen := []erasure.FallenRow{
		{ID: bobs[0], Scope: user("bob"), Kind: memory.KindFact, Sources: []memory.Source{from(b[0])}},
		{ID: group[0], Scope: shared, Kind: memory.KindSummary, Sources: []memory.Source{from(b[0]), fromSession("bob", "b1")}},
		{ID: top[0], Scope: shared, Kind: memory.KindSummary, Sources: []memory.Source{from(group[1]), from(c[0])}},
	}
	byID := cmpopts.SortSlices(func(a, b erasure.FallenRow) bool { return a.ID.String() < b.ID.String() })
	if diff := cmp.Diff(fallen, r.Fallen, byID); diff != "" || r.FallenTotal != 3 {
		t.Errorf("fallen (%d) (-want +got):\n%s", r.FallenTotal, diff)
	}
	if r.Key.Epoch != 2 || !strings.HasSuffix(r.Key.Version, "/1") || r.Key.Unreadable.IsZero() || !r.Key.DestroyedForGood.After(r.Key.Unreadable) {
		t.Errorf("destruction %+v", r.Key)
	}
	w.wants(user("alice"))
	w.wants(user("bob"), "bob in b1", "bob outside sessions", "bob on bob")
	w.wants(user("carol"), "carol in c1")
	w.wants(shared, "bob shared", "bob and carol")
	for _, id := range append(append(a, own...), bobs[0], group[0], top[0]) {
		for _, scope := range []memd.Scope{user("alice"), user("bob"), shared} {
			if _, err := w.b.Memory.Get(t.Context(), w.tenant, scope, id, false); !errors.Is(err, memd.ErrNotFound) {
				t.Errorf("getting a row that fell: %v", err)
			}
		}
	}
	if strings.Contains(w.Logs.String(), "alice") {
		t.Error("the log names whom it forgot")
	}
}

// The report of an erasure must not become a list of names again: sources that
// were forgotten since are left out of it.
func TestReport_NamesNobodyWhoWasForgottenSince(t *testing.T) {
	w := newWorld(t)
	a := w.add(said("alice", "s1", "one"))
	b := w.add(said("bob", "b1", "two"))
	w.add(drawn(memory.KindFact, user("bob"), "both", from(a[0]), fromSession("bob", "b1"), from(b[0])))
	id := uuid.New()
	ask := func() erasure.Report {
		t.Helper()
		r, err := w.a.Erasure.ForgetUser(t.Context(), w.caller(), app, "alice", id)
		if err != nil || r.State != erasure.StateDone || len(r.Fallen) != 1 {
			t.Fatalf("report %+v, %v", r, err)
		}
		return r
	}
	if f := ask().Fallen[0]; f.Scope != user("bob") || len(f.Sources) != 2 {
		t.Errorf("fallen %+v", f)
	}
	w.forgetUser("bob")
	if f := ask().Fallen[0]; f.Scope.UserID != "" || len(f.Sources) != 1 || f.Sources[0].SessionID != "" {
		t.Errorf("after bob went as well: %+v", f)
	}
}

func TestForgetUser_NeverSeen(t *testing.T) {
	w := newWorld(t)
	w.add(said("bob", "b1", "bob"))
	r := w.forgetUser("nobody")
	for _, s := range r.Stores {
		if s.Before != 0 || s.After != 0 {
			t.Errorf("%+v", s)
		}
	}
	if r.Key != (erasure.Destruction{}) || r.FallenTotal != 0 {
		t.Errorf("report %+v", r)
	}
	w.wants(user("bob"), "bob")
	// What was said before counts, even though memd did not know them then.
	w.refused(said("nobody", "late", "late"), memd.ErrErasedBefore)
}

func TestForgetUser_LeavesTheNamesakeOfAnotherTenantAndApp(t *testing.T) {
	w := newWorld(t)
	globex := w.Tenant("globex", memdtest.Policy())
	w.add(said("alice", "s1", "of acme"))
	w.addTo(globex, said("alice", "s1", "of globex"))
	other := said("alice", "s1", "of another app")
	other.Scope.App = "mail"
	w.add(other)
	w.forgetUser("alice")
	w.wants(user("alice"))
	w.wants(other.Scope, "of another app")
	if diff := cmp.Diff([]string{"of globex"}, w.textsOf(globex, user("alice"))); diff != "" {
		t.Error(diff)
	}
}

// chroma#583, chroma#948: an empty filter deletes nothing, and neither does
// what reads like one.
func TestForget_RefusesWhatNamesNobody(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"))
	long := strings.Repeat("x", memd.MaxIDBytes+1)
	for _, id := range []string{"", "*", "%", "**", long} {
		_, err := w.a.Erasure.ForgetUser(t.Context(), w.caller(), app, id, uuid.New())
		wantInvalid(t, err, "user_id")
		_, err = w.a.Erasure.ForgetUser(t.Context(), w.caller(), id, "alice", uuid.New())
		wantInvalid(t, err, "app")
		_, err = w.a.Erasure.ForgetSession(t.Context(), w.caller(), app, "alice", id, uuid.New())
		wantInvalid(t, err, "session_id")
		_, err = w.a.Erasure.ForgetSession(t.Context(), w.caller(), app, id, "s1", uuid.New())
		wantInvalid(t, err, "user_id")
	}
	_, err := w.a.Erasure.ForgetUser(t.Context(), w.caller(), app, "alice", uuid.Nil)
	wantInvalid(t, err, "request_id")
	w.forgetUser("a%")
	w.forgetUser("a*e")
	w.forgetUser("_lice")
	w.wants(user("alice"), "alice")
	if n := w.count(`SELECT count(*) FROM memd.erasures`); n != 3 {
		t.Errorf("%d requests were accepted", n)
	}
	for _, row := range []memory.Row{said("*", "s", "x"), said("alice", "%", "x"), contributed("*", "s", "x")} {
		w.refused(row, memd.ErrInvalid)
	}
}

func wantInvalid(t *testing.T, err error, field string) {
	t.Helper()
	var bad *memd.InvalidError
	if !errors.As(err, &bad) || bad.Field != field {
		t.Errorf("%v, want an invalid %s", err, field)
	}
}

func TestForget_IsIdempotentByRequestID(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"), said("bob", "s1", "bob"))
	id := uuid.New()
	var first erasure.Report
	var mu sync.Mutex
	var group sync.WaitGroup
	for i := range 8 { // The first eight come at once, by both replicas.
		group.Go(func() {
			srv := []*node.Server{w.a, w.b}[i%2]
			r, err := srv.Erasure.ForgetUser(t.Context(), w.caller(), app, "alice", id)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || r.State != erasure.StateDone {
				t.Errorf("%v %v", r.State, err)
			}
			first = r
		})
	}
	group.Wait()
	again, err := w.a.Erasure.ForgetUser(t.Context(), w.caller(), app, "alice", id)
	if diff := cmp.Diff(first, again); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if n := w.count(`SELECT count(*) FROM memd.rotations WHERE state = 7`); n != 1 {
		t.Errorf("%d rotations for one request", n)
	}
	for what, call := range map[string]func() (erasure.Report, error){
		"another user": func() (erasure.Report, error) { return w.a.Erasure.ForgetUser(t.Context(), w.caller(), app, "bob", id) },
		"another app": func() (erasure.Report, error) {
			return w.a.Erasure.ForgetUser(t.Context(), w.caller(), "mail", "alice", id)
		},
		"a session": func() (erasure.Report, error) {
			return w.a.Erasure.ForgetSession(t.Context(), w.caller(), app, "alice", "s1", id)
		},
	} {
		if _, err := call(); !errors.Is(err, memd.ErrRequestReused) {
			t.Errorf("the id for %s: %v", what, err)
		}
	}
	w.wants(user("bob"), "bob")
	// Another tenant's request of that id is another request.
	globex := w.Tenant("globex", memdtest.Policy())
	w.addTo(globex, said("bob", "s1", "bob of globex"))
	if _, err := w.a.Erasure.ForgetUser(t.Context(), erasure.Caller{Tenant: globex.No}, app, "bob", id); err != nil {
		t.Error(err)
	}
	w.wants(user("bob"), "bob")
	if got := w.textsOf(globex, user("bob")); len(got) != 0 {
		t.Errorf("left in globex: %q", got)
	}
}

func TestForgetUser_TwoRequestsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"), said("bob", "s1", "bob"))
	var group sync.WaitGroup
	for i := range 3 {
		group.Go(func() {
			srv := w.a
			if i%2 == 1 {
				srv = w.b
			}
			r, err := srv.Erasure.ForgetUser(t.Context(), w.caller(), app, "alice", uuid.New())
			if err != nil || r.State != erasure.StateDone {
				t.Errorf("%v %v", r.State, err)
			}
		})
	}
	group.Wait()
	w.wants(user("alice"))
	w.wants(user("bob"), "bob")
	if n := w.count(`SELECT count(*) FROM memd.fences WHERE state <> 3`); n != 0 {
		t.Errorf("%d fences are up for good", n)
	}
}
