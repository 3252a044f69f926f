package shred_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

func rowSealer(t testing.TB) *shred.Sealer {
	t.Helper()
	s, err := shred.NewKeys(newTree(t)).Row(683, []memd.Contribution{{Subject: number(t, 1, 5), Session: number(t, 1, 2)}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestSealer_Roundtrip(t *testing.T) {
	r, s := newRand(t), rowSealer(t)
	text := []byte(strings.Repeat("she said that she likes tea. ", 200))
	cases := map[string][]byte{
		"nothing":         {},
		"one byte":        {1},
		"63 bytes":        text[:63],
		"64 bytes":        text[:64],
		"text":            text,
		"vector":          randomBytes(r, 1536),
		"largest":         bytes.Repeat([]byte{7}, memd.MaxBatchBytes),
		"largest, random": randomBytes(r, memd.MaxBatchBytes),
	}
	for name, plaintext := range cases {
		sealed, err := s.Seal(plaintext, []byte("here"))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := s.Open(sealed, []byte("here"))
		if err != nil || !bytes.Equal(got, plaintext) {
			t.Errorf("%s came back otherwise: %v", name, err)
		}
		if len(sealed) > len(plaintext)+shred.SealOverhead {
			t.Errorf("%s grew by %d", name, len(sealed)-len(plaintext))
		}
		again, err := s.Seal(plaintext, []byte("here"))
		if err != nil || bytes.Equal(again[:12], sealed[:12]) {
			t.Errorf("%s: nonce used twice: %v", name, err)
		}
	}
	if sealed, err := s.SealFast(text[:min(len(text), 4<<10)], nil); err != nil || len(sealed) != min(len(text), 4<<10)+shred.SealOverhead {
		t.Errorf("4 KiB in a hurry: %d bytes, %v", len(sealed), err)
	} else if opened, err := s.Open(sealed, nil); err != nil || len(opened) != min(len(text), 4<<10) {
		t.Errorf("opening that: %d bytes, %v", len(opened), err)
	}
	if sealed, _ := s.Seal(text, nil); len(sealed) > len(text)/2 {
		t.Errorf("text of %d bytes was not compressed: %d", len(text), len(sealed))
	}
	if sealed, _ := s.Seal(cases["vector"], nil); len(sealed) != 1536+shred.SealOverhead {
		t.Errorf("a vector was compressed in vain: %d", len(sealed))
	}
	if _, err := s.Seal(make([]byte, memd.MaxBatchBytes+1), nil); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("above the limit: %v", err)
	}
}

func TestSealer_RefusesEveryChange(t *testing.T) {
	s := rowSealer(t)
	for _, plaintext := range []string{"tea", strings.Repeat("tea and biscuits ", 20)} {
		sealed, err := s.Seal([]byte(plaintext), []byte("aad"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range sealed {
			b := bytes.Clone(sealed)
			b[i] ^= 1
			if _, err := s.Open(b, []byte("aad")); !errors.Is(err, memd.ErrCorrupt) {
				t.Fatalf("byte %d changed: %v", i, err)
			}
			if _, err := s.Open(sealed[:i], []byte("aad")); !errors.Is(err, memd.ErrCorrupt) {
				t.Fatalf("cut at %d: %v", i, err)
			}
		}
		if _, err := s.Open(sealed, []byte("aae")); !errors.Is(err, memd.ErrCorrupt) {
			t.Errorf("other associated data: %v", err)
		}
	}
}

func FuzzSealer_Open(f *testing.F) {
	stored := readVectors(f).Sealed[2] // compressed
	s, good := vectorSealers(f)[stored.Key], stored.Sealed
	aadOf := stored.Key
	f.Add(good, []byte(aadOf))
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, sealed, aad []byte) {
		if bytes.Equal(sealed, good) && string(aad) == aadOf {
			return
		}
		if _, err := s.Open(sealed, aad); !errors.Is(err, memd.ErrCorrupt) {
			t.Fatalf("opened a forgery, or refused with %v", err)
		}
	})
}

func TestSealer_Digest(t *testing.T) {
	s := rowSealer(t)
	digest := func(parts ...string) [16]byte {
		var b [][]byte
		for _, p := range parts {
			b = append(b, []byte(p))
		}
		return s.Digest(b...)
	}
	if once, again := digest("colour", "red"), digest("colour", "red"); once != again {
		t.Error("digest is not stable")
	}
	seen := map[[16]byte]bool{}
	for _, parts := range [][]string{{}, {""}, {"", ""}, {"ab"}, {"a", "b"}, {"", "ab"}, {"ab", ""}} {
		seen[digest(parts...)] = true
	}
	if len(seen) != 7 {
		t.Errorf("7 lists of parts gave %d digests", len(seen))
	}
}

// A row copied into another tenant, owner, row or column does not open: every
// field of every purpose makes other associated data.
func TestAAD_NoTwoPlacesAreAlike(t *testing.T) {
	a, b := uuid.UUID{1}, uuid.UUID{2}
	m, n := number(t, 1, 1), number(t, 1, 2)
	seen := map[string]bool{}
	places := [][]byte{
		shred.AADMemoryText(1, m, a), shred.AADMemoryText(2, m, a), shred.AADMemoryText(1, n, a), shred.AADMemoryText(1, m, b),
		shred.AADMemoryVector(1, m, a), shred.AADMemoryVector(2, m, a), shred.AADMemoryVector(1, n, a), shred.AADMemoryVector(1, m, b),
		shred.AADMemoryMetadata(1, m, a), shred.AADMemoryMetadata(2, m, a), shred.AADMemoryMetadata(1, n, a), shred.AADMemoryMetadata(1, m, b),
		shred.AADUserID(1, m), shred.AADUserID(2, m), shred.AADUserID(1, n),
		shred.AADSessionID(1, m, m), shred.AADSessionID(2, m, m), shred.AADSessionID(1, n, m), shred.AADSessionID(1, m, n),
		shred.AADTargetSecret(1, a), shred.AADTargetSecret(2, a), shred.AADTargetSecret(1, b),
		shred.AADEvent(1, m, m, a), shred.AADEvent(2, m, m, a), shred.AADEvent(1, n, m, a), shred.AADEvent(1, m, n, a), shred.AADEvent(1, m, m, b),
		shred.AADSessionState(1, m, m, a), shred.AADSessionState(1, n, m, a), shred.AADSessionState(1, m, n, a), shred.AADSessionState(1, m, m, b),
		shred.AADUserState(1, m, a), shred.AADUserState(1, n, a), shred.AADUserState(1, m, b),
		shred.AADAppState(1, m, m, a), shred.AADAppState(1, n, m, a), shred.AADAppState(1, m, n, a), shred.AADAppState(1, m, m, b),
		shred.AADTree(1, 1), shred.AADTree(2, 1), shred.AADTree(1, 2),
		shred.AADJob(1, m, "a"), shred.AADJob(2, m, "a"), shred.AADJob(1, n, "a"), shred.AADJob(1, m, "b"),
	}
	for i, p := range places {
		if seen[string(p)] {
			t.Errorf("place %d is like another", i)
		}
		seen[string(p)] = true
	}
}
