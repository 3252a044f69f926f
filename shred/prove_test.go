package shred_test

import (
	"bytes"
	"errors"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

func TestProveCover_AcceptsWhatNextMakes(t *testing.T) {
	r, u := newRand(t), newUniverse(t)
	for range 60 {
		old := next(t, newTree(t), u.some(r, 20)...)
		paths := u.some(r, 20)
		if err := shred.ProveCover(old, next(t, old, paths...), paths); err != nil {
			t.Fatalf("puncturing %v: %v", paths, err)
		}
	}
}

func TestProveCover_CatchesANeighbourTooManyOrTooFew(t *testing.T) {
	r, u := newRand(t), newUniverse(t)
	caught := 0
	for range 200 {
		old := next(t, newTree(t), u.some(r, 20)...)
		asked := u.some(r, 10)
		other := u.leaves[r.IntN(len(u.leaves))]
		if below(other, asked) || old.Erased(other) {
			continue
		}
		caught++
		more := append([]shred.Path{other}, asked...)
		if err := shred.ProveCover(old, next(t, old, more...), asked); !errors.Is(err, memd.ErrCorrupt) {
			t.Fatalf("%s was lost with %v: %v", other, asked, err)
		}
		if err := shred.ProveCover(old, next(t, old, asked...), more); !errors.Is(err, memd.ErrCorrupt) {
			t.Fatalf("%s was left beside %v: %v", other, asked, err)
		}
	}
	if caught < 50 {
		t.Fatalf("only %d of 200 rounds tried anything", caught)
	}
}

func TestProveCover_RefusesAStateThatDoesNotFollow(t *testing.T) {
	u := newUniverse(t)
	old := next(t, newTree(t), u.leaves[1])
	paths := []shred.Path{u.leaves[5]}
	good := marshal(t, next(t, old, paths...))
	edited := func(edit func(b []byte)) *shred.Tree {
		b := bytes.Clone(good)
		edit(b)
		tree, err := shred.UnmarshalTree(b)
		if err != nil {
			t.Fatal(err)
		}
		return tree
	}
	other, err := shred.NewTree(7, bytes.NewReader(bytes.Repeat([]byte{9}, 64)))
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]*shred.Tree{
		"itself":            old,
		"two epochs on":     next(t, next(t, old, paths...)),
		"another tenant":    edited(func(b []byte) { b[8]++ }),
		"another epoch":     edited(func(b []byte) { b[16]++ }),
		"another digest":    edited(func(b []byte) { b[17]++ }),
		"another index key": edited(func(b []byte) { b[49]++ }),
		"another root":      next(t, next(t, other, u.leaves[1]), paths...),
	}
	// Every key of the frontier is held against the old state, the last included.
	keys := len(good) - 32*next(t, old, paths...).Nodes()
	for at := keys; at < len(good); at += 32 {
		cases["a key that derives from nothing"] = edited(func(b []byte) { b[at]++ })
		for name, tree := range cases {
			if err := shred.ProveCover(old, tree, paths); !errors.Is(err, memd.ErrCorrupt) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if err := shred.ProveCover(old, edited(func([]byte) {}), paths); err != nil {
		t.Errorf("control: %v", err)
	}
	if err := shred.ProveCover(old, edited(func([]byte) {}), []shred.Path{"0"}); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("a path that is none: %v", err)
	}
}

func BenchmarkProveCover10k(b *testing.B) {
	r := newRand(b)
	old := next(b, newTree(b), tenThousand(b, r)...)
	paths := tenThousand(b, r)[:100]
	following := next(b, old, paths...)
	for b.Loop() {
		if err := shred.ProveCover(old, following, paths); err != nil {
			b.Fatal(err)
		}
	}
}
