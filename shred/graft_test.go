package shred_test

import (
	"errors"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// Exactly what lies at the paths comes back, with the keys that it had: nothing
// that was erased before it, with it, after it or below it.
func TestTree_Graft(t *testing.T) {
	r, u := newRand(t), newUniverse(t)
	grafted, below1 := 0, 0
	for range 200 {
		before := next(t, newTree(t), u.some(r, 12)...)
		wrong := []shred.Path{u.subjects[r.IntN(len(u.subjects))]}
		if r.IntN(3) == 0 {
			wrong = []shred.Path{u.leaves[r.IntN(len(u.leaves))]}
		}
		if before.Erased(wrong[0]) {
			continue
		}
		grafted++
		batch := append(u.some(r, 12), wrong...)
		head := next(t, next(t, before, batch...), u.some(r, 6)...)
		now, err := head.Graft(before, wrong)
		if err != nil {
			t.Fatal(err)
		}
		if err := shred.ProveGraft(head, before, now, wrong); err != nil {
			t.Fatalf("%v: %v", wrong, err)
		}
		for _, p := range u.leaves {
			from := head
			if below(p, wrong) {
				from = before
				if before.Erased(p) {
					below1++
				}
			}
			want, wantErr := from.Derive(p)
			got, err := now.Derive(p)
			if got != want || !errors.Is(err, wantErr) {
				t.Fatalf("%s after %v came back: %v, want %v", p, wrong, err, wantErr)
			}
		}
		other := u.leaves[r.IntN(len(u.leaves))]
		if below(other, wrong) || before.Erased(other) || !head.Erased(other) {
			continue
		}
		more, err := head.Graft(before, append([]shred.Path{other}, wrong...))
		if err != nil {
			t.Fatal(err)
		}
		if err := shred.ProveGraft(head, before, more, wrong); !errors.Is(err, memd.ErrCorrupt) {
			t.Errorf("%s came back with %v: %v", other, wrong, err)
		}
		if err := shred.ProveGraft(head, before, next(t, head), wrong); !errors.Is(err, memd.ErrCorrupt) {
			t.Errorf("%v did not come back: %v", wrong, err)
		}
		strange, err := shred.NewTree(7, &strangeReader)
		if err != nil {
			t.Fatal(err)
		}
		if err := shred.ProveGraft(head, strange, now, wrong); !errors.Is(err, memd.ErrCorrupt) {
			t.Errorf("a source with another index key: %v", err)
		}
	}
	if grafted < 60 || below1 == 0 {
		t.Errorf("%d grafts, %d paths below them that were dead before", grafted, below1)
	}
}

var strangeReader = constReader(99)

func TestTree_GraftRefuses(t *testing.T) {
	u := newUniverse(t)
	first := newTree(t)
	dead := next(t, first, u.subjects[0])
	later := next(t, dead, u.subjects[1])
	for what, err := range map[string]error{
		"what is there":             second(later.Graft(first, []shred.Path{u.subjects[2]})),
		"what the source lacks":     second(later.Graft(dead, []shred.Path{u.subjects[0]})),
		"a source that comes later": second(dead.Graft(later, []shred.Path{u.subjects[1]})),
	} {
		if err == nil {
			t.Errorf("grafting %s: no error", what)
		}
	}
}

func second(_ *shred.Tree, err error) error { return err }
