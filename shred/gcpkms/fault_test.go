package gcpkms_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/kmstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const delay = 24 * time.Hour

// bundle is an emulator with one tenant's key and something sealed under it.
type bundle struct {
	*kmstest.Emulator
	kms          *gcpkms.Client // as admin, with short bounds
	key, version string
	sealed       []byte
	attempts     *attempts
}

// attempts records what OnCall was told.
type attempts struct {
	mu  sync.Mutex
	got []string
}

func (a *attempts) record(method string, err error, _ time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	outcome := "ok"
	for name, class := range map[string]error{
		"shredded": memd.ErrShredded, "unavailable": memd.ErrKeyUnavailable, "corrupt": memd.ErrCorrupt, "denied": memd.ErrPermissionDenied,
		"exists": memd.ErrExists,
	} {
		if errors.Is(err, class) {
			outcome = name
		}
	}
	a.got = append(a.got, method+" "+outcome)
}

func (a *attempts) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	got := a.got
	a.got = nil
	return got
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{Emulator: kmstest.StartEmulator(t, ""), attempts: &attempts{}}
	b.kms = b.Client(t, kmsemu.Admin, func(c *gcpkms.Config) { c.OnCall = b.attempts.record })
	var err error
	if b.key, b.version, err = b.kms.CreateKey(t.Context(), "tenant-1", delay); err != nil {
		t.Fatalf("CreateKey: %v", err)
	}
	if b.sealed, err = b.kms.Encrypt(t.Context(), b.version, []byte("secret"), []byte("aad")); err != nil {
		t.Fatalf("Encrypt: %v", err)
	}
	b.attempts.take()
	return b
}

// impatient is a client that gives up soon.
func (b *bundle) impatient(t *testing.T) *gcpkms.Client {
	return b.Client(t, kmsemu.Admin, func(c *gcpkms.Config) {
		c.OnCall, c.AttemptTimeout, c.MaxElapsed = b.attempts.record, 200*time.Millisecond, 800*time.Millisecond
	})
}

func (b *bundle) encrypt(t *testing.T, kms shred.KMS) error {
	_, err := kms.Encrypt(t.Context(), b.version, []byte("secret"), []byte("aad"))
	return err
}

func (b *bundle) decrypt(t *testing.T, kms shred.KMS) error {
	got, err := kms.Decrypt(t.Context(), b.key, b.sealed, []byte("aad"))
	if err == nil && string(got) != "secret" {
		t.Errorf("Decrypt = %q", got)
	}
	return err
}

func TestClient_PassingTrouble(t *testing.T) {
	for _, tc := range []struct {
		name    string
		fault   kmsemu.Fault
		outcome string // of the attempts that it befalls
		final   error  // when it does not pass
	}{
		{"unavailable", kmsemu.Fault{Code: codes.Unavailable}, "unavailable", memd.ErrKeyUnavailable},
		{"deadline exceeded", kmsemu.Fault{Code: codes.DeadlineExceeded}, "unavailable", memd.ErrKeyUnavailable},
		{"resource exhausted", kmsemu.Fault{Code: codes.ResourceExhausted}, "unavailable", memd.ErrKeyUnavailable},
		{"slow", kmsemu.Fault{Delay: time.Minute}, "unavailable", memd.ErrKeyUnavailable},
		{"answer lost", kmsemu.Fault{LoseAnswer: true}, "unavailable", memd.ErrKeyUnavailable},
		{"request damaged", kmsemu.Fault{DamageRequest: true}, "corrupt", memd.ErrCorrupt},
		{"answer damaged", kmsemu.Fault{CorruptChecksum: true}, "corrupt", memd.ErrCorrupt},
		{"answer without checksum", kmsemu.Fault{DropChecksum: true}, "corrupt", memd.ErrCorrupt},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			patient := b.Client(t, kmsemu.Admin, func(c *gcpkms.Config) {
				c.OnCall, c.AttemptTimeout = b.attempts.record, 1500*time.Millisecond
			})
			impatient := b.impatient(t)
			for method, call := range map[string]func(*testing.T, shred.KMS) error{"Encrypt": b.encrypt, "Decrypt": b.decrypt} {
				fault := tc.fault
				fault.Method, fault.Times = method, 2
				remove := b.Server.Inject(fault)
				if err := call(t, patient); err != nil {
					t.Errorf("%s: two faults did not pass: %v", method, err)
				}
				remove()
				want := []string{method + " " + tc.outcome, method + " " + tc.outcome, method + " ok"}
				if diff := cmp.Diff(want, b.attempts.take()); diff != "" {
					t.Errorf("attempts (-want +got):\n%s", diff)
				}
				fault.Times = 0
				remove = b.Server.Inject(fault)
				start := time.Now()
				err := call(t, impatient)
				remove()
				if !errors.Is(err, tc.final) || errors.Is(err, memd.ErrShredded) {
					t.Errorf("%s: a fault that stays = %v, want %v", method, err, tc.final)
				}
				if d := time.Since(start); d > 30*time.Second {
					t.Errorf("%s: gave up after %v only", method, d)
				}
				if n := len(b.attempts.take()); n < 2 {
					t.Errorf("%s: gave up after %d attempts", method, n)
				}
			}
		})
	}
}

func TestClient_UnverifiedRequest(t *testing.T) {
	b := setup(t)
	remove := b.Server.Inject(kmsemu.Fault{Method: "Encrypt", Unverified: true})
	defer remove()
	if err := b.encrypt(t, b.impatient(t)); !errors.Is(err, memd.ErrCorrupt) {
		t.Errorf("Encrypt whose checksums were not verified = %v, want ErrCorrupt", err)
	}
}

func TestClient_AnswersThatAreFinal(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault kmsemu.Fault
		want  error
	}{
		{"permission denied", kmsemu.Fault{Code: codes.PermissionDenied}, memd.ErrPermissionDenied},
		{"unauthenticated", kmsemu.Fault{Code: codes.Unauthenticated}, memd.ErrUnauthenticated},
		{"not found", kmsemu.Fault{Code: codes.NotFound}, memd.ErrNotFound},
		// The project's KMS API is switched off: the same code as a destroyed
		// version, and no confirmation of anything.
		{"a precondition about something else", kmsemu.Fault{Code: codes.FailedPrecondition}, memd.ErrKeyUnavailable},
		{"internal", kmsemu.Fault{Code: codes.Internal}, memd.ErrKeyUnavailable},
		{"a code that nobody knows", kmsemu.Fault{Code: codes.Code(99)}, memd.ErrKeyUnavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := setup(t)
			remove := b.Server.Inject(tc.fault)
			defer remove()
			for _, call := range []func(*testing.T, shred.KMS) error{b.encrypt, b.decrypt} {
				if err := call(t, b.kms); !errors.Is(err, tc.want) || errors.Is(err, memd.ErrShredded) {
					t.Errorf("got %v, want %v", err, tc.want)
				}
			}
			if got := b.attempts.take(); len(got) != 2 {
				t.Errorf("attempts = %v, want one for each call", got)
			}
		})
	}
}

func TestClient_WrongVersionInAnswer(t *testing.T) {
	b := setup(t)
	remove := b.Server.Inject(kmsemu.Fault{WrongVersionName: true})
	defer remove()
	if err := b.encrypt(t, b.kms); !errors.Is(err, memd.ErrCorrupt) {
		t.Errorf("Encrypt under another version = %v, want ErrCorrupt", err)
	}
	if _, err := b.kms.Get(t.Context(), b.version); !errors.Is(err, memd.ErrCorrupt) {
		t.Errorf("Get of another version = %v, want ErrCorrupt", err)
	}
	if _, err := b.kms.Destroy(t.Context(), b.version); !errors.Is(err, memd.ErrCorrupt) {
		t.Errorf("Destroy of another version = %v, want ErrCorrupt", err)
	}
	want := []string{"Encrypt corrupt", "GetCryptoKeyVersion corrupt", "DestroyCryptoKeyVersion corrupt"}
	if diff := cmp.Diff(want, b.attempts.take()); diff != "" {
		t.Errorf("attempts, which must not be repeated (-want +got):\n%s", diff)
	}
}

func TestClient_LostAnswers(t *testing.T) {
	b := setup(t)
	lose := func(method string) { b.Server.Inject(kmsemu.Fault{Method: method, LoseAnswer: true, Times: 1}) }

	lose("CreateCryptoKey")
	if _, _, err := b.kms.CreateKey(t.Context(), "tenant-2", delay); err != nil {
		t.Errorf("CreateKey whose answer was lost: %v", err)
	}
	lose("DestroyCryptoKeyVersion")
	if v, err := b.kms.Destroy(t.Context(), b.version); err != nil || v.State != shred.VersionDestroyScheduled {
		t.Errorf("Destroy whose answer was lost = %+v, %v", v, err)
	}
	lose("CreateCryptoKeyVersion")
	version, err := b.kms.CreateVersion(t.Context(), b.key)
	if err != nil || version != b.key+"/cryptoKeyVersions/3" {
		t.Errorf("CreateVersion whose answer was lost = %q, %v, want version 3, with 2 left behind", version, err)
	}
	versions, err := b.kms.List(t.Context(), b.key)
	if err != nil || len(versions) != 3 || versions[1].State != shred.VersionEnabled {
		t.Errorf("List = %+v, %v, want the version left behind to show", versions, err)
	}
}

func TestClient_WaitsForPendingVersion(t *testing.T) {
	b := setup(t)
	remove := b.Server.Inject(kmsemu.Fault{Method: "CreateCryptoKeyVersion", Pending: true})
	defer remove()
	b.Server.Inject(kmsemu.Fault{Method: "GetCryptoKeyVersion", Pending: true, Times: 2})
	version, err := b.kms.CreateVersion(t.Context(), b.key)
	if err != nil {
		t.Fatalf("CreateVersion: %v", err)
	}
	if n := len(slices.DeleteFunc(b.attempts.take(), func(s string) bool { return !strings.HasPrefix(s, "Get") })); n != 3 {
		t.Errorf("looked %d times, want 3", n)
	}
	b.Server.Inject(kmsemu.Fault{Method: "GetCryptoKeyVersion", Pending: true})
	if _, err := b.impatient(t).CreateVersion(t.Context(), b.key); !errors.Is(err, memd.ErrKeyUnavailable) {
		t.Errorf("CreateVersion of one that stays pending = %v, want ErrKeyUnavailable", err)
	}
	if _, err := b.kms.Encrypt(t.Context(), version, []byte("x"), []byte("a")); err != nil {
		t.Errorf("Encrypt under the version waited for: %v", err)
	}
}

func TestClient_RestartedKMS(t *testing.T) {
	b := setup(t)
	b.Stop()
	err := b.decrypt(t, b.impatient(t))
	if !errors.Is(err, memd.ErrKeyUnavailable) || errors.Is(err, memd.ErrShredded) {
		t.Errorf("Decrypt without a KMS = %v, want ErrKeyUnavailable", err)
	}
	b.Restart(t, 0)
	if err := b.decrypt(t, b.kms); err != nil {
		t.Errorf("Decrypt on the old connection after a restart: %v", err)
	}
}

func TestClient_CallerWithDeadline(t *testing.T) {
	b := setup(t)
	remove := b.Server.Inject(kmsemu.Fault{Delay: time.Minute})
	defer remove()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err := b.kms.Decrypt(ctx, b.key, b.sealed, []byte("aad"))
	if !errors.Is(err, memd.ErrKeyUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Decrypt past the caller's deadline = %v, want ErrKeyUnavailable and DeadlineExceeded", err)
	}
}
