package kmstest

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// delay is the destroy delay of the suite's keys: the shortest there is.
const delay = 24 * time.Hour

// Harness is what Run needs: one KMS, seen by three identities with the
// permissions that the package comment of kmsemu lists. On Cloud KMS they are
// granted on the key ring, so that what does not exist is "not found".
type Harness struct {
	App, Worker, Shredder shred.KMS
	// Patience is how long a destroyed version may go on working. Cloud KMS is
	// eventually consistent here: a minute as a rule. 0 for the emulator.
	Patience time.Duration
	// Now is the KMS's clock; time.Now when nil.
	Now func() time.Time
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	if h.Now == nil {
		h.Now = time.Now
	}
	for _, tc := range []struct {
		name string
		run  func(*testing.T, Harness)
	}{
		{"creates a key once", testCreateKey},
		{"refuses a key of another kind", testCreateKeyRefusals},
		{"opens what it sealed", testRoundTrip},
		{"refuses other associated data and changed bytes", testTampering},
		{"refuses the key of another tenant", testWrongTenant},
		{"seals under the version that was named", testPinning},
		{"lists every version oldest first", testList},
		{"destroys, and says so", testDestroy},
		{"destroys twice without harm", testDestroyTwice},
		{"says what does not exist", testNotFound},
		{"says what is malformed", testMalformed},
		{"lets each identity do its part only", testPermissions},
		{"gives up with the caller", testCanceled},
		{"keeps content out of errors", testErrorsWithoutContent},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, h) })
	}
}

// newKeyID returns an id that no run used before.
func newKeyID() string { return "conformance-" + strings.ToLower(rand.Text()) }

// newKey makes a key whose versions are all scheduled for destruction when the
// test ends.
func newKey(t *testing.T, h Harness) (key, version string) {
	t.Helper()
	key, version, err := h.Worker.CreateKey(t.Context(), newKeyID(), delay)
	if err != nil {
		t.Fatalf("CreateKey: %v", err)
	}
	t.Cleanup(func() { retire(t, h, key) })
	return key, version
}

func retire(t *testing.T, h Harness, key string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	versions, err := h.Shredder.List(ctx, key)
	if err != nil {
		t.Errorf("retiring the key: %v", err)
	}
	for _, v := range versions {
		if _, err := h.Shredder.Destroy(ctx, v.Name); err != nil {
			t.Errorf("retiring the key: %v", err)
		}
	}
}

func seal(t *testing.T, h Harness, version, plaintext, aad string) []byte {
	t.Helper()
	ciphertext, err := h.Worker.Encrypt(t.Context(), version, []byte(plaintext), []byte(aad))
	if err != nil {
		t.Fatalf("Encrypt: %v", err)
	}
	return ciphertext
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
	if want == memd.ErrShredded && (errors.Is(err, memd.ErrKeyUnavailable) || memd.Transient(err)) {
		t.Errorf("%s is shredded and yet transient: %v", what, err)
	}
	if want == memd.ErrKeyUnavailable && errors.Is(err, memd.ErrShredded) {
		t.Errorf("%s is unavailable and yet shredded: %v", what, err)
	}
}

// eventually repeats call until it fails or the harness's patience is over, and
// returns its last error. Polling, because a remote service sends no signal.
func eventually(h Harness, call func() error) error {
	for deadline := time.Now().Add(h.Patience); ; time.Sleep(time.Second) {
		if err := call(); err != nil || !time.Now().Before(deadline) {
			return err
		}
	}
}
