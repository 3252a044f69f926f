package memory_test

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/memory"
)

// fill adds n raw rows in batches and returns their ids in the order of List.
func (b *bundle) fill(scope memd.Scope, n int) []uuid.UUID {
	b.t.Helper()
	for from := 0; from < n; from += memd.MaxBatch {
		rows := make([]memory.Row, min(n-from, memd.MaxBatch))
		for i := range rows {
			rows[i] = raw(scope, fmt.Sprint("s", (from+i)%10), fmt.Sprint(from+i))
			rows[i].Metadata = map[string]string{"n": fmt.Sprint((from + i) % 100)}
		}
		b.add(rows...)
	}
	var out []uuid.UUID
	for _, m := range b.all(scope) {
		out = append(out, m.ID)
	}
	if len(out) != n {
		b.t.Fatalf("%d rows are listed of %d", len(out), n)
	}
	return out
}

// Every row that is there from the first page to the last comes exactly once
// and in one order, above every page size (mem0#6627), while others are added
// and deleted and all are updated.
func TestService_List_stable(t *testing.T) {
	b := setup(t)
	ada := user("ada")
	order := b.fill(ada, 1001)
	for _, size := range []int{memd.MaxPageSize, 333, 100} {
		t.Run(fmt.Sprint("pages of ", size), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(size)))
			gone := map[uuid.UUID]bool{}
			var got []uuid.UUID
			token := ""
			for pages := 1; ; pages++ {
				p, err := b.m.List(t.Context(), b.tenant, ada, memory.Filter{}, size, token, false)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range p.Memories {
					got = append(got, m.ID)
				}
				if token = p.Next; token == "" {
					break
				}
				if len(p.Memories) != size || pages > 30 {
					t.Fatalf("page %d has %d rows", pages, len(p.Memories))
				}
				b.addOne(raw(ada, "s1", "added meanwhile"))
				victim := order[r.IntN(len(order))]
				gone[victim] = true
				b.delete(ada, victim, false)
				if id := order[r.IntN(len(order))]; !gone[id] {
					b.update(ada, id, memory.Change{Expected: b.get(ada, id).Version, Text: new("updated")})
				}
			}
			at := 0
			for _, id := range order {
				switch {
				case at < len(got) && got[at] == id:
					at++
				case !gone[id]:
					t.Fatalf("a row is missing, or out of its order, at %d", at)
				}
			}
			seen := map[uuid.UUID]bool{}
			for _, id := range got {
				if seen[id] {
					t.Fatal("a row came twice")
				}
				seen[id] = true
			}
			order = slices.DeleteFunc(order, func(id uuid.UUID) bool { return gone[id] })
		})
	}
}

func TestService_List_filters(t *testing.T) {
	b := setup(t)
	ada := user("ada")
	b.fill(ada, 300)
	old := raw(ada, "s3", "old")
	old.SourceTime = day(2025, time.March, 1)
	a := b.addOne(old)
	fact := b.addOne(summary(ada, of(a)))
	for _, tc := range []struct {
		name string
		f    memory.Filter
		want int
	}{
		{"a session", memory.Filter{SessionIDs: []string{"s3"}}, 32}, // the old one and its summary too
		{"two sessions", memory.Filter{SessionIDs: []string{"s1", "s2", "never"}}, 60},
		{"a session never seen", memory.Filter{SessionIDs: []string{"never"}}, 0},
		{"metadata", memory.Filter{Metadata: map[string]string{"n": "7"}}, 3},
		{"metadata and session", memory.Filter{Metadata: map[string]string{"n": "7"}, SessionIDs: []string{"s7"}}, 3},
		{"metadata that nobody has", memory.Filter{Metadata: map[string]string{"n": "7", "x": ""}}, 0},
		{"kinds", memory.Filter{Kinds: []memory.Kind{memory.KindSummary, memory.KindFact}}, 1},
		{"before", memory.Filter{To: day(2025, time.April, 1)}, 1},
		{"its first instant", memory.Filter{From: old.SourceTime, To: old.SourceTime.Add(time.Microsecond)}, 1},
		{"up to it", memory.Filter{To: old.SourceTime}, 0},
		{"everything", memory.Filter{}, 302},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, size := range []int{1000, 7} {
				n, token := 0, ""
				for {
					p, err := b.m.List(t.Context(), b.tenant, ada, tc.f, size, token, false)
					if err != nil {
						t.Fatal(err)
					}
					n += len(p.Memories)
					if token = p.Next; token == "" {
						break
					}
				}
				if n != tc.want {
					t.Errorf("pages of %d: %d rows, want %d", size, n, tc.want)
				}
			}
			r := b.search(b.m, memory.Query{Scope: ada, Filter: tc.f})
			if len(r.Hits) != tc.want {
				t.Errorf("Search finds %d, want %d", len(r.Hits), tc.want)
			}
		})
	}
	if m := b.get(ada, fact.ID); !slices.Equal(m.SessionIDs, []string{"s3"}) {
		t.Errorf("sessions of the summary = %v", m.SessionIDs)
	}
}

func TestService_List_refuses(t *testing.T) {
	b := setup(t)
	b.fill(user("ada"), 3)
	p, err := b.m.List(t.Context(), b.tenant, user("ada"), memory.Filter{}, 1, "", false)
	if err != nil || p.Next == "" {
		t.Fatalf("%+v, %v", p, err)
	}
	for name, token := range map[string]string{
		"no base64": "?", "too short": "AAAA", "too long": p.Next + "AAAA", "a huge time": base64.RawURLEncoding.EncodeToString(slices.Repeat([]byte{0xff}, 24)),
		"with padding": p.Next + "=", "not canonical": p.Next[:len(p.Next)-1] + "\n" + p.Next[len(p.Next)-1:],
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.m.List(t.Context(), b.tenant, user("ada"), memory.Filter{}, 1, token, false)
			wantErr(t, err, memd.ErrInvalid)
		})
	}
	for _, size := range []int{0, -1, memd.MaxPageSize + 1} {
		_, err := b.m.List(t.Context(), b.tenant, user("ada"), memory.Filter{}, size, "", false)
		wantErr(t, err, memd.ErrInvalid)
	}
	// A token is a place in an order, not a permission: with another scope it
	// shows that scope.
	p, err = b.m.List(t.Context(), b.tenant, user("bob"), memory.Filter{}, 1, p.Next, false)
	if err != nil || len(p.Memories) != 0 || p.Next != "" {
		t.Errorf("another scope: %+v, %v", p, err)
	}
}
