package shred_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

const (
	testKey     = "projects/p/locations/l/keyRings/r/cryptoKeys/t7"
	testVersion = testKey + "/cryptoKeyVersions/3"
)

// wrapper is the half of a KMS that sealing a tree needs, with one version. The
// real client has its own tests in shred/gcpkms.
type wrapper struct {
	shred.KMS
	fail error
}

func (w wrapper) aead() cipher.AEAD {
	block, err := aes.NewCipher(bytes.Repeat([]byte{42}, 32))
	if err != nil {
		panic(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return gcm
}

func (w wrapper) Encrypt(_ context.Context, version string, plaintext, aad []byte) ([]byte, error) {
	if w.fail != nil {
		return nil, w.fail
	}
	if version != testVersion {
		return nil, memd.ErrNotFound
	}
	return w.aead().Seal(nil, make([]byte, 12), plaintext, aad), nil
}

func (w wrapper) Decrypt(_ context.Context, key string, ciphertext, aad []byte) ([]byte, error) {
	if w.fail != nil {
		return nil, w.fail
	}
	if key != testKey {
		return nil, memd.ErrNotFound
	}
	plaintext, err := w.aead().Open(nil, make([]byte, 12), ciphertext, aad)
	if err != nil {
		return nil, memd.ErrCorrupt
	}
	return plaintext, nil
}

func sealed(t testing.TB, tree *shred.Tree) []byte {
	t.Helper()
	b, err := shred.SealTree(context.Background(), wrapper{}, testVersion, tree)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSealTree_Roundtrip(t *testing.T) {
	tree := next(t, newTree(t), newUniverse(t).leaves[3])
	first, second := sealed(t, tree), sealed(t, tree)
	if bytes.Equal(first, second) {
		t.Error("sealed twice under one data key or nonce")
	}
	for _, b := range [][]byte{first, second} {
		got, version, err := shred.OpenTree(t.Context(), wrapper{}, testKey, b)
		if err != nil || version != testVersion || got.Digest() != tree.Digest() {
			t.Fatalf("opened version %q: %v", version, err)
		}
		tenant, epoch, version, err := shred.ParseTreeHeader(b)
		if err != nil || tenant != 7 || epoch != 2 || version != testVersion {
			t.Errorf("header says %v %v %q: %v", tenant, epoch, version, err)
		}
	}
	state := marshal(t, tree)
	if bytes.Contains(first, state[len(state)-32:]) {
		t.Error("a key is in the sealed value in clear")
	}
}

func TestOpenTree_RefusesEveryChangedByte(t *testing.T) {
	good := sealed(t, next(t, newTree(t), newUniverse(t).leaves[3]))
	for i := range good {
		for _, flip := range []byte{0x01, 0x80} {
			b := bytes.Clone(good)
			b[i] ^= flip
			if _, _, err := shred.OpenTree(t.Context(), wrapper{}, testKey, b); !errors.Is(err, memd.ErrCorrupt) {
				t.Fatalf("byte %d changed: %v", i, err)
			}
		}
		if _, _, err := shred.OpenTree(t.Context(), wrapper{}, testKey, good[:i]); !errors.Is(err, memd.ErrCorrupt) {
			t.Fatalf("cut at %d: %v", i, err)
		}
	}
	if _, _, err := shred.OpenTree(t.Context(), wrapper{}, testKey, append(bytes.Clone(good), 0)); !errors.Is(err, memd.ErrCorrupt) {
		t.Errorf("a byte too many: %v", err)
	}
	if _, _, err := shred.OpenTree(t.Context(), wrapper{}, testKey+"2", good); !errors.Is(err, memd.ErrCorrupt) {
		t.Errorf("another KMS key: %v", err)
	}
}

// A header rewritten to another epoch must fail although the KMS is willing:
// the state itself is bound to it.
func TestOpenTree_RefusesAnotherEpochsData(t *testing.T) {
	one := newTree(t)
	first, second := sealed(t, one), sealed(t, next(t, one))
	epoch := len("memdtree") + 1 + 8
	binary.BigEndian.PutUint64(first[epoch:], 2)
	wrappedAt := epoch + 8 + 2 + len(testVersion) + 4
	wrappedLen := 32 + 16
	copy(first[wrappedAt:wrappedAt+wrappedLen], second[wrappedAt:])
	if _, _, err := shred.OpenTree(t.Context(), wrapper{}, testKey, first); !errors.Is(err, memd.ErrCorrupt) {
		t.Errorf("state of epoch 1 passed as epoch 2: %v", err)
	}
}

func TestSealTree_PassesErrorsOfTheKMS(t *testing.T) {
	b := sealed(t, newTree(t))
	for _, want := range []error{memd.ErrShredded, memd.ErrKeyUnavailable, memd.ErrPermissionDenied} {
		if _, _, err := shred.OpenTree(t.Context(), wrapper{fail: want}, testKey, b); !errors.Is(err, want) {
			t.Errorf("open: %v, want %v", err, want)
		}
		if _, err := shred.SealTree(t.Context(), wrapper{fail: want}, testVersion, newTree(t)); !errors.Is(err, want) {
			t.Errorf("seal: %v, want %v", err, want)
		}
	}
	for _, version := range []string{"", testKey, testVersion + strings.Repeat("1", 1024)} {
		if _, err := shred.SealTree(t.Context(), wrapper{}, version, newTree(t)); !errors.Is(err, memd.ErrInvalid) {
			t.Errorf("version %.80q: %v", version, err)
		}
	}
}

func FuzzParseTreeHeader(f *testing.F) {
	// A stored value, because fuzzing runs in several processes: each would call
	// the fresh value of another one a forgery.
	good := readVectors(f).SealedTree
	f.Add(good)
	f.Add(good[:40])
	f.Add([]byte("memdtree"))
	f.Fuzz(func(t *testing.T, data []byte) {
		tenant, epoch, version, err := shred.ParseTreeHeader(data)
		if err != nil {
			if !errors.Is(err, memd.ErrCorrupt) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if tenant < 1 || epoch < 1 || version == "" {
			t.Fatalf("accepted tenant %d, epoch %d, version %q", tenant, epoch, version)
		}
		tree, _, err := shred.OpenTree(t.Context(), wrapper{}, testKey, data)
		if err != nil && !errors.Is(err, memd.ErrCorrupt) {
			t.Fatalf("refused with %v", err)
		}
		if err == nil && !bytes.Equal(data, good) {
			t.Fatalf("opened a forgery of epoch %d", tree.Epoch())
		}
	})
}

func TestSealTree_SizeForTenThousandErased(t *testing.T) {
	tree := next(t, newTree(t), tenThousand(t, newRand(t))...)
	if n := len(sealed(t, tree)); n > 3_000_000 {
		t.Errorf("%d bytes sealed, above 3 MB", n)
	}
}

func BenchmarkSealTree10k(b *testing.B) {
	tree := next(b, newTree(b), tenThousand(b, newRand(b))...)
	for b.Loop() {
		sealed(b, tree)
	}
}

func BenchmarkNext10k(b *testing.B) {
	r := newRand(b)
	tree, paths := next(b, newTree(b), tenThousand(b, r)...), tenThousand(b, r)[:10]
	for b.Loop() {
		next(b, tree, paths...)
	}
}
