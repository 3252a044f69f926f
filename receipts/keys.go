package receipts

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/tink-crypto/tink-go/v2/keyset"
	tinkpb "github.com/tink-crypto/tink-go/v2/proto/tink_go_proto"
	"github.com/tink-crypto/tink-go/v2/signature"
	"github.com/tink-crypto/tink-go/v2/signature/ed25519"
	"github.com/tink-crypto/tink-go/v2/tink"
	"golang.org/x/mod/sumdb/note"

	"forgettable.dev/memd"
)

// KeyID names a public key: the first eight bytes of its SHA-256 digest.
type KeyID [8]byte

// String returns the id as it stands in JSON.
func (id KeyID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText implements encoding.TextMarshaler.
func (id KeyID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *KeyID) UnmarshalText(text []byte) error { return unhex(id[:], text) }

// publicKey is one key of a Keys.
type publicKey struct {
	id     KeyID
	bytes  []byte
	verify tink.Verifier
}

// Keys are the public keys that receipts of an installation may be signed with:
// the one in use and those before it. They are all that a verification needs.
// Safe for concurrent use.
type Keys struct {
	set *tinkpb.Keyset
	all []publicKey
}

// ParseKeys reads a public keyset as JSON writes it: a keyset of Tink's, with
// Ed25519 keys without prefix. Disabled keys verify nothing. Anything else is a
// memd.InvalidError.
func ParseKeys(data []byte) (*Keys, error) {
	set, err := keyset.NewJSONReader(bytes.NewReader(data)).Read()
	if err != nil {
		return nil, invalidKeys("is not a keyset of Tink's in JSON")
	}
	return newKeys(set)
}

func invalidKeys(problem string) error {
	return &memd.InvalidError{Field: "public_key", Problem: problem}
}

func newKeys(set *tinkpb.Keyset) (*Keys, error) {
	handle, err := keyset.NewHandleWithNoSecrets(set)
	if err != nil {
		return nil, invalidKeys("is not a keyset with public keys alone")
	}
	k := &Keys{set: set}
	for i := range handle.Len() {
		entry, err := handle.Entry(i)
		if err != nil {
			return nil, invalidKeys("has an entry that cannot be read")
		}
		if entry.KeyStatus() != keyset.Enabled {
			continue
		}
		public, ok := entry.Key().(*ed25519.PublicKey)
		if !ok || len(public.OutputPrefix()) != 0 {
			return nil, invalidKeys("must have Ed25519 keys without prefix")
		}
		verify, err := verifierOf(public)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(public.KeyBytes())
		k.all = append(k.all, publicKey{id: KeyID(sum[:8]), bytes: public.KeyBytes(), verify: verify})
	}
	if len(k.all) == 0 {
		return nil, invalidKeys("has no enabled key")
	}
	return k, nil
}

// verifierOf makes a verifier of one key: that of a keyset would try all, and a
// receipt names its own.
func verifierOf(public *ed25519.PublicKey) (tink.Verifier, error) {
	m := keyset.NewManager()
	id, err := m.AddKey(public)
	if err == nil {
		err = m.SetPrimary(id)
	}
	if err != nil {
		return nil, fmt.Errorf("setting up a verifier: %w", err)
	}
	handle, err := m.Handle()
	if err != nil {
		return nil, fmt.Errorf("setting up a verifier: %w", err)
	}
	v, err := signature.NewVerifier(handle)
	if err != nil {
		return nil, fmt.Errorf("setting up a verifier: %w", err)
	}
	return v, nil
}

// mergeKeys joins public keysets of one key each; the last is the primary.
func mergeKeys(sets []*tinkpb.Keyset) (*Keys, error) {
	all := &tinkpb.Keyset{}
	for _, s := range sets {
		all.Key = append(all.Key, s.GetKey()...)
		all.PrimaryKeyId = s.GetPrimaryKeyId()
	}
	return newKeys(all)
}

// JSON returns the keyset in Tink's own format, indented, with a final newline.
func (k *Keys) JSON() ([]byte, error) {
	var raw, out bytes.Buffer
	if err := keyset.NewJSONWriter(&raw).Write(k.set); err != nil {
		return nil, fmt.Errorf("writing the public keyset: %w", err)
	}
	// The writer varies its white space on purpose.
	if err := json.Indent(&out, raw.Bytes(), "", "  "); err != nil {
		return nil, fmt.Errorf("writing the public keyset: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// IDs returns the keys' ids, oldest first.
func (k *Keys) IDs() []KeyID {
	ids := make([]KeyID, len(k.all))
	for i, key := range k.all {
		ids[i] = key.id
	}
	return ids
}

var errUnknownKey = fmt.Errorf("it is signed with a key that is not in the public keyset: %w", memd.ErrCorrupt)

func (k *Keys) find(id KeyID) (publicKey, error) {
	i := slices.IndexFunc(k.all, func(p publicKey) bool { return p.id == id })
	if i < 0 {
		return publicKey{}, errUnknownKey
	}
	return k.all[i], nil
}

// noteKey is a key under the name of a log, as signed notes want one.
type noteKey struct {
	name   string
	public publicKey
	sign   func(message []byte) ([]byte, error) // nil for a verifier
}

var (
	_ note.Signer   = noteKey{}
	_ note.Verifier = noteKey{}
)

// noteEd25519 is the signature type of C2SP signed-note for Ed25519.
const noteEd25519 = 1

// Name implements note.Signer and note.Verifier.
func (n noteKey) Name() string { return n.name }

// KeyHash implements them after C2SP signed-note.
func (n noteKey) KeyHash() uint32 {
	h := sha256.New()
	h.Write([]byte(n.name + "\n"))
	h.Write([]byte{noteEd25519})
	h.Write(n.public.bytes)
	return binary.BigEndian.Uint32(h.Sum(nil))
}

// Verify implements note.Verifier.
func (n noteKey) Verify(message, sig []byte) bool { return n.public.verify.Verify(sig, message) == nil }

// Sign implements note.Signer.
func (n noteKey) Sign(message []byte) ([]byte, error) {
	if n.sign == nil {
		return nil, errors.New("key is a public one")
	}
	return n.sign(message)
}

// verifiers are the keys under a log's name.
func (k *Keys) verifiers(name string) note.Verifiers {
	all := make([]note.Verifier, len(k.all))
	for i, p := range k.all {
		all[i] = noteKey{name: name, public: p}
	}
	return note.VerifierList(all...)
}
