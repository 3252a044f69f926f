package memory_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/memory"
)

// sealedColumns are a row's columns that nobody can read.
type sealedColumns struct{ Text, Vector, Metadata, Digest []byte }

func (b *bundle) sealed(id uuid.UUID) sealedColumns {
	return query(b, pgx.RowToStructByPos[sealedColumns],
		`SELECT sealed_text, sealed_vector, sealed_metadata, content_digest FROM memd.memories WHERE memory_id = $1`, id)[0]
}

func TestService_Update(t *testing.T) {
	b := setup(t)
	ada := user("ada")
	row := raw(ada, "s1", "tea")
	row.Metadata = map[string]string{"k": "v"}
	row.SourceTime, row.ExpiresAt = day(2025, time.May, 3), b.clock.Now().Add(time.Hour)
	never := time.Time{}
	for _, tc := range []struct {
		name string
		c    memory.Change
		want func(m *memory.Memory)
	}{
		{"a text keeps the metadata (mem0#5160)", memory.Change{Text: new("coffee")}, func(m *memory.Memory) { m.Text = "coffee" }},
		{"a vector keeps the text", memory.Change{Vector: &[]float32{0, 0, 3, 0}}, func(m *memory.Memory) { m.Vector = []float32{0, 0, 3, 0} }},
		{"metadata is replaced as a whole", memory.Change{Metadata: &map[string]string{"x": "y"}},
			func(m *memory.Memory) { m.Metadata = map[string]string{"x": "y"} }},
		{"metadata is cleared", memory.Change{Metadata: &map[string]string{}}, func(m *memory.Memory) { m.Metadata = nil }},
		{"the vector is cleared", memory.Change{Vector: &[]float32{}}, func(m *memory.Memory) { m.Vector = nil }},
		{"the text is cleared", memory.Change{Text: new("")}, func(m *memory.Memory) { m.Text = "" }},
		{"expiry is lifted", memory.Change{ExpiresAt: &never}, func(m *memory.Memory) { m.ExpiresAt = never }},
		{"source time", memory.Change{SourceTime: new(day(2025, time.May, 4))}, func(m *memory.Memory) { m.SourceTime = day(2025, time.May, 4) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := b.addOne(row)
			want := b.get(ada, a.ID)
			before := b.sealed(a.ID)
			tc.c.Expected = 1
			got := b.update(ada, a.ID, tc.c)
			tc.want(&want)
			want.Version = 2
			if tc.c.Text != nil || tc.c.Vector != nil || tc.c.Metadata != nil {
				want.Contributions = 2 // the user, outside any conversation
			}
			stored := b.get(ada, a.ID)
			want.UpdatedAt = stored.UpdatedAt
			if diff := cmp.Diff(want, stored); diff != "" {
				t.Errorf("memory (-want +got):\n%s", diff)
			}
			stored.Vector = nil
			if diff := cmp.Diff(stored, got); diff != "" {
				t.Errorf("answer (-stored +got):\n%s", diff)
			}
			after := b.sealed(a.ID)
			for _, c := range [][2][]byte{{before.Text, after.Text}, {before.Vector, after.Vector}, {before.Metadata, after.Metadata}} {
				if c[0] != nil && slices.Equal(c[0], c[1]) {
					t.Error("a sealed column was not sealed again")
				}
			}
		})
	}
}

func TestService_Update_refuses(t *testing.T) {
	b := setup(t)
	ada := user("ada")
	a := b.addOne(raw(ada, "s1", "tea"))
	other := b.Tenant("globex", memdtest.Policy())
	foreign, err := b.m.Add(t.Context(), other, []memory.Row{raw(ada, "s1", "x")})
	if err != nil {
		t.Fatal(err)
	}
	past := day(2020, time.May, 1)
	for name, tc := range map[string]struct {
		scope memd.Scope
		id    uuid.UUID
		c     memory.Change
		want  error
	}{
		"another version":      {ada, a.ID, memory.Change{Expected: 2, Text: new("x")}, memd.ErrVersionConflict},
		"no version":           {ada, a.ID, memory.Change{Text: new("x")}, memd.ErrInvalid},
		"another owner":        {user("bob"), a.ID, memory.Change{Expected: 1, Text: new("x")}, memd.ErrNotFound},
		"the shared scope":     {shared(), a.ID, memory.Change{Expected: 1, Text: new("x"), Impersonal: true}, memd.ErrNotFound},
		"another tenant's":     {ada, foreign[0].ID, memory.Change{Expected: 1, Text: new("x")}, memd.ErrNotFound},
		"nothing left":         {ada, a.ID, memory.Change{Expected: 1, Text: new(""), Vector: &[]float32{}}, memd.ErrInvalid},
		"another dimension":    {ada, a.ID, memory.Change{Expected: 1, Vector: &[]float32{1}}, memd.ErrInvalid},
		"expired already":      {ada, a.ID, memory.Change{Expected: 1, ExpiresAt: &past}, memd.ErrInvalid},
		"impersonal in a user": {ada, a.ID, memory.Change{Expected: 1, Text: new("x"), Impersonal: true}, memd.ErrInvalid},
		"shared, from nobody":  {shared(), a.ID, memory.Change{Expected: 1, Text: new("x")}, memd.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.m.Update(t.Context(), b.tenant, tc.scope, tc.id, tc.c)
			wantErr(t, err, tc.want)
		})
	}
	if m := b.get(ada, a.ID); m.Text != "tea" || m.Version != 1 {
		t.Errorf("memory = %+v", m)
	}
}

// Of two who read the same version one is refused, on whatever replica.
func TestService_Update_lostUpdates(t *testing.T) {
	b := setup(t)
	second, _ := b.Server()
	a := b.addOne(raw(user("ada"), "s1", "0"))
	conn, err := pgx.Connect(t.Context(), b.DB.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var won atomic.Int64
	const rounds, writers = 3, 6
	for round := range int64(rounds) {
		// All of them have read the row before one of them may write it.
		tx, err := conn.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), `SELECT FROM memd.memories WHERE memory_id = $1 FOR UPDATE`, a.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				m := []*memory.Service{b.m, second.Memory}[w%2]
				_, err := m.Update(t.Context(), b.tenant, user("ada"), a.ID, memory.Change{Expected: round + 1, Text: new("x")})
				if err == nil {
					won.Add(1)
				} else if !errors.Is(err, memd.ErrVersionConflict) {
					t.Errorf("Update: %v", err)
				}
			})
		}
		b.waitFor(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`, writers)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	}
	if won.Load() != rounds || b.get(user("ada"), a.ID).Version != rounds+1 {
		t.Errorf("%d updates won in %d rounds; version %d", won.Load(), rounds, b.get(user("ada"), a.ID).Version)
	}
}

func TestService_Update_sources(t *testing.T) {
	b := setup(t)
	src := b.add(raw(user("bob"), "s1", "1"), raw(user("cy"), "s1", "2"))
	a := b.addOne(raw(user("ada"), "s1", "x"))
	b.update(user("ada"), a.ID, memory.Change{Expected: 1, Text: new("y"), Sources: []memory.Source{of(src[0])}})
	b.update(user("ada"), a.ID, memory.Change{Expected: 2, Text: new("z"), Sources: []memory.Source{of(src[1]), {UserID: "ada", SessionID: "s2"}}})
	want := []memd.Contribution{
		b.number(user("ada"), "s1"), b.number(user("ada"), "s2"), b.number(user("bob"), "s1"), b.number(user("cy"), "s1"),
	}
	slices.SortFunc(want, memd.Contribution.Compare)
	if diff := cmp.Diff(want, b.closure(a.ID)); diff != "" {
		t.Errorf("closure (-want +got):\n%s", diff)
	}
	if m := b.get(user("ada"), a.ID); m.Text != "z" || m.Contributions != 4 {
		t.Errorf("memory = %+v", m)
	}

	s := b.addOne(memory.Row{Scope: shared(), Kind: memory.KindFact, Text: "x", Vector: unit(0), Impersonal: true})
	b.update(shared(), s.ID, memory.Change{Expected: 1, Text: new("y"), Impersonal: true})
	if n := len(b.closure(s.ID)); n != 1 {
		t.Errorf("an impersonal update left %d contributions", n)
	}
	b.update(shared(), s.ID, memory.Change{Expected: 2, Text: new("z"), Sources: []memory.Source{of(src[0])}})
	if got := b.closure(s.ID); len(got) != 2 || !slices.Contains(got, b.number(user("bob"), "s1")) {
		t.Errorf("closure = %v", got)
	}
	// Whoever an update drew on takes the row along.
	b.ForgetUser(b.srv, b.tenant, "app", "bob")
	_, err := b.m.Get(t.Context(), b.tenant, user("ada"), a.ID, false)
	wantErr(t, err, memd.ErrNotFound)
	_, err = b.m.Get(t.Context(), b.tenant, shared(), s.ID, false)
	wantErr(t, err, memd.ErrNotFound)
}

func TestService_Update_embedsAgain(t *testing.T) {
	b := setup(t, lexical)
	a := b.addOne(memory.Row{Scope: user("ada"), SessionID: "s1", Kind: memory.KindRaw, Text: "green tea"})
	score := func(text string) float32 {
		r := b.search(b.m, memory.Query{Scope: user("ada"), Text: text})
		if len(r.Hits) == 0 {
			return -1
		}
		return r.Hits[0].Score
	}
	if s := score("green tea"); s < 0.99 {
		t.Fatalf("score = %v", s)
	}
	b.update(user("ada"), a.ID, memory.Change{Expected: 1, Text: new("black coffee")})
	if s := score("black coffee"); s < 0.99 {
		t.Errorf("score of the new text = %v", s)
	}
	if s := score("green tea"); s > 0.5 {
		t.Errorf("score of the old text = %v", s)
	}
	b.update(user("ada"), a.ID, memory.Change{Expected: 2, Text: new("\t")})
	if s := score("black coffee"); s != -1 {
		t.Errorf("a text with nothing to see is found with %v", s)
	}
}

// A user who was once erased must say when new words were spoken.
func TestService_Update_onceErased(t *testing.T) {
	b := setup(t)
	b.addOne(raw(user("ada"), "s1", "old"))
	b.ForgetUser(b.srv, b.tenant, "app", "ada")
	_, err := b.m.Add(t.Context(), b.tenant, []memory.Row{raw(user("ada"), "s2", "new")})
	wantErr(t, err, memd.ErrSourceTimeRequired)
	r := raw(user("ada"), "s2", "new")
	r.SourceTime = day(2024, time.May, 1)
	_, err = b.m.Add(t.Context(), b.tenant, []memory.Row{r})
	wantErr(t, err, memd.ErrErasedBefore)
	r.SourceTime = b.clock.Now()
	a := b.addOne(r)

	_, err = b.m.Update(t.Context(), b.tenant, user("ada"), a.ID, memory.Change{Expected: 1, Text: new("newer")})
	wantErr(t, err, memd.ErrSourceTimeRequired)
	_, err = b.m.Update(t.Context(), b.tenant, user("ada"), a.ID, memory.Change{Expected: 1, Text: new("old"), SourceTime: new(day(2024, time.May, 1))})
	wantErr(t, err, memd.ErrErasedBefore)
	b.update(user("ada"), a.ID, memory.Change{Expected: 1, Text: new("newer"), SourceTime: new(b.clock.Now())})
	if got := b.all(user("ada")); len(got) != 1 || got[0].Text != "newer" {
		t.Errorf("all = %+v", got)
	}
}
