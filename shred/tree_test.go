package shred_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// newRand returns a generator whose seed is logged, to repeat a failure with.
func newRand(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func number(t testing.TB, generation, counter int64) memd.Number {
	t.Helper()
	n, err := memd.NewNumber(generation, counter)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// constReader is a source of "randomness" that is the same for every test.
type constReader byte

func (r *constReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(*r)
		*r++
	}
	return len(p), nil
}

func newTree(t testing.TB) *shred.Tree {
	t.Helper()
	tree, err := shred.NewTree(7, new(constReader))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func next(t testing.TB, tree *shred.Tree, paths ...shred.Path) *shred.Tree {
	t.Helper()
	n, err := tree.Next(paths)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func marshal(t testing.TB, tree *shred.Tree) []byte {
	t.Helper()
	b, err := tree.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// universe is every path of a small tenant: 12 subjects in two generations
// with 6 sessions each and their own scope, 24 months, 10 jobs.
type universe struct {
	subjects, leaves []shred.Path
}

func newUniverse(t testing.TB) universe {
	var u universe
	for s := range int64(12) {
		subject := number(t, 1+s/8, 1+s)
		u.subjects = append(u.subjects, shred.SubjectPath(subject))
		for c := range int64(7) {
			for _, class := range []memd.Class{memd.ClassContent, memd.ClassMemory} {
				u.leaves = append(u.leaves, shred.SessionPath(subject, class, number(t, 1+c/5, 1+c)))
			}
		}
	}
	for m := range memd.Month(12) {
		for _, class := range []memd.Class{memd.ClassContent, memd.ClassMemory} {
			u.leaves = append(u.leaves, shred.MonthPath(class, 670+m))
		}
	}
	for j := range int64(10) {
		u.leaves = append(u.leaves, shred.JobPath(number(t, 1, 1+j)))
	}
	return u
}

// some returns up to n paths of the universe, subjects among them.
func (u universe) some(r *rand.Rand, n int) []shred.Path {
	var paths []shred.Path
	for range r.IntN(n + 1) {
		if r.IntN(4) == 0 {
			paths = append(paths, u.subjects[r.IntN(len(u.subjects))])
		} else {
			paths = append(paths, u.leaves[r.IntN(len(u.leaves))])
		}
	}
	return paths
}

func below(p shred.Path, punctured []shred.Path) bool {
	return slices.ContainsFunc(punctured, func(q shred.Path) bool { return strings.HasPrefix(string(p), string(q)) })
}

func TestTree_PunctureChangesNoOtherKey(t *testing.T) {
	r, u := newRand(t), newUniverse(t)
	first := newTree(t)
	for range 60 {
		tree, all := first, []shred.Path(nil)
		for range 1 + r.IntN(4) {
			paths := u.some(r, 12)
			all = append(all, paths...)
			tree = next(t, tree, paths...)
		}
		for _, p := range u.leaves {
			want, err := first.Derive(p)
			if err != nil {
				t.Fatal(err)
			}
			got, err := tree.Derive(p)
			switch {
			case below(p, all) && !errors.Is(err, memd.ErrShredded):
				t.Fatalf("%s was punctured and derives: %v", p, err)
			case !below(p, all) && (err != nil || got != want):
				t.Fatalf("%s was not punctured and changed: %v", p, err)
			}
			if tree.Erased(p) != below(p, all) {
				t.Fatalf("%s: erased is %v", p, tree.Erased(p))
			}
		}
	}
}

func TestTree_DerivesByHMAC(t *testing.T) {
	r, u := newRand(t), newUniverse(t)
	tree := newTree(t)
	// The root key is the first 32 bytes that the reader gave.
	var root [32]byte
	_, _ = new(constReader).Read(root[:])
	for range 200 {
		p := u.leaves[r.IntN(len(u.leaves))]
		want := root[:]
		for _, b := range []byte(p) {
			h := hmac.New(sha256.New, want)
			h.Write([]byte("memd/tree/child/v1"))
			h.Write([]byte{b - '0'})
			want = h.Sum(nil)
		}
		got, err := tree.Derive(p)
		if err != nil || !bytes.Equal(got[:], want) {
			t.Fatalf("%s derives to another key than crypto/hmac's: %v", p, err)
		}
	}
}

func TestTree_OrderDoesNotMatter(t *testing.T) {
	r, u := newRand(t), newUniverse(t)
	first := newTree(t)
	for range 60 {
		paths := u.some(r, 30)
		once := next(t, next(t, first, paths...))
		r.Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
		cut := r.IntN(len(paths) + 1)
		twice := next(t, next(t, first, paths[:cut]...), append(paths[cut:], paths[:cut/2]...)...)
		if diff := cmp.Diff(frontier(t, once), frontier(t, twice)); diff != "" {
			t.Fatalf("another order gave another frontier:\n%s", diff)
		}
	}
}

func TestTree_SubjectDropsItsDescendants(t *testing.T) {
	r, u := newRand(t), newUniverse(t)
	first := newTree(t)
	for range 30 {
		s := u.subjects[r.IntN(len(u.subjects))]
		var sessions []shred.Path
		for _, p := range u.leaves {
			if below(p, []shred.Path{s}) && r.IntN(2) == 0 {
				sessions = append(sessions, p)
			}
		}
		direct := next(t, next(t, first), s)
		detour := next(t, next(t, first, sessions...), s)
		if diff := cmp.Diff(frontier(t, direct), frontier(t, detour)); diff != "" {
			t.Fatalf("sessions left something behind:\n%s", diff)
		}
	}
}

func TestTree_NodesAreNoAncestorsOfPunctured(t *testing.T) {
	r, u := newRand(t), newUniverse(t)
	for range 60 {
		paths := u.some(r, 30)
		nodes := frontier(t, next(t, newTree(t), paths...))
		for p, kind := range nodes {
			for _, q := range paths {
				if kind == "key" && (strings.HasPrefix(string(q), p) || strings.HasPrefix(p, string(q))) {
					t.Fatalf("state has a key at %s, and %s is punctured", p, q)
				}
			}
		}
	}
}

func TestTree_EveryPathIsCoveredOnce(t *testing.T) {
	r, u := newRand(t), newUniverse(t)
	for range 30 {
		nodes := frontier(t, next(t, newTree(t), u.some(r, 30)...))
		for _, p := range u.leaves {
			n := 0
			for q := range nodes {
				if strings.HasPrefix(string(p), q) {
					n++
				}
			}
			if n != 1 {
				t.Fatalf("%s is under %d nodes", p, n)
			}
		}
	}
}

func TestTree_RefusesWhatIsNoLeaf(t *testing.T) {
	subject := number(t, 1, 5)
	tree := newTree(t)
	for _, p := range []shred.Path{"", "0", "1", "10", "11", "0x1", "0102", shred.SubjectPath(0), shred.SessionPath(subject, 2, subject), shred.SessionPath(subject, 1, 0), shred.MonthPath(1, 0), shred.SubjectPath(subject) + "0"} {
		if _, err := tree.Derive(p); !errors.Is(err, memd.ErrInvalid) {
			t.Errorf("derive %q: %v", p, err)
		}
		if _, err := tree.Next([]shred.Path{p}); !errors.Is(err, memd.ErrInvalid) {
			t.Errorf("puncture %q: %v", p, err)
		}
		if _, err := shred.ParsePath(string(p)); !errors.Is(err, memd.ErrCorrupt) {
			t.Errorf("parse %q: %v", p, err)
		}
		if tree.Erased(p) {
			t.Errorf("%q is said to be erased", p)
		}
	}
	p := shred.SubjectPath(subject)
	if _, err := tree.Derive(p); err == nil || errors.Is(err, memd.ErrShredded) {
		t.Errorf("an inner node's key was given: %v", err)
	}
	if _, err := next(t, tree, p).Derive(p); !errors.Is(err, memd.ErrShredded) {
		t.Errorf("a punctured inner node: %v", err)
	}
}

func TestTree_Zero(t *testing.T) {
	tree := newTree(t)
	tree.Zero()
	if _, err := tree.Derive(shred.MonthPath(1, 1)); !errors.Is(err, memd.ErrStale) {
		t.Errorf("derive: %v", err)
	}
	if _, err := tree.Next(nil); !errors.Is(err, memd.ErrStale) {
		t.Errorf("next: %v", err)
	}
	if _, err := tree.MarshalBinary(); !errors.Is(err, memd.ErrStale) {
		t.Errorf("marshal: %v", err)
	}
}

func TestPath_LeavesArePrefixFree(t *testing.T) {
	r, u := newRand(t), newUniverse(t)
	paths := slices.Clone(u.leaves)
	random := func() memd.Number {
		return number(t, 1+r.Int64N(memd.MaxGeneration)>>r.IntN(22), 1+r.Int64N(memd.MaxCounter)>>r.IntN(40))
	}
	for range 3000 {
		paths = append(paths,
			shred.SessionPath(random(), memd.Class(r.IntN(2)), random()),
			shred.MonthPath(memd.Class(r.IntN(2)), memd.Month(1+r.Int32N(90000))),
			shred.JobPath(random()))
	}
	slices.Sort(paths)
	paths = slices.Compact(paths)
	for i, p := range paths {
		if got, err := shred.ParsePath(string(p)); err != nil || got != p || !p.Leaf() {
			t.Fatalf("%s is not parsed as a leaf: %v", p, err)
		}
		if i > 0 && strings.HasPrefix(string(p), string(paths[i-1])) {
			t.Fatalf("%s is a prefix of %s", paths[i-1], p)
		}
	}
	longest := number(t, memd.MaxGeneration, memd.MaxCounter)
	if p := shred.SessionPath(longest, 1, longest); !p.Leaf() || !shred.JobPath(longest).Leaf() {
		t.Errorf("the longest path, %d bits, is refused", len(p))
	}
}
