package shred

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
	"github.com/tink-crypto/tink-go/v2/aead/subtle"

	"forgettable.dev/memd"
)

const (
	// SealOverhead is how much longer a sealed value is than its plaintext, when
	// compressing it does not pay.
	SealOverhead = subtle.AESGCMIVSize + 1 + subtle.AESGCMTagSize

	// compressFrom is the shortest plaintext that is worth a try.
	compressFrom = 64
	// compressFastFrom is that of SealFast.
	compressFastFrom = 16 << 10
	// compressSaves is the part of the plaintext, 1/8, that must be saved. Less
	// is not worth the time of every later reader. Vectors never reach it.
	compressSaves = 8

	flagPlain = 0
	flagZstd  = 1
)

// Sealer seals and opens values under one derived key, which is lost with any
// leaf that it was derived from. It is safe for concurrent use.
//
// After Keys.Drop of the Keys that it came from it refuses to seal and to open.
// Its key bytes go with the last reference to it: Go's AES keeps its key
// schedule where nobody can overwrite it.
//
// The bytes are those of Tink's AES-GCM with no key prefix, made by Go's
// crypto/cipher: Tink's opens into memory of its own, and reading a scope opens
// thousands of vectors into one block.
type Sealer struct {
	aead    cipher.AEAD
	digest  Key
	dropped *atomic.Bool
}

// newSealer expands one secret into a sealing key and a digest key. The
// purpose separates it from every other use of the same secret.
func newSealer(secret []byte, purpose string, dropped *atomic.Bool) (*Sealer, error) {
	root, err := hkdf.Extract(sha256.New, secret, nil)
	if err != nil {
		return nil, fmt.Errorf("extracting the key of %s: %w", purpose, err)
	}
	defer clear(root)
	key, err := hkdf.Expand(sha256.New, root, purpose+infoSeal, len(Key{}))
	if err != nil {
		return nil, fmt.Errorf("expanding the key of %s: %w", purpose, err)
	}
	defer clear(key)
	digest, err := hkdf.Expand(sha256.New, root, purpose+infoDigest, len(Key{}))
	if err != nil {
		return nil, fmt.Errorf("expanding the digest key of %s: %w", purpose, err)
	}
	defer clear(digest)
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("setting up the cipher of %s: %w", purpose, err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("setting up the cipher of %s: %w", purpose, err)
	}
	return &Sealer{aead: aead, digest: Key(digest), dropped: dropped}, nil
}

// Seal returns nonce (12 bytes, random) ‖ AES-256-GCM(flag ‖ plaintext,
// compressed when it pays) ‖ tag (16 bytes). Two calls never give the same
// bytes. It returns memd.ErrStale after Keys.Drop and a memd.ErrInvalid for a
// plaintext above memd.MaxBatchBytes.
func (s *Sealer) Seal(plaintext, aad []byte) ([]byte, error) {
	return s.seal(plaintext, aad, compressFrom)
}

// SealFast is Seal for what is written and read one by one while somebody
// waits: compressing a few kilobytes takes several times as long as sealing
// them, so it is tried only from 16 KiB on. Open opens either.
func (s *Sealer) SealFast(plaintext, aad []byte) ([]byte, error) {
	return s.seal(plaintext, aad, compressFastFrom)
}

// SealWhole is Seal without compression, for what is bounded by its sealed size:
// what repeats itself would take a thousandth of it and fill whoever opens it.
func (s *Sealer) SealWhole(plaintext, aad []byte) ([]byte, error) {
	return s.seal(plaintext, aad, math.MaxInt)
}

func (s *Sealer) seal(plaintext, aad []byte, compressFrom int) ([]byte, error) {
	if s.dropped.Load() {
		return nil, memd.ErrStale
	}
	if len(plaintext) > memd.MaxBatchBytes {
		return nil, &memd.InvalidError{Field: "value", Problem: "is too large to be sealed"}
	}
	// Sealed in place, so that nothing of it is left to be cleared.
	content := make([]byte, 1, 1+len(plaintext)+s.aead.Overhead())
	content[0] = flagPlain
	if len(plaintext) >= compressFrom {
		content = compressor().EncodeAll(plaintext, content)
		content[0] = flagZstd
	}
	if len(plaintext) < compressFrom || len(content)-1 > len(plaintext)-len(plaintext)/compressSaves {
		content = append(content[:0], flagPlain)
		content = append(content, plaintext...)
	}
	return s.aead.Seal(content[:0], nil, content, aad), nil
}

// Open returns what was sealed. It returns memd.ErrCorrupt when the value, the
// key or the associated data is another than at sealing, and memd.ErrStale
// after Keys.Drop.
func (s *Sealer) Open(sealed, aad []byte) ([]byte, error) { return s.OpenIn(nil, sealed, aad) }

// OpenIn is Open into the caller's memory, as far as that reaches: what is
// returned may begin anywhere in it. Whoever opens many values wipes and
// reuses one buffer.
func (s *Sealer) OpenIn(buffer, sealed, aad []byte) ([]byte, error) {
	if s.dropped.Load() {
		return nil, memd.ErrStale
	}
	content, err := s.aead.Open(buffer[:0], nil, sealed, aad)
	if err != nil || len(content) == 0 {
		return nil, corrupt("opening a sealed value")
	}
	switch content[0] {
	case flagPlain:
		return content[1:], nil
	case flagZstd:
		defer clear(content)
		plaintext, err := decompressor().DecodeAll(content[1:], nil)
		if err != nil {
			return nil, corrupt("decompressing a sealed value")
		}
		return plaintext, nil
	default:
		return nil, corrupt("sealed value has an unknown format")
	}
}

// Digest returns a keyed digest of the parts, in order, under a key of its own
// that dies with the sealing key: equal parts of one row give equal digests,
// and without the key a digest tests nothing. It goes on being right after
// Keys.Drop, for who still holds the Sealer.
func (s *Sealer) Digest(parts ...[]byte) [16]byte {
	sum := mac(&s.digest, labelDigest, parts...)
	return [16]byte(sum[:16])
}

// mac is HMAC-SHA256 of a label and parts, each behind its length.
func mac(key *Key, label string, parts ...[]byte) [32]byte {
	h := hmac.New(sha256.New, key[:])
	var length [4]byte
	write := func(part []byte) {
		binary.BigEndian.PutUint32(length[:], uint32(len(part)))
		h.Write(length[:])
		h.Write(part)
	}
	write([]byte(label))
	for _, part := range parts {
		write(part)
	}
	var sum [32]byte
	h.Sum(sum[:0])
	return sum
}

// One encoder and one decoder serve the whole process: both keep a pool inside
// and are safe for EncodeAll and DecodeAll at once.
var (
	compressor = sync.OnceValue(func() *zstd.Encoder {
		// No checksum: the cipher authenticates. Low memory: values are small.
		e, err := zstd.NewWriter(nil, zstd.WithEncoderCRC(false), zstd.WithLowerEncoderMem(true), zstd.WithSingleSegment(true))
		if err != nil {
			panic(fmt.Sprintf("shred: zstd encoder: %v", err)) // constant options
		}
		return e
	})
	decompressor = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(memd.MaxBatchBytes))
		if err != nil {
			panic(fmt.Sprintf("shred: zstd decoder: %v", err)) // constant options
		}
		return d
	})
)
