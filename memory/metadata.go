package memory

import (
	"encoding/binary"
	"hash/maphash"
	"maps"
	"slices"

	"forgettable.dev/memd"
)

// encodeMetadata lays out the entries, sorted by key: the length of the key,
// the key, the length of the value, the value. Equal maps are equal bytes.
func encodeMetadata(m map[string]string) []byte {
	var b []byte
	for _, k := range slices.Sorted(maps.Keys(m)) {
		for _, s := range []string{k, m[k]} {
			b = binary.AppendUvarint(b, uint64(len(s)))
			b = append(b, s...)
		}
	}
	return b
}

// eachEntry calls f with the entries that encodeMetadata laid out. The slices
// are parts of b.
func eachEntry(b []byte, f func(key, value []byte)) error {
	var pair [2][]byte
	for len(b) > 0 {
		for i := range pair {
			n, width := binary.Uvarint(b)
			if width <= 0 || n > uint64(len(b)-width) {
				return memd.ErrCorrupt
			}
			pair[i], b = b[width:width+int(n)], b[width+int(n):]
		}
		f(pair[0], pair[1])
	}
	return nil
}

var hashSeed = maphash.MakeSeed()

// hashEntry is what a resident scope keeps of an entry: it tells whether two
// are equal and means nothing outside this process.
func hashEntry(key, value []byte) uint64 {
	var h maphash.Hash
	var n [8]byte
	h.SetSeed(hashSeed)
	binary.LittleEndian.PutUint64(n[:], uint64(len(key)))
	_, _ = h.Write(n[:])
	_, _ = h.Write(key)
	_, _ = h.Write(value)
	return h.Sum64()
}

// hashes returns one hash for each entry.
func hashes(m map[string]string) []uint64 {
	out := make([]uint64, 0, len(m))
	for k, v := range m {
		out = append(out, hashEntry([]byte(k), []byte(v)))
	}
	return out
}
