package memory_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/fault"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/memory"
)

// broken is a memd with one replica behind a wire that breaks.
type broken struct {
	t        *testing.T
	s        *memdtest.Stack
	fuse     *fault.Fuse
	sound, b *node.Server
	tenant   memory.Tenant
	n        int
}

func newBroken(t *testing.T) *broken {
	t.Helper()
	b := &broken{t: t, s: memdtest.Start(t), fuse: &fault.Fuse{}}
	wire, err := fault.OpenWire(b.fuse, b.s.DB.URL(node.AppRole))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wire.Close)
	b.sound, _ = b.s.Server()
	b.b, _ = b.s.ServerWith(func(c *node.ServerConfig) { c.DatabaseURL = wire.URL })
	b.tenant = b.s.Tenant("acme", memdtest.Policy())
	return b
}

// person is a user that no other run has touched.
func (b *broken) person() memd.Scope {
	b.n++
	return memd.Scope{App: "app", UserID: fmt.Sprintf("user%d", b.n)}
}

// list returns texts and versions of a scope as the sound replica has them.
func (b *broken) list(scope memd.Scope) (texts []string, versions []int64) {
	b.t.Helper()
	page, err := b.sound.Memory.List(b.t.Context(), b.tenant, scope, memory.Filter{}, 100, "", false)
	if err != nil {
		b.t.Fatal(err)
	}
	slices.SortFunc(page.Memories, func(x, y memory.Memory) int { return slices.Compare([]byte(x.Text), []byte(y.Text)) })
	for _, m := range page.Memories {
		texts, versions = append(texts, m.Text), append(versions, m.Version)
	}
	return texts, versions
}

// sweep breaks run off at each statement in each mode, until k is not reached.
// begin prepares a run; check looks at what is left of it and finishes it.
func (b *broken) sweep(what string, begin func() (run func(*memory.Service) error, check func(lost bool))) {
	b.t.Helper()
	for _, mode := range fault.Modes {
		k, noise := 1, 0
		for {
			run, check := begin()
			b.fuse.Arm(k, mode)
			err := run(b.b.Memory)
			_, blown := b.fuse.Blown()
			b.fuse.Disarm()
			check(err != nil)
			if b.t.Failed() {
				b.t.Fatalf("first failure: %s, %s statement %d", what, mode, k)
			}
			if !blown && err == nil {
				break
			}
			if blown {
				k++
			} else if noise++; noise > 50 { // A connection that was cut the time before.
				b.t.Fatalf("%s: nothing broke, and yet: %v", what, err)
			}
		}
		b.t.Logf("%s: %s each of %d statements", what, mode, k-1)
	}
}

// Invariant 5 for Add: broken off anywhere, it stored all of a batch or nothing,
// and adding the same again ends in the same state.
func TestService_Add_crashSweep(t *testing.T) {
	b := newBroken(t)
	b.sweep("Add", func() (func(*memory.Service) error, func(bool)) {
		scope := b.person()
		rows := []memory.Row{
			{Scope: scope, SessionID: "s1", Kind: memory.KindRaw, Text: "one", Vector: []float32{1, 0, 0, 0}, EventID: "e1"},
			{Scope: scope, SessionID: "s2", Kind: memory.KindRaw, Text: "two", Vector: []float32{1, 0, 0, 0}, EventID: "e2"},
			{Scope: scope, SessionID: "s1", Kind: memory.KindFact, Text: "fact", Vector: []float32{1, 0, 0, 0}, EventID: "e3",
				Sources: []memory.Source{{UserID: scope.UserID, SessionID: "s2"}}},
		}
		run := func(m *memory.Service) error {
			_, err := m.Add(t.Context(), b.tenant, rows)
			return err
		}
		all := []string{"fact", "one", "two"}
		check := func(lost bool) {
			t.Helper()
			if got, _ := b.list(scope); len(got) != 0 && !slices.Equal(got, all) || !lost && len(got) == 0 {
				t.Errorf("stored %q (an error: %v)", got, lost)
			}
			if err := run(b.sound.Memory); err != nil {
				t.Errorf("adding again: %v", err)
			}
			got, versions := b.list(scope)
			if diff := cmp.Diff(all, got); diff != "" || !slices.Equal(versions, []int64{1, 1, 1}) {
				t.Errorf("versions %v, rows:\n%s", versions, diff)
			}
		}
		return run, check
	})
}

// Invariant 5 for Update: the row is the old or the new one, whole, and says by
// its version which.
func TestService_Update_crashSweep(t *testing.T) {
	b := newBroken(t)
	b.sweep("Update", func() (func(*memory.Service) error, func(bool)) {
		scope := b.person()
		added, err := b.sound.Memory.Add(t.Context(), b.tenant, []memory.Row{
			{Scope: scope, SessionID: "s1", Kind: memory.KindRaw, Text: "old", Vector: []float32{1, 0, 0, 0}, SourceTime: time.Now()},
			{Scope: scope, SessionID: "s2", Kind: memory.KindRaw, Text: "source", Vector: []float32{1, 0, 0, 0}, SourceTime: time.Now()},
		})
		if err != nil {
			t.Fatal(err)
		}
		change := memory.Change{
			Expected: 1, Text: new("new"), Vector: &[]float32{0, 1, 0, 0}, Sources: []memory.Source{{MemoryID: added[1].ID}},
		}
		run := func(m *memory.Service) error {
			_, err := m.Update(t.Context(), b.tenant, scope, added[0].ID, change)
			return err
		}
		check := func(lost bool) {
			t.Helper()
			m := b.get(scope, added[0].ID)
			switch {
			case m.Version == 1 && m.Text == "old" && m.Vector[0] == 1 && m.Contributions == 1 && lost:
				if err := run(b.sound.Memory); err != nil {
					t.Errorf("updating again: %v", err)
				}
			case m.Version == 2 && m.Text == "new" && m.Vector[1] == 1 && m.Contributions == 2:
				if err := run(b.sound.Memory); !errors.Is(err, memd.ErrVersionConflict) {
					t.Errorf("updating again: %v", err)
				}
			default:
				t.Errorf("row %+v (an error: %v)", m, lost)
			}
			if m = b.get(scope, added[0].ID); m.Version != 2 || m.Text != "new" {
				t.Errorf("in the end %+v", m)
			}
		}
		return run, check
	})
}

func (b *broken) get(scope memd.Scope, id uuid.UUID) memory.Memory {
	b.t.Helper()
	m, err := b.sound.Memory.Get(b.t.Context(), b.tenant, scope, id, true)
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}
