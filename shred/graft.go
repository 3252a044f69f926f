package shred

import (
	"crypto/subtle"
	"errors"
	"slices"
	"strings"

	"forgettable.dev/memd"
)

// errNotErased refuses a graft where nothing is missing, or where the source has
// nothing to give.
var errNotErased = errors.New("nothing to graft at the path")

// Graft returns the state of the epoch after t in which what lies at the paths
// is covered again, with the keys that source, an earlier state of the same
// tenant, has there, and everything else is as in t. Each path must be erased in
// t and not in source; none may lie below another. t and source stay usable.
func (t *Tree) Graft(source *Tree, paths []Path) (*Tree, error) {
	if len(t.nodes) == 0 || len(source.nodes) == 0 {
		return nil, memd.ErrStale
	}
	if source.tenant != t.tenant || source.epoch > t.epoch {
		return nil, corrupt("grafting from a tree that is not an earlier one of the tenant")
	}
	sorted, err := sortedPaths(paths)
	if err != nil {
		return nil, err
	}
	for i, p := range sorted {
		if !t.Erased(p) || source.Erased(p) || i > 0 && strings.HasPrefix(string(p), string(sorted[i-1])) {
			return nil, errNotErased
		}
	}
	g := grafter{source: source, builder: builder{old: t, new: &Tree{
		tenant: t.tenant, epoch: t.epoch + 1, previous: t.Digest(), index: t.index,
		nodes: make([]int32, 0, len(t.nodes)+512*len(sorted)),
		keys:  make([]Key, 0, len(t.keys)+64*len(sorted)),
	}}}
	g.node(0, 0, sorted)
	g.new.name()
	return g.new, nil
}

// grafter writes a state in one pre-order walk of the old one, as builder does.
type grafter struct {
	builder
	source *Tree
}

func (g *grafter) node(i int32, depth int, paths []Path) {
	n := g.old.nodes[i]
	switch {
	case len(paths) == 0:
		g.copyNode(i, depth, nil)
	case n == hole:
		g.fill(depth, paths)
	default: // A split: below a key nothing is erased.
		at := g.emit(hole)
		left, right := fork(paths, depth)
		g.node(i+1, depth+1, left)
		g.new.nodes[at] = int32(len(g.new.nodes))
		g.node(n, depth+1, right)
	}
}

// fill writes, in the place of a hole, what the source has at the paths.
func (g *grafter) fill(depth int, paths []Path) {
	if len(paths) == 0 {
		g.emit(hole)
		return
	}
	if p := paths[0]; len(p) == depth {
		i, found, _ := g.source.find(p)
		if n := g.source.nodes[i]; n < 0 {
			k := descend(g.source.keys[^n], p[found:])
			g.emitKey(&k)
			k = Key{}
			return
		}
		from := builder{old: g.source, new: g.new}
		from.copyNode(i, depth, nil)
		return
	}
	at := g.emit(hole)
	left, right := fork(paths, depth)
	g.fill(depth+1, left)
	g.new.nodes[at] = int32(len(g.new.nodes))
	g.fill(depth+1, right)
}

// ProveGraft proves that new is the state that must follow old when the paths
// come back from source and nothing else does:
//
//   - one tenant and index key, next epoch, previous digest that of old;
//   - what is missing in new is what was missing in old, without the paths, and
//     below the paths what is missing in source;
//   - every key of new is the one that source has, at or below a path, and the
//     one that old has everywhere else.
//
// Anything else gives memd.ErrCorrupt. Like ProveCover, it shares no code with
// what it proves but the child function.
func ProveGraft(old, source, new *Tree, paths []Path) error {
	if len(old.nodes) == 0 || len(source.nodes) == 0 || len(new.nodes) == 0 {
		return memd.ErrStale
	}
	switch {
	case new.tenant != old.tenant || source.tenant != old.tenant:
		return corrupt("proving a graft: another tenant's tree")
	case new.epoch != old.epoch+1 || source.epoch > old.epoch:
		return corrupt("proving a graft: not the next epoch")
	case new.previous != old.Digest():
		return corrupt("proving a graft: does not follow the old state")
	case subtle.ConstantTimeCompare(new.index[:], old.index[:]) != 1 || subtle.ConstantTimeCompare(source.index[:], old.index[:]) != 1:
		return corrupt("proving a graft: another index key")
	}
	missing := old.holes()
	for _, p := range paths {
		missing = without(missing, p)
		for _, h := range source.holes() {
			if strings.HasPrefix(string(h), string(p)) {
				missing = append(missing, h)
			}
		}
	}
	if !slices.Equal(union(missing), new.holes()) {
		return corrupt("proving a graft: something else came back, or not all that was to")
	}
	return new.eachKey(func(at Path, k *Key) error {
		from := old
		if below(at, paths) {
			from = source
		}
		i, depth, err := from.find(at)
		if err != nil {
			return err
		}
		n := from.nodes[i]
		if n >= 0 {
			return corrupt("proving a graft: a key that no state has")
		}
		want := descend(from.keys[^n], at[depth:])
		defer func() { want = Key{} }()
		if subtle.ConstantTimeCompare(want[:], k[:]) != 1 {
			return corrupt("proving a graft: a key that is another than it was")
		}
		return nil
	})
}

// without returns the paths for what is missing when p is there again: what
// lies at or below p goes, and a hole above it leaves the siblings along the way.
func without(missing []Path, p Path) []Path {
	var left []Path
	for _, h := range missing {
		switch {
		case strings.HasPrefix(string(h), string(p)):
		case strings.HasPrefix(string(p), string(h)):
			for i := len(h); i < len(p); i++ {
				left = append(left, p[:i]+Path([]byte{'0' + '1' - p[i]}))
			}
		default:
			left = append(left, h)
		}
	}
	return left
}

// eachKey calls f for every key of the state, with its path.
func (t *Tree) eachKey(f func(at Path, k *Key) error) error {
	at := make([]byte, 0, maxPathBits)
	var walk func(i int32) error
	walk = func(i int32) error {
		n := t.nodes[i]
		if n < 0 {
			return f(Path(at), &t.keys[^n])
		}
		if n == hole {
			return nil
		}
		at = append(at, '0')
		err := walk(i + 1)
		at[len(at)-1] = '1'
		if err == nil {
			err = walk(n)
		}
		at = at[:len(at)-1]
		return err
	}
	return walk(0)
}

// below reports whether a path lies at or below one of others.
func below(at Path, others []Path) bool {
	return slices.ContainsFunc(others, func(p Path) bool { return strings.HasPrefix(string(at), string(p)) })
}
