package shred

import (
	"crypto/subtle"
	"slices"
	"strings"

	"forgettable.dev/memd"
)

// ProveCover proves that new is the state that must follow old, and that
// destroying old loses exactly what was to be erased:
//
//   - same tenant and index key, next epoch, previous digest that of old;
//   - every node of new derives from old;
//   - cover(old) = cover(new) ∪ punctured: no neighbour is lost with the
//     punctured paths, and none of them can still be derived.
//
// Anything else gives memd.ErrCorrupt, and old must not be destroyed. It shares
// no code with Next but the child function and the check that a path is one:
// what is compared is the list of holes, computed from the old list and the
// paths alone.
func ProveCover(old, new *Tree, punctured []Path) error {
	if len(old.nodes) == 0 || len(new.nodes) == 0 {
		return memd.ErrStale
	}
	for _, p := range punctured {
		if !p.Valid() {
			return errPath
		}
	}
	switch {
	case new.tenant != old.tenant:
		return corrupt("proving cover: another tenant's tree")
	case new.epoch != old.epoch+1:
		return corrupt("proving cover: not the next epoch")
	case new.previous != old.Digest():
		return corrupt("proving cover: does not follow the old state")
	case subtle.ConstantTimeCompare(new.index[:], old.index[:]) != 1:
		return corrupt("proving cover: another index key")
	}
	got, listed := []Path(nil), make(chan struct{})
	go func() { defer close(listed); got = new.holes() }()
	want := union(append(old.holes(), punctured...))
	<-listed
	if !slices.Equal(want, got) {
		if covers(want, got) {
			return corrupt("proving cover: a path that was to be punctured is still covered")
		}
		return corrupt("proving cover: more was punctured than was asked for")
	}
	p := proof{old: old, new: new}
	return p.node(0, 0, nil)
}

// holes lists the paths of the holes, in order. They share one string: there are
// tens of thousands.
func (t *Tree) holes() []Path {
	var all []byte
	var ends []int
	at := make([]byte, 0, maxPathBits)
	var walk func(i int32)
	walk = func(i int32) {
		switch n := t.nodes[i]; {
		case n == hole:
			all = append(all, at...)
			ends = append(ends, len(all))
		case n > 0:
			at = append(at, '0')
			walk(i + 1)
			at[len(at)-1] = '1'
			walk(n)
			at = at[:len(at)-1]
		}
	}
	walk(0)
	found, shared, begin := make([]Path, len(ends)), string(all), 0
	for i, end := range ends {
		found[i], begin = Path(shared[begin:end]), end
	}
	return found
}

// union returns the fewest paths that stand for the same leaves as paths:
// without those below another, and with the parent for two siblings.
func union(paths []Path) []Path {
	slices.Sort(paths)
	var u []Path
	for _, p := range paths {
		if len(u) > 0 && strings.HasPrefix(string(p), string(u[len(u)-1])) {
			continue
		}
		u = append(u, p)
		for len(u) > 1 && siblings(u[len(u)-2], u[len(u)-1]) {
			u = u[:len(u)-1]
			u[len(u)-1] = u[len(u)-1][:len(u[len(u)-1])-1]
		}
	}
	return u
}

func siblings(a, b Path) bool {
	n := len(a) - 1
	return n >= 0 && len(b) == n+1 && a[:n] == b[:n] && a[n] == '0' && b[n] == '1'
}

// covers reports whether every path of inner lies at or below one of outer.
func covers(outer, inner []Path) bool {
	set := make(map[Path]bool, len(outer))
	for _, p := range outer {
		set[p] = true
	}
	for _, p := range inner {
		n := 0
		for n <= len(p) && !set[p[:n]] {
			n++
		}
		if n > len(p) {
			return false
		}
	}
	return true
}

// proof walks both states at once, to derive each key of the new one.
type proof struct {
	old, new *Tree
}

// node checks the new subtree at n against the old one, which is the subtree
// at o or, below a key of the old state, whatever derives from that key.
func (p *proof) node(n, o int32, derived *Key) error {
	kind := p.new.nodes[n]
	if kind == hole {
		return nil
	}
	if derived == nil {
		switch in := p.old.nodes[o]; {
		case in == hole:
			return corrupt("proving cover: a key for what was erased before")
		case in < 0:
			derived = &p.old.keys[^in]
		case kind < 0:
			return corrupt("proving cover: a key that the old state does not have")
		default:
			if err := p.node(n+1, o+1, nil); err != nil {
				return err
			}
			return p.node(kind, in, nil)
		}
	}
	if kind < 0 {
		if subtle.ConstantTimeCompare(p.new.keys[^kind][:], derived[:]) != 1 {
			return corrupt("proving cover: a key that does not derive from the old state")
		}
		return nil
	}
	left, right := descend(*derived, "0"), descend(*derived, "1")
	defer func() { left, right = Key{}, Key{} }()
	if err := p.node(n+1, 0, &left); err != nil {
		return err
	}
	return p.node(kind, 0, &right)
}
