package receipts

import (
	"encoding/hex"
	"fmt"

	"forgettable.dev/memd"
)

// BundleFormat names the version of a bundle's fields.
const BundleFormat = "memd-receipt-bundle/v1"

// Entry is a receipt in its place in a log: what is signed, and the leaf of the
// Merkle tree. Fields are in the order of their JSON names.
type Entry struct {
	// Index is the place, from 0.
	Index uint64 `json:"index"`
	// Key is the key that signed it.
	Key KeyID `json:"key"`
	// Origin is the log.
	Origin string `json:"origin"`
	// Previous is the leaf hash of the entry before; zero at index 0.
	Previous Digest  `json:"previous"`
	Receipt  Receipt `json:"receipt"`
}

// Signature is an Ed25519 signature; in JSON, 128 hexadecimal digits.
type Signature [64]byte

// MarshalText implements encoding.TextMarshaler.
func (s Signature) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(s[:])), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Signature) UnmarshalText(text []byte) error { return unhex(s[:], text) }

// Bundle is what is handed out: a receipt with all that its verification needs
// besides the public keys.
type Bundle struct {
	// Checkpoint is the log's head after the entry.
	Checkpoint string `json:"checkpoint"`
	Entry      Entry  `json:"entry"`
	Format     string `json:"format"`
	// Inclusion proves the entry to be the last of the log under Checkpoint.
	Inclusion []Digest  `json:"inclusion"`
	Signature Signature `json:"signature"`
}

// signedLabel keeps an entry's signature apart from a checkpoint's, whose text
// starts with an origin.
const signedLabel = "memd/receipt/entry/v1\n"

func (e Entry) encode() ([]byte, error) {
	var err error
	if e.Receipt, err = New(e.Receipt); err != nil {
		return nil, err
	}
	switch {
	case e.Index > maxNumber-1:
		return nil, &memd.InvalidError{Field: "entry.index", Problem: "must be below 2^53-1"}
	case !originPattern.MatchString(e.Origin):
		return nil, &memd.InvalidError{Field: "entry.origin", Problem: "must be the name of a log of memd's"}
	case (e.Index == 0) != e.Previous.IsZero():
		return nil, &memd.InvalidError{Field: "entry.previous", Problem: "must be set except at index 0"}
	}
	return marshal(e)
}

// Leaf returns the entry's leaf hash, by which receipts refer to each other.
func (e Entry) Leaf() (Digest, error) {
	data, err := e.encode()
	if err != nil {
		return Digest{}, err
	}
	return leafHash(data), nil
}

// Encode returns the bundle's canonical bytes. Errors are memd.InvalidError.
func (b Bundle) Encode() ([]byte, error) {
	if _, err := b.Entry.encode(); err != nil {
		return nil, err
	}
	var err error
	if b.Entry.Receipt, err = New(b.Entry.Receipt); err != nil {
		return nil, err
	}
	if b.Format != BundleFormat {
		return nil, &memd.InvalidError{Field: "format", Problem: "must be " + BundleFormat}
	}
	b.Inclusion = append(make([]Digest, 0, len(b.Inclusion)), b.Inclusion...)
	return marshal(b)
}

// ParseBundle reads a bundle, and verifies nothing but that its bytes are what
// Encode writes. Errors are memd.ErrCorrupt.
func ParseBundle(data []byte) (Bundle, error) {
	var b Bundle
	if err := parse(data, &b, func() ([]byte, error) { return b.Encode() }); err != nil {
		return Bundle{}, fmt.Errorf("reading a bundle: %w", err)
	}
	return b, nil
}

// Verify checks a bundle with the public keys alone: the entry's signature, the
// checkpoint's, and that the one is the last of the other's log. Errors are
// memd.ErrCorrupt and say what does not hold.
func (b Bundle) Verify(keys *Keys) (Checkpoint, error) {
	entry, err := b.Entry.encode()
	if err != nil {
		return Checkpoint{}, fmt.Errorf("%w: %w", memd.ErrCorrupt, err)
	}
	key, err := keys.find(b.Entry.Key)
	if err != nil {
		return Checkpoint{}, err
	}
	if key.verify.Verify(b.Signature[:], append([]byte(signedLabel), entry...)) != nil {
		return Checkpoint{}, corrupt("signature does not fit the receipt")
	}
	c, err := ParseCheckpoint(b.Checkpoint, keys)
	if err != nil {
		return Checkpoint{}, err
	}
	if c.Origin != b.Entry.Origin || c.Size != b.Entry.Index+1 {
		return Checkpoint{}, corrupt("checkpoint is another than that of the entry")
	}
	if err := verifyInclusion(b.Entry.Index, c, leafHash(entry), b.Inclusion); err != nil {
		return Checkpoint{}, err
	}
	return c, nil
}
