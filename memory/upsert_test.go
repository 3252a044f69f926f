package memory_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/memory"
)

func event(scope memd.Scope, session, id, text string) memory.Row {
	r := raw(scope, session, text)
	r.EventID = id
	return r
}

func TestService_Add_upsert(t *testing.T) {
	b := setup(t)
	ada := user("ada")
	remove := func(a memory.Added) {
		if _, err := b.m.Delete(t.Context(), b.tenant, ada, a.ID, false); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name    string
		between func(memory.Added)
		again   string
		want    memory.Added // without its id
		text    string       // "" when gone
	}{
		{"the same is unchanged", func(memory.Added) {}, "one", memory.Added{Version: 1, Status: memory.StatusUnchanged}, "one"},
		{"other content replaces it", func(memory.Added) {}, "two", memory.Added{Version: 2, Status: memory.StatusUpdated}, "two"},
		{"an update is not reverted", func(a memory.Added) {
			b.update(ada, a.ID, memory.Change{Expected: 1, Text: new("edited")})
		}, "one", memory.Added{Version: 2, Status: memory.StatusKept}, "edited"},
		{"nor by other content", func(a memory.Added) {
			b.update(ada, a.ID, memory.Change{Expected: 1, Text: new("edited")})
		}, "two", memory.Added{Version: 2, Status: memory.StatusKept}, "edited"},
		{"a delete is for good (stella#671)", remove, "one", memory.Added{Status: memory.StatusDeleted}, ""},
		{"for other content too", remove, "two", memory.Added{Status: memory.StatusDeleted}, ""},
		{"in a later month it is the same", func(memory.Added) { b.clock.advance(40 * 24 * time.Hour) }, "one",
			memory.Added{Version: 1, Status: memory.StatusUnchanged}, "one"},
		{"in a later month it is replaced", func(memory.Added) { b.clock.advance(40 * 24 * time.Hour) }, "two",
			memory.Added{Version: 2, Status: memory.StatusUpdated}, "two"},
	} {
		for _, session := range []string{"s1", ""} { // an update adds the user's own scope to the one, nothing to the other
			t.Run(tc.name+" in session '"+session+"'", func(t *testing.T) {
				id := uuid.NewString()
				a := b.addOne(event(ada, session, id, "one"))
				if a.Status != memory.StatusCreated || a.Version != 1 {
					t.Fatalf("first: %+v", a)
				}
				month := b.month(a.ID)
				tc.between(a)
				tc.want.ID = a.ID
				got := b.add(raw(ada, "s1", "beside"), event(ada, session, id, tc.again))
				if diff := cmp.Diff(tc.want, got[1]); diff != "" || got[0].Status != memory.StatusCreated {
					t.Errorf("again (-want +got):\n%s%+v", diff, got[0])
				}
				m, err := b.m.Get(t.Context(), b.tenant, ada, a.ID, false)
				if tc.text == "" {
					wantErr(t, err, memd.ErrNotFound)
				} else if err != nil || m.Text != tc.text || m.Version != tc.want.Version || b.month(a.ID) != month {
					t.Errorf("memory = %+v, %v; month %v, before %v", m, err, b.month(a.ID), month)
				}
			})
		}
	}
}

// Two concurrent adds of the same event make one row (mem0#6515).
func TestService_Add_sameEventAtOnce(t *testing.T) {
	b := setup(t)
	second, _ := b.Server()
	const writers = 8
	for round := range 5 {
		id := uuid.NewString()
		var mu sync.Mutex
		count := map[memory.Status]int{}
		rows := map[uuid.UUID]bool{}
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				m := b.m
				if w%2 == 0 {
					m = second.Memory
				}
				out, err := m.Add(t.Context(), b.tenant, []memory.Row{event(user("new"+id), "s1", id, "the same")})
				if err != nil {
					t.Errorf("Add: %v", err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				count[out[0].Status]++
				rows[out[0].ID] = true
			})
		}
		wg.Wait()
		if count[memory.StatusCreated] != 1 || count[memory.StatusUnchanged] != writers-1 || len(rows) != 1 {
			t.Errorf("round %d: %v, %d ids", round, count, len(rows))
		}
		if n := len(b.all(user("new" + id))); n != 1 {
			t.Errorf("round %d: %d rows", round, n)
		}
	}
}

func TestService_Add_eventIDsAreTheSessionsOwn(t *testing.T) {
	b := setup(t)
	contributor := func(app, u, s string) memory.Row {
		return memory.Row{
			Scope: memd.Scope{App: app}, Kind: memory.KindRaw, Text: "x", Vector: unit(0), EventID: "e",
			Contributor: &memory.Contributor{UserID: u, SessionID: s},
		}
	}
	impersonal := contributor("app", "", "")
	impersonal.Contributor, impersonal.Impersonal = nil, true
	rows := []memory.Row{
		event(user("ada"), "s1", "e", "x"), event(user("ada"), "s2", "e", "x"), event(user("ada"), "", "e", "x"),
		event(user("bob"), "s1", "e", "x"), event(memd.Scope{App: "other", UserID: "ada"}, "s1", "e", "x"),
		contributor("app", "ada", "s1"), contributor("app", "ada", "s2"), contributor("app", "ada", ""),
		contributor("app", "bob", "s1"), contributor("other", "ada", "s1"), impersonal,
	}
	seen := map[uuid.UUID]bool{}
	for _, a := range b.add(rows...) {
		if a.Status != memory.StatusCreated || seen[a.ID] {
			t.Errorf("%+v came twice", a)
		}
		seen[a.ID] = true
	}
	other := b.Tenant("globex", memdtest.Policy())
	foreign, err := b.m.Add(t.Context(), other, rows[:1])
	if err != nil || seen[foreign[0].ID] {
		t.Errorf("another tenant's: %+v, %v", foreign, err)
	}
	for _, a := range b.add(rows...) {
		if a.Status != memory.StatusUnchanged || !seen[a.ID] {
			t.Errorf("again: %+v", a)
		}
	}
	_, err = b.m.Add(t.Context(), b.tenant, []memory.Row{rows[0], rows[1], rows[0]})
	wantErr(t, err, memd.ErrInvalid)
}

func TestService_Add_derivedEvents(t *testing.T) {
	b := setup(t)
	src := b.add(raw(user("ada"), "s1", "1"), raw(user("bob"), "s1", "2"))
	row := summary(user("ada"), of(src[0]), of(src[1]))
	row.EventID = "e"
	a := b.addOne(row)
	if again := b.addOne(row); again.ID != a.ID || again.Status != memory.StatusUnchanged {
		t.Errorf("again: %+v", again)
	}
	row.Text, row.Sources = "other", row.Sources[:1]
	if again := b.addOne(row); again.ID != a.ID || again.Status != memory.StatusKept {
		t.Errorf("with other content: %+v", again)
	}
	if n := len(b.closure(a.ID)); n != 2 {
		t.Errorf("%d contributions", n)
	}
	if m := b.get(user("ada"), a.ID); m.Text != "summary" {
		t.Errorf("text = %q", m.Text)
	}
}

func TestService_Add_limits(t *testing.T) {
	b := setup(t)
	many := func(n int, f func(i int) memory.Row) []memory.Row {
		out := make([]memory.Row, n)
		for i := range out {
			out[i] = f(i)
		}
		return out
	}
	names := func(i int) memory.Row { return raw(user(uuid.NewString()), "s1", "x") }
	one := func(i int) memory.Row { return raw(user("ada"), "s1", "x") }
	for name, tc := range map[string]struct {
		rows []memory.Row
		ok   bool
	}{
		"none":        {nil, false},
		"a batch":     {many(memd.MaxBatch, one), true},
		"above":       {many(memd.MaxBatch+1, one), false},
		"subjects":    {many(memd.MaxSubjects, names), true},
		"one above":   {many(memd.MaxSubjects+1, names), false},
		"a NUL":       {[]memory.Row{raw(memd.Scope{App: "a\x00", UserID: "u"}, "s1", "x")}, false},
		"no UTF-8":    {[]memory.Row{raw(memd.Scope{App: "a\xff", UserID: "u"}, "s1", "x")}, false},
		"bytes in id": {[]memory.Row{raw(user("u\x00\xff"), "s\x00\xff", "x\x00\xff")}, true},
		"dimension":   {[]memory.Row{{Scope: user("a"), Kind: memory.KindRaw, Text: "x", Vector: []float32{1, 2, 3}}}, false},
		"zero vector": {[]memory.Row{{Scope: user("a"), Kind: memory.KindRaw, Text: "x", Vector: make([]float32, 4)}}, false},
		"expired":     {[]memory.Row{{Scope: user("a"), Kind: memory.KindRaw, Text: "x", Vector: unit(0), ExpiresAt: b.clock.Now()}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			before := b.count(`SELECT count(*) FROM memd.memories`)
			_, err := b.m.Add(t.Context(), b.tenant, tc.rows)
			if tc.ok && err != nil {
				t.Error(err)
			} else if !tc.ok {
				wantErr(t, err, memd.ErrInvalid)
			}
			if n := b.count(`SELECT count(*) FROM memd.memories`); !tc.ok && n != before {
				t.Errorf("%d rows were written", n-before)
			}
		})
	}
}

// A text with nothing to see is kept and never found; it does not fail its batch.
func TestService_Add_nothingToEmbed(t *testing.T) {
	b := setup(t, lexical)
	row := func(text string) memory.Row {
		return memory.Row{Scope: user("ada"), SessionID: "s1", Kind: memory.KindRaw, Text: text}
	}
	b.add(row("tea"), row("…"), row(" \n"), row("\x01"), row("coffee"))
	if n := len(b.all(user("ada"))); n != 5 {
		t.Errorf("%d rows", n)
	}
	r := b.search(b.m, memory.Query{Scope: user("ada"), Text: "tea"})
	if len(r.Hits) < 2 || r.Hits[0].Memory.Text != "tea" {
		t.Errorf("hits: %+v", r.Hits)
	}
	for _, h := range r.Hits {
		if h.Memory.Text == " \n" || h.Memory.Text == "\x01" {
			t.Errorf("found %q", h.Memory.Text)
		}
	}
	_, err := b.m.Search(t.Context(), b.tenant, memory.Query{Scope: user("ada"), Text: " ", TopK: 1})
	wantErr(t, err, memd.ErrInvalid)
}
