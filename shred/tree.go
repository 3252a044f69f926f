package shred

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"

	"forgettable.dev/memd"
)

// Key is one key of the tree or one derived from it: 256 secret bits.
type Key [32]byte

// Tree is one state (epoch) of a tenant's key tree, decoded: the fewest nodes
// that cover everything not erased, and the tenant's index key.
//
// A Tree does not change, apart from Zero. Reading it is safe for concurrent
// use; Zero must not run beside anything else.
type Tree struct {
	tenant   memd.TenantNo
	epoch    int64
	previous [32]byte
	index    Key
	digest   [32]byte

	// nodes is the trie in pre-order, which is also the order of the encoding.
	// A node is a hole (0), a key (^i, where i indexes keys), or a split: then
	// its left child follows it and the value is the index of the right one.
	// Flat slices and not linked nodes, because a state of 200,000 nodes is
	// copied at every rotation and has to be zeroed in one sweep.
	nodes []int32
	keys  []Key
}

const hole int32 = 0

// errInnerNode is a mistake of the caller's, never of the data.
var errInnerNode = errors.New("path is an inner node of the key tree, from which no key is taken")

// errPath refuses a path that no constructor built.
var errPath = &memd.InvalidError{Field: "path", Problem: "is not one of the key tree's"}

// NewTree makes epoch 1 of a tenant's tree: one root key and an index key, read
// from rand (crypto/rand.Reader outside tests).
func NewTree(tenant memd.TenantNo, rand io.Reader) (*Tree, error) {
	if tenant < 1 {
		return nil, &memd.InvalidError{Field: "tenant", Problem: "must be positive"}
	}
	t := &Tree{tenant: tenant, epoch: 1, nodes: []int32{^0}, keys: make([]Key, 1)}
	if _, err := io.ReadFull(rand, t.keys[0][:]); err != nil {
		return nil, fmt.Errorf("drawing the root key: %w", err)
	}
	if _, err := io.ReadFull(rand, t.index[:]); err != nil {
		return nil, fmt.Errorf("drawing the index key: %w", err)
	}
	t.name()
	return t, nil
}

// Tenant returns the tenant whose tree it is.
func (t *Tree) Tenant() memd.TenantNo { return t.tenant }

// Epoch returns the number of the state, from 1.
func (t *Tree) Epoch() int64 { return t.epoch }

// Previous returns the digest of the state before, zero for epoch 1.
func (t *Tree) Previous() [32]byte { return t.previous }

// Nodes returns the number of keys in the frontier.
func (t *Tree) Nodes() int { return len(t.keys) }

// Derive returns the key of a leaf. It returns memd.ErrShredded when the leaf
// or a node above it was punctured, memd.ErrStale after Zero, and an error that
// is neither for an inner node or a path that no constructor built.
func (t *Tree) Derive(p Path) (Key, error) {
	leaf, ok := p.leaf()
	if !ok {
		return Key{}, errPath
	}
	i, depth, err := t.find(p)
	if err != nil {
		return Key{}, err
	}
	switch n := t.nodes[i]; {
	case n == hole:
		return Key{}, memd.ErrShredded
	case n > 0 || !leaf:
		return Key{}, errInnerNode
	default:
		return descend(t.keys[^n], p[depth:]), nil
	}
}

// Erased reports whether nothing at or below p can be derived any more. Unlike
// Derive it answers for inner nodes too, so it is how to ask whether a subject
// is gone. It is false for an invalid path and after Zero.
func (t *Tree) Erased(p Path) bool {
	if !p.Valid() {
		return false
	}
	i, _, err := t.find(p)
	return err == nil && t.nodes[i] == hole
}

// find returns the deepest node on p's way and its depth.
func (t *Tree) find(p Path) (node int32, depth int, err error) {
	if len(t.nodes) == 0 {
		return 0, 0, memd.ErrStale
	}
	for depth < len(p) && t.nodes[node] > 0 {
		if p[depth] == '0' {
			node++
		} else {
			node = t.nodes[node]
		}
		depth++
	}
	return node, depth, nil
}

// Next returns the state of the following epoch, in which the paths are
// punctured: a deep copy that names t by its digest. Paths that are punctured
// already, are named twice or lie below one another do no harm. t stays usable.
func (t *Tree) Next(punctured []Path) (*Tree, error) {
	if len(t.nodes) == 0 {
		return nil, memd.ErrStale
	}
	paths, err := sortedPaths(punctured)
	if err != nil {
		return nil, err
	}
	b := builder{old: t, new: &Tree{
		tenant: t.tenant, epoch: t.epoch + 1, previous: t.Digest(), index: t.index,
		nodes: make([]int32, 0, len(t.nodes)+2*len(paths)),
		keys:  make([]Key, 0, len(t.keys)+8*len(paths)),
	}}
	b.copyNode(0, 0, paths)
	b.new.name()
	return b.new, nil
}

// sortedPaths checks, sorts and deduplicates. A path sorts right before the
// paths that it is a prefix of.
func sortedPaths(paths []Path) ([]Path, error) {
	for _, p := range paths {
		if !p.Valid() {
			return nil, errPath
		}
	}
	paths = slices.Clone(paths)
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

// builder writes the next state in one pre-order walk of the old one. Each
// method writes the subtree at depth; paths are the punctures inside it.
type builder struct {
	old, new *Tree
}

func (b *builder) copyNode(i int32, depth int, paths []Path) {
	n := b.old.nodes[i]
	switch {
	case n == hole:
		b.emit(hole)
	case n < 0:
		b.splitKey(&b.old.keys[^n], depth, paths)
	case len(paths) > 0 && len(paths[0]) == depth:
		b.emit(hole)
	default:
		at := b.emit(hole)
		left, right := fork(paths, depth)
		b.copyNode(i+1, depth+1, left)
		b.new.nodes[at] = int32(len(b.new.nodes))
		b.copyNode(n, depth+1, right)
		b.collapse(at)
	}
}

// splitKey replaces a key by the siblings along every path.
func (b *builder) splitKey(k *Key, depth int, paths []Path) {
	switch {
	case len(paths) == 0:
		b.emitKey(k)
	case len(paths[0]) == depth:
		b.emit(hole)
	default:
		at := b.emit(hole)
		left, right := fork(paths, depth)
		l, r := descend(*k, "0"), descend(*k, "1")
		b.splitKey(&l, depth+1, left)
		b.new.nodes[at] = int32(len(b.new.nodes))
		b.splitKey(&r, depth+1, right)
		l, r = Key{}, Key{}
		b.collapse(at)
	}
}

// collapse turns a split of two holes into one hole, so that every set of
// erased paths has one encoding and runs of old sessions cost nothing.
func (b *builder) collapse(at int) {
	n := b.new.nodes
	if n[at+1] == hole && n[n[at]] == hole {
		b.new.nodes = append(n[:at], hole)
	}
}

func (b *builder) emit(n int32) (at int) {
	b.new.nodes = append(b.new.nodes, n)
	return len(b.new.nodes) - 1
}

func (b *builder) emitKey(k *Key) {
	keys := b.new.keys
	if len(keys) == cap(keys) {
		// append would leave the smaller array behind with keys in it.
		grown := make([]Key, len(keys), 2*cap(keys)+64)
		copy(grown, keys)
		clear(keys)
		keys = grown
	}
	b.emit(^int32(len(keys)))
	b.new.keys = append(keys, *k)
}

// fork divides sorted paths that share their first depth bits and are longer.
func fork(paths []Path, depth int) (left, right []Path) {
	i := sort.Search(len(paths), func(i int) bool { return paths[i][depth] == '1' })
	return paths[:i], paths[i:]
}

// Digest names the state: SHA-256 of a label and its encoding. It may be
// public; the state has far too many unknown bits to be guessed.
func (t *Tree) Digest() [32]byte { return t.digest }

// name computes the digest of a state that is complete. It is computed once:
// hashing three megabytes takes as long as a proof.
func (t *Tree) name() {
	state := t.encode(nil)
	defer clear(state)
	t.digest = digestOf(state)
}

// digestOf is the digest of the state that is encoded so.
func digestOf(encoded []byte) (digest [32]byte) {
	h := sha256.New()
	h.Write([]byte(digestLabel))
	h.Write(encoded)
	h.Sum(digest[:0])
	return digest
}

// Zero overwrites every key and empties the tree; Derive and Next return
// memd.ErrStale afterwards. Best effort: Go may have left copies on stacks.
func (t *Tree) Zero() {
	clear(t.keys)
	t.index = Key{}
	t.nodes, t.keys = nil, nil
}

const (
	childLabel  = "memd/tree/child/v1"
	digestLabel = "memd/tree/state/v1"
)

const sha256Block = 64

var (
	innerPad = bytes.Repeat([]byte{0x36}, sha256Block)
	outerPad = bytes.Repeat([]byte{0x5c}, sha256Block)
)

// descend walks down from k along bits: child(k, b) is HMAC-SHA256(k, label ‖
// b). Written out, because crypto/hmac allocates and costs three times as much
// for a message that fits one block; a test holds it against crypto/hmac.
func descend(k Key, bits Path) Key {
	var inner [sha256Block + len(childLabel) + 1]byte
	var outer [sha256Block + sha256.Size]byte
	copy(inner[:], innerPad)
	copy(inner[sha256Block:], childLabel)
	copy(outer[:], outerPad)
	for _, b := range []byte(bits) {
		for i := range k {
			inner[i] = k[i] ^ 0x36
			outer[i] = k[i] ^ 0x5c
		}
		inner[len(inner)-1] = b - '0'
		sum := sha256.Sum256(inner[:])
		copy(outer[sha256Block:], sum[:])
		k = sha256.Sum256(outer[:])
	}
	clear(inner[:])
	clear(outer[:])
	return k
}
