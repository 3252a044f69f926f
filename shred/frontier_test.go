package shred_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

const headerBytes = 1 + 8 + 8 + 32 + 32 + 4

// frontier reads a state's encoding by a decoder of its own: path to "hole" or
// "key".
func frontier(t testing.TB, tree *shred.Tree) map[string]string {
	t.Helper()
	b := marshal(t, tree)
	count := int(binary.BigEndian.Uint32(b[headerBytes-4:]))
	kinds, at, nodes := b[headerBytes:], 0, map[string]string{}
	var walk func(path string)
	walk = func(path string) {
		kind := kinds[at/4] >> (6 - at%4*2) & 3
		at++
		switch kind {
		case 0:
			nodes[path] = "hole"
		case 1:
			nodes[path] = "key"
		case 2:
			walk(path + "0")
			walk(path + "1")
		default:
			t.Fatalf("kind %d at %s", kind, path)
		}
	}
	walk("")
	if at != count {
		t.Fatalf("%d of %d nodes read", at, count)
	}
	return nodes
}

func TestUnmarshalTree_Roundtrip(t *testing.T) {
	r, u := newRand(t), newUniverse(t)
	for range 60 {
		tree := next(t, newTree(t), u.some(r, 40)...)
		b := marshal(t, tree)
		again, err := shred.UnmarshalTree(b)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(marshal(t, again), b) || again.Digest() != tree.Digest() || again.Epoch() != 2 || again.Tenant() != 7 {
			t.Fatal("the tree came back as another one")
		}
		for _, p := range u.leaves {
			want, wantErr := tree.Derive(p)
			got, gotErr := again.Derive(p)
			if want != got || !errors.Is(gotErr, wantErr) {
				t.Fatalf("%s derives otherwise after a roundtrip", p)
			}
		}
	}
}

func TestUnmarshalTree_RefusesWhatIsNotCanonical(t *testing.T) {
	good := marshal(t, next(t, newTree(t), shred.MonthPath(1, 3)))
	with := func(edit func(b []byte) []byte) []byte { return edit(bytes.Clone(good)) }
	state := func(count uint32, kinds []byte, keys int) []byte {
		b := bytes.Clone(good[:headerBytes])
		binary.BigEndian.PutUint32(b[headerBytes-4:], count)
		return append(append(b, kinds...), make([]byte, 32*keys)...)
	}
	// chain is a tree of one key, depth levels down, beside holes.
	const longest = 2 * (2*22 - 1 + 2*40 - 1 + 1)
	chain := func(depth int) []byte {
		kinds := make([]byte, (2*depth+4)/4)
		for i := range depth {
			kinds[2*i/4] |= 0b10 << (6 - 2*i%4*2)
		}
		kinds[2*depth/4] |= 0b01 << (6 - 2*depth%4*2)
		return state(uint32(2*depth+1), kinds, 1)
	}
	cases := map[string][]byte{
		"empty":                     nil,
		"header only":               good[:headerBytes],
		"last byte missing":         good[:len(good)-1],
		"a byte too many":           append(bytes.Clone(good), 0),
		"a key too many":            append(bytes.Clone(good), make([]byte, 32)...),
		"another format":            with(func(b []byte) []byte { b[0]++; return b }),
		"tenant zero":               with(func(b []byte) []byte { clear(b[1:9]); return b }),
		"tenant negative":           with(func(b []byte) []byte { b[1] = 0x80; return b }),
		"epoch zero":                with(func(b []byte) []byte { clear(b[9:17]); return b }),
		"epoch negative":            with(func(b []byte) []byte { b[9] = 0x80; return b }),
		"no nodes":                  state(0, nil, 0),
		"four thousand million":     state(0xffffffff, []byte{0}, 0),
		"two thousand million":      state(0x7fffffff, []byte{0}, 0),
		"split without children":    state(1, []byte{0b10_00_00_00}, 0),
		"split of holes":            state(3, []byte{0b10_00_00_00}, 0),
		"nodes after the root":      state(2, []byte{0b01_00_00_00}, 1),
		"unknown node":              state(1, []byte{0b11_00_00_00}, 0),
		"stray bits":                state(1, []byte{0b01_00_00_01}, 1),
		"deeper than any path":      chain(longest + 1),
		"key without its bytes":     state(1, []byte{0b01_00_00_00}, 0),
		"hole with somebody's byte": state(1, []byte{0}, 1),
	}
	for name, b := range cases {
		if _, err := shred.UnmarshalTree(b); !errors.Is(err, memd.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, b := range map[string][]byte{"a root": state(1, []byte{0b01_00_00_00}, 1), "as deep as the longest path": chain(longest)} {
		if _, err := shred.UnmarshalTree(b); err != nil {
			t.Errorf("control, %s: %v", name, err)
		}
	}
}

func TestTree_DigestSeesEveryByte(t *testing.T) {
	tree := next(t, newTree(t), shred.MonthPath(1, 3))
	good, digest := marshal(t, tree), tree.Digest()
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 0x10
		changed, err := shred.UnmarshalTree(b)
		if err == nil && changed.Digest() == digest {
			t.Fatalf("byte %d may change unseen", i)
		}
	}
}

func FuzzUnmarshalTree(f *testing.F) {
	u := newUniverse(f)
	f.Add([]byte{})
	f.Add(marshal(f, newTree(f)))
	f.Add(marshal(f, next(f, newTree(f), u.leaves[3], u.subjects[2], u.leaves[40])))
	f.Fuzz(func(t *testing.T, data []byte) {
		tree, err := shred.UnmarshalTree(data)
		if err != nil {
			if !errors.Is(err, memd.ErrCorrupt) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if !bytes.Equal(marshal(t, tree), data) {
			t.Fatal("accepted an encoding that is not canonical")
		}
		for _, p := range u.leaves {
			_, _ = tree.Derive(p)
		}
		following, err := tree.Next(u.leaves[:9])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := shred.UnmarshalTree(marshal(t, following)); err != nil {
			t.Fatal(err)
		}
		if err := shred.ProveCover(tree, following, u.leaves[:9]); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTree_SizeOfTenThousandErased(t *testing.T) {
	r := newRand(t)
	tree := next(t, newTree(t), tenThousand(t, r)...)
	b := marshal(t, tree)
	t.Logf("10,000 of 1,000,000 subjects erased: %d bytes, %d keys", len(b), tree.Nodes())
	if len(b) > 3_000_000 {
		t.Errorf("state has %d bytes, above 3 MB", len(b))
	}
}

// tenThousand is 10,000 different subjects of 1,000,000.
func tenThousand(t testing.TB, r interface{ Perm(int) []int }) []shred.Path {
	paths := make([]shred.Path, 10_000)
	for i, c := range r.Perm(1_000_000)[:len(paths)] {
		paths[i] = shred.SubjectPath(number(t, 1, int64(c)+1))
	}
	return paths
}

func BenchmarkDerive(b *testing.B) {
	tree := newTree(b)
	for _, c := range []struct {
		name string
		path shred.Path
	}{
		{"month", shred.MonthPath(1, 683)},
		{"session40bits", shred.SessionPath(number(b, 1, 100_000), 1, number(b, 1, 3))},
		{"session67bits", shred.SessionPath(number(b, 1, 1_000_000), 1, number(b, 5, 100_000))},
	} {
		b.Run(fmt.Sprintf("%s/%d", c.name, len(c.path)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tree.Derive(c.path); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
