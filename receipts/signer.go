package receipts

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/tink-crypto/tink-go/v2/keyset"
	tinkpb "github.com/tink-crypto/tink-go/v2/proto/tink_go_proto"
	"github.com/tink-crypto/tink-go/v2/signature"
	"github.com/tink-crypto/tink-go/v2/signature/ed25519"
	"github.com/tink-crypto/tink-go/v2/tink"
	"golang.org/x/mod/sumdb/note"
	"google.golang.org/protobuf/proto"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/ledger"
)

// SignerConfig says where the installation's signing keys are. All fields but
// Clock are required.
type SignerConfig struct {
	Pool *pg.Pool
	// KMS is the worker's identity: it makes the wrapping key, wraps and unwraps.
	KMS shred.KMS
	// Ledger holds the sealed keys, beside the database. With several locations,
	// ledger.Mirror.
	Ledger ledger.Ledger
	// Installation is provenance.Installation.
	Installation uuid.UUID
	// Clock is the system's if nil.
	Clock memd.Clock
}

// Signer signs with the newest key. Safe for concurrent use.
type Signer struct {
	installation uuid.UUID
	number       int
	public       publicKey
	private      tink.Signer
}

// Key returns the id of the key that signs.
func (s *Signer) Key() KeyID { return s.public.id }

// sign signs an entry's bytes.
func (s *Signer) sign(entry []byte) (Signature, error) {
	sig, err := s.private.Sign(append([]byte(signedLabel), entry...))
	if err != nil {
		return Signature{}, fmt.Errorf("signing a receipt: %w", err)
	}
	if len(sig) != len(Signature{}) {
		return Signature{}, errors.New("signing a receipt: signature has an impossible length")
	}
	return Signature(sig), nil
}

// checkpoint signs a log's head.
func (s *Signer) checkpoint(c Checkpoint) (string, error) {
	text, err := note.Sign(&note.Note{Text: c.body()}, noteKey{name: c.Origin, public: s.public, sign: s.private.Sign})
	if err != nil {
		return "", fmt.Errorf("signing a checkpoint: %w", err)
	}
	return string(text), nil
}

// OpenSigner opens the newest key, and makes the first one of an installation
// that has none. Safe to repeat and for several processes at once: the ledger
// decides whose first key it is. Errors of the KMS and the ledger pass through;
// memd.ErrShredded says that the version that wraps the key was destroyed, after
// which RotateKey makes another.
func OpenSigner(ctx context.Context, c SignerConfig) (*Signer, error) {
	for {
		keys, err := c.catchUp(ctx)
		if err != nil {
			return nil, err
		}
		if n := len(keys); n > 0 {
			return c.open(ctx, keys[n-1])
		}
		if _, err := c.create(ctx, keys); err != nil {
			return nil, err
		}
	}
}

// Renew returns s as long as its key is the newest that the database has, and
// otherwise, or when s is nil, what OpenSigner returns: a process that runs signs
// with a new key from its next receipt on, and with the old one never again.
func Renew(ctx context.Context, c SignerConfig, s *Signer) (*Signer, error) {
	if s == nil {
		return OpenSigner(ctx, c)
	}
	var newest int
	err := c.Pool.With(ctx, func(db pg.DB) (err error) { newest, err = readNewestKey(ctx, db); return err })
	if err != nil || newest <= s.number {
		return s, err
	}
	return OpenSigner(ctx, c)
}

// RotateKey makes a new key, wrapped by a new version of the wrapping key, and
// returns its signer. Processes that run take it up by Renew;
// receipts of both verify. Whoever destroys the old version of the wrapping key
// afterwards makes the old signing key unusable for ever. Not safe to repeat:
// each call makes a key.
func RotateKey(ctx context.Context, c SignerConfig) (*Signer, error) {
	for {
		keys, err := c.catchUp(ctx)
		if err != nil {
			return nil, err
		}
		made, err := c.create(ctx, keys)
		if err != nil {
			return nil, err
		}
		if made != nil {
			return c.open(ctx, *made)
		}
	}
}

// keyRecord is a signing key as the ledger has it.
type keyRecord struct {
	Number    int       `json:"number"`
	KeyID     KeyID     `json:"key_id"`
	Public    []byte    `json:"public"` // a keyset of Tink's, binary, of this key alone
	KMSKey    string    `json:"kms_key"`
	Version   string    `json:"kms_version"`
	Sealed    []byte    `json:"sealed"` // the private keyset, encrypted by Version
	CreatedAt time.Time `json:"created_at"`
}

func keyName(number int) string { return fmt.Sprintf("receipts/keys/%06d", number) }

// catchUp returns the keys that the database has, after giving it those that
// only the ledger has.
func (c SignerConfig) catchUp(ctx context.Context) ([]keyRecord, error) {
	for {
		var keys []keyRecord
		err := c.Pool.With(ctx, func(db pg.DB) (err error) { keys, err = readKeyRecords(ctx, db); return err })
		if err != nil {
			return nil, err
		}
		next := len(keys) + 1
		data, err := c.Ledger.Get(ctx, keyName(next))
		if errors.Is(err, memd.ErrNotFound) {
			return keys, nil
		}
		if err != nil {
			return nil, fmt.Errorf("looking for a signing key: %w", err)
		}
		if err := c.record(ctx, next, data); err != nil {
			return nil, err
		}
	}
}

// wrapping returns the KMS key and the version that wraps the next signing key.
func (c SignerConfig) wrapping(ctx context.Context, keys []keyRecord) (key, version string, err error) {
	if n := len(keys); n > 0 {
		// The first version may be gone by now, so the key is not asked for again.
		key = keys[n-1].KMSKey
		version, err = c.KMS.CreateVersion(ctx, key)
	} else {
		key, version, err = c.KMS.CreateKey(ctx, "memd-receipts-"+c.Installation.String(), 0)
	}
	if err != nil {
		return "", "", fmt.Errorf("making what wraps a signing key: %w", err)
	}
	return key, version, nil
}

// create makes the key after those that there are. nil says that somebody else
// was first.
func (c SignerConfig) create(ctx context.Context, keys []keyRecord) (*keyRecord, error) {
	number := len(keys) + 1
	key, version, err := c.wrapping(ctx, keys)
	if err != nil {
		return nil, err
	}
	handle, err := keyset.NewHandle(signature.ED25519KeyWithoutPrefixTemplate())
	if err != nil {
		return nil, fmt.Errorf("making a signing key: %w", err)
	}
	r := keyRecord{Number: number, KMSKey: key, Version: version, CreatedAt: c.now()}
	var sealed, public bytes.Buffer
	w := &wrapper{kms: c.KMS, key: key, version: version}
	if err := handle.WriteWithContext(ctx, keyset.NewBinaryWriter(&sealed), w, c.aad(r)); err != nil {
		return nil, fmt.Errorf("sealing a signing key: %w", cmp.Or(w.err, err))
	}
	half, err := handle.Public()
	if err == nil {
		err = half.WriteWithNoSecrets(keyset.NewBinaryWriter(&public))
	}
	if err != nil {
		return nil, fmt.Errorf("writing a public key: %w", err)
	}
	r.Sealed, r.Public = sealed.Bytes(), public.Bytes()
	p, err := r.publicKey()
	if err != nil {
		return nil, err
	}
	r.KeyID = p.id
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encoding a signing key: %w", err)
	}
	err = c.record(ctx, number, data)
	if errors.Is(err, memd.ErrExists) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &r, nil
}

func (c SignerConfig) now() time.Time {
	if c.Clock == nil {
		return memd.SystemClock{}.Now()
	}
	return c.Clock.Now()
}

// record has a key in every ledger location, then in the database.
func (c SignerConfig) record(ctx context.Context, number int, data []byte) error {
	var r keyRecord
	if err := json.Unmarshal(data, &r); err != nil || r.Number != number {
		return corrupt("signing key in the ledger")
	}
	if p, err := r.publicKey(); err != nil || p.id != r.KeyID {
		return corrupt("signing key in the ledger")
	}
	if err := ledger.PutSame(ctx, c.Ledger, keyName(number), data); err != nil {
		return fmt.Errorf("keeping a signing key: %w", err)
	}
	return c.Pool.With(ctx, func(db pg.DB) error { return insertKey(ctx, db, r, data) })
}

func (r keyRecord) publicSet() (*tinkpb.Keyset, error) {
	set := new(tinkpb.Keyset)
	if err := proto.Unmarshal(r.Public, set); err != nil {
		return nil, corrupt("public key")
	}
	return set, nil
}

func (r keyRecord) publicKey() (publicKey, error) {
	set, err := r.publicSet()
	if err != nil {
		return publicKey{}, err
	}
	keys, err := newKeys(set)
	if err != nil || len(keys.all) != 1 {
		return publicKey{}, corrupt("public key")
	}
	return keys.all[0], nil
}

// open unwraps a key and sees that it is the one that its record names.
func (c SignerConfig) open(ctx context.Context, r keyRecord) (*Signer, error) {
	if !strings.HasPrefix(r.Version, r.KMSKey+"/cryptoKeyVersions/") {
		return nil, corrupt("record of a signing key")
	}
	w := &wrapper{kms: c.KMS, key: r.KMSKey, version: r.Version}
	handle, err := keyset.ReadWithContext(ctx, keyset.NewBinaryReader(bytes.NewReader(r.Sealed)), w, c.aad(r))
	if err != nil {
		return nil, fmt.Errorf("opening signing key %d: %w", r.Number, cmp.Or(w.err, err))
	}
	s := &Signer{installation: c.Installation, number: r.Number}
	if s.public, err = r.publicKey(); err != nil {
		return nil, err
	}
	primary, err := handle.Primary()
	if err != nil {
		return nil, corrupt("signing key")
	}
	private, ok := primary.Key().(*ed25519.PrivateKey)
	if !ok {
		return nil, corrupt("signing key")
	}
	public, err := private.PublicKey()
	if err != nil {
		return nil, corrupt("signing key")
	}
	half, ok := public.(*ed25519.PublicKey)
	if !ok || !bytes.Equal(half.KeyBytes(), s.public.bytes) {
		return nil, corrupt("signing key is another than its public half")
	}
	if s.private, err = signature.NewSigner(handle); err != nil {
		return nil, fmt.Errorf("setting up a signing key: %w", err)
	}
	return s, nil
}

// aad binds a sealed key to the installation, its number and its version.
func (c SignerConfig) aad(r keyRecord) []byte {
	b := append([]byte("memd/receipt-key/v1\n"), c.Installation[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(r.Number))
	return append(b, r.Version...)
}

// wrapper is a KMS key as Tink's keysets want one: it encrypts under one
// explicit version, never under "primary".
type wrapper struct {
	kms          shred.KMS
	key, version string
	// err is the KMS's, which Tink passes on as text alone. A destroyed version
	// must be told from a service that is away.
	err error
}

var _ tink.AEADWithContext = (*wrapper)(nil)

// EncryptWithContext implements tink.AEADWithContext.
func (w *wrapper) EncryptWithContext(ctx context.Context, plaintext, aad []byte) (sealed []byte, err error) {
	sealed, w.err = w.kms.Encrypt(ctx, w.version, plaintext, aad)
	return sealed, w.err
}

// DecryptWithContext implements tink.AEADWithContext.
func (w *wrapper) DecryptWithContext(ctx context.Context, ciphertext, aad []byte) (plaintext []byte, err error) {
	plaintext, w.err = w.kms.Decrypt(ctx, w.key, ciphertext, aad)
	return plaintext, w.err
}
