package shred

import (
	"encoding/binary"
	"fmt"
	"math"

	"forgettable.dev/memd"
)

// The encoding of a state, big-endian:
//
//	1   format version
//	8   tenant
//	8   epoch
//	32  digest of the previous state
//	32  index key
//	4   number of nodes
//	…   kinds of the nodes in pre-order, two bits each, first node in the high
//	    bits, the last byte filled with zeros
//	…   keys of the key nodes in the same order, 32 bytes each
//
// A state has one encoding and an encoding one state: a split with two holes,
// bits that stand for nothing, and bytes too many or too few are refused. It is
// not compressed, because nearly all of it is random: the kinds are 2 % of it.
const (
	treeFormat = 1

	treeHeaderBytes = 1 + 8 + 8 + 32 + 32 + 4

	kindHole  = 0
	kindKey   = 1
	kindSplit = 2
)

// corrupt says what does not verify, without saying anything of its content.
func corrupt(what string) error { return fmt.Errorf("%s: %w", what, memd.ErrCorrupt) }

// MarshalBinary returns the canonical encoding of the state: key bytes in
// clear, for SealTree alone. Clear it after use. It returns memd.ErrStale after
// Zero.
func (t *Tree) MarshalBinary() ([]byte, error) {
	if len(t.nodes) == 0 {
		return nil, memd.ErrStale
	}
	return t.encode(nil), nil
}

// encode appends to prefix in one allocation, so that no half-grown copy of
// the keys is left behind.
func (t *Tree) encode(prefix []byte) []byte {
	kinds := (len(t.nodes) + 3) / 4
	b := make([]byte, 0, len(prefix)+treeHeaderBytes+kinds+len(t.keys)*len(Key{}))
	b = append(b, prefix...)
	b = append(b, treeFormat)
	b = binary.BigEndian.AppendUint64(b, uint64(t.tenant))
	b = binary.BigEndian.AppendUint64(b, uint64(t.epoch))
	b = append(b, t.previous[:]...)
	b = append(b, t.index[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(t.nodes)))
	at := len(b)
	b = b[:at+kinds]
	for i, n := range t.nodes {
		kind := byte(kindSplit)
		switch {
		case n == hole:
			kind = kindHole
		case n < 0:
			kind = kindKey
		}
		b[at+i/4] |= kind << (6 - i%4*2)
	}
	for i := range t.keys {
		b = append(b, t.keys[i][:]...)
	}
	return b
}

// UnmarshalTree decodes what MarshalBinary encoded, and nothing else: every
// other input gives memd.ErrCorrupt. It keeps no reference to data, which the
// caller should clear.
func UnmarshalTree(data []byte) (*Tree, error) {
	if len(data) < treeHeaderBytes {
		return nil, corrupt("tree is too short")
	}
	if data[0] != treeFormat {
		return nil, corrupt("tree has an unknown format")
	}
	tenant, epoch := binary.BigEndian.Uint64(data[1:]), binary.BigEndian.Uint64(data[9:])
	if tenant == 0 || tenant > math.MaxInt64 || epoch == 0 || epoch > math.MaxInt64 {
		return nil, corrupt("tree has no tenant or epoch")
	}
	t := &Tree{tenant: memd.TenantNo(tenant), epoch: int64(epoch)}
	copy(t.previous[:], data[17:])
	copy(t.index[:], data[49:])
	count := uint64(binary.BigEndian.Uint32(data[81:]))
	rest := data[treeHeaderBytes:]
	// Checked before anything is allocated: count is the input's word only.
	if count == 0 || count > math.MaxInt32 || (count+3)/4 > uint64(len(rest)) {
		return nil, corrupt("tree has too few nodes")
	}
	kinds, keys := rest[:(count+3)/4], rest[(count+3)/4:]

	d := decoder{kinds: kinds, count: int(count), tree: t}
	t.nodes = make([]int32, 0, count)
	if err := d.node(0); err != nil {
		return nil, err
	}
	if len(t.nodes) != d.count {
		return nil, corrupt("tree has nodes too many")
	}
	if tail := d.count % 4; tail != 0 && kinds[len(kinds)-1]<<(tail*2) != 0 {
		return nil, corrupt("tree has stray bits")
	}
	if len(keys) != d.keys*len(Key{}) {
		return nil, corrupt("tree has keys too many or too few")
	}
	t.keys = make([]Key, d.keys)
	for i := range t.keys {
		copy(t.keys[i][:], keys[i*len(Key{}):])
	}
	t.digest = digestOf(data) // A state has one encoding.
	return t, nil
}

// decoder rebuilds the trie from the kinds.
type decoder struct {
	kinds []byte
	count int
	keys  int
	tree  *Tree
}

// node reads one subtree. Its recursion is as deep as the longest path at most.
func (d *decoder) node(depth int) error {
	at := len(d.tree.nodes)
	if at >= d.count {
		return corrupt("tree ends early")
	}
	d.tree.nodes = append(d.tree.nodes, hole)
	switch d.kinds[at/4] >> (6 - at%4*2) & 3 {
	case kindHole:
		return nil
	case kindKey:
		d.tree.nodes[at] = ^int32(d.keys)
		d.keys++
		return nil
	case kindSplit:
		if depth >= maxPathBits {
			return corrupt("tree is too deep")
		}
		if err := d.node(depth + 1); err != nil {
			return err
		}
		right := len(d.tree.nodes)
		d.tree.nodes[at] = int32(right)
		if err := d.node(depth + 1); err != nil {
			return err
		}
		if d.tree.nodes[at+1] == hole && d.tree.nodes[right] == hole {
			return corrupt("tree splits a hole")
		}
		return nil
	default:
		return corrupt("tree has an unknown node")
	}
}
