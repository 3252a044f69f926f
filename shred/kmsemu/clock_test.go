package kmsemu_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/kmstest"
)

const delay = 24 * time.Hour

type bundle struct {
	*kmstest.Emulator
	kms          *gcpkms.Client // as admin
	key, version string
	sealed       []byte
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{Emulator: kmstest.StartEmulator(t, "")}
	b.kms = b.Client(t, kmsemu.Admin)
	var err error
	if b.key, b.version, err = b.kms.CreateKey(t.Context(), "tenant-1", delay); err != nil {
		t.Fatalf("CreateKey: %v", err)
	}
	if b.sealed, err = b.kms.Encrypt(t.Context(), b.version, []byte("secret"), []byte("aad")); err != nil {
		t.Fatalf("Encrypt: %v", err)
	}
	return b
}

func (b *bundle) decrypt(t *testing.T) error {
	t.Helper()
	got, err := b.kms.Decrypt(t.Context(), b.key, b.sealed, []byte("aad"))
	if err == nil && string(got) != "secret" {
		t.Errorf("Decrypt = %q", got)
	}
	return err
}

func (b *bundle) destroy(t *testing.T) shred.Version {
	t.Helper()
	v, err := b.kms.Destroy(t.Context(), b.version)
	if err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	return v
}

func (b *bundle) state(t *testing.T) shred.Version {
	t.Helper()
	v, err := b.kms.Get(t.Context(), b.version)
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	return v
}

func (b *bundle) restore(t *testing.T) error {
	t.Helper()
	ctx, raw := b.Raw(t, kmsemu.Admin)
	_, err := raw.RestoreCryptoKeyVersion(ctx, &kmspb.RestoreCryptoKeyVersionRequest{Name: b.version})
	return err
}

func (b *bundle) set(t *testing.T, to kmspb.CryptoKeyVersion_CryptoKeyVersionState) error {
	t.Helper()
	ctx, raw := b.Raw(t, kmsemu.Admin)
	_, err := raw.UpdateCryptoKeyVersion(ctx, &kmspb.UpdateCryptoKeyVersionRequest{
		CryptoKeyVersion: &kmspb.CryptoKeyVersion{Name: b.version, State: to},
		UpdateMask:       &fieldmaskpb.FieldMask{Paths: []string{"state"}},
	})
	return err
}

// material returns the version's key as it stands in the file.
func (b *bundle) material(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(b.Dir, kmsemu.KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Keys map[string]struct {
			Versions []struct {
				Material string `json:"material"`
			} `json:"versions"`
		} `json:"keys"`
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		t.Fatal(err)
	}
	return f.Keys[b.key].Versions[0].Material
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
}

func TestServer_DestroysWhenTimePasses(t *testing.T) {
	b := setup(t)
	material := b.material(t)
	if material == "" {
		t.Fatal("no key in the file: this test would prove nothing")
	}
	scheduled := b.destroy(t)
	b.Clock.Advance(delay - time.Microsecond)
	if v := b.state(t); v.State != shred.VersionDestroyScheduled || b.material(t) != material {
		t.Errorf("just before its time: %+v, material kept %v", v, b.material(t) == material)
	}
	b.Clock.Advance(time.Microsecond)
	v := b.state(t)
	if v.State != shred.VersionDestroyed || !v.DestroyedAt.Equal(scheduled.DestroyAt) || !v.DestroyAt.IsZero() {
		t.Errorf("at its time: %+v, want destroyed at %v", v, scheduled.DestroyAt)
	}
	raw, err := os.ReadFile(filepath.Join(b.Dir, kmsemu.KeyFile))
	if err != nil || strings.Contains(string(raw), material) {
		t.Errorf("the destroyed key is still in the file (%v)", err)
	}
	var refused *shred.VersionStateError
	if err := b.decrypt(t); !errors.As(err, &refused) || refused.State != shred.VersionDestroyed {
		t.Errorf("Decrypt = %v, want a refusal that says DESTROYED", err)
	}
	wantCode(t, "restoring a destroyed version", b.restore(t), codes.FailedPrecondition)
	wantCode(t, "enabling a destroyed version", b.set(t, kmspb.CryptoKeyVersion_ENABLED), codes.FailedPrecondition)
	if v, err := b.kms.Destroy(t.Context(), b.version); err != nil || v.State != shred.VersionDestroyed {
		t.Errorf("Destroy of a destroyed version = %+v, %v, want success", v, err)
	}
}

func TestServer_RestoresDisabled(t *testing.T) {
	b := setup(t)
	wantCode(t, "restoring an enabled version", b.restore(t), codes.FailedPrecondition)
	b.destroy(t)
	wantCode(t, "enabling a scheduled version", b.set(t, kmspb.CryptoKeyVersion_ENABLED), codes.FailedPrecondition)
	if err := b.restore(t); err != nil {
		t.Fatalf("restoring: %v", err)
	}
	if v := b.state(t); v.State != shred.VersionDisabled || !v.DestroyAt.IsZero() {
		t.Errorf("restored = %+v, want disabled and no date", v)
	}
	if err := b.decrypt(t); !errors.Is(err, memd.ErrShredded) {
		t.Errorf("Decrypt under a restored version = %v, want ErrShredded until it is enabled", err)
	}
	b.Clock.Advance(2 * delay)
	if err := b.set(t, kmspb.CryptoKeyVersion_ENABLED); err != nil {
		t.Fatalf("enabling: %v", err)
	}
	if err := b.decrypt(t); err != nil {
		t.Errorf("Decrypt after restoring and enabling: %v", err)
	}
}

func TestServer_RestartKeepsState(t *testing.T) {
	b := setup(t)
	second, err := b.kms.CreateVersion(t.Context(), b.key)
	if err != nil {
		t.Fatal(err)
	}
	tokens := b.Server.Tokens()
	b.Restart(t, 0)
	if err := b.decrypt(t); err != nil {
		t.Errorf("Decrypt after a restart: %v", err)
	}
	for id, token := range b.Server.Tokens() {
		if tokens[id] != token {
			t.Errorf("identity %s has another token after a restart", id)
		}
	}
	due := b.destroy(t).DestroyAt
	b.Restart(t, delay)
	// Nobody has called yet: the start itself destroys what fell due meanwhile.
	if b.material(t) != "" {
		t.Error("the key that fell due while the emulator was down is still in the file")
	}
	if v := b.state(t); v.State != shred.VersionDestroyed || !v.DestroyedAt.Equal(due) {
		t.Errorf("after the restart = %+v, want destroyed at %v", v, due)
	}
	if v, err := b.kms.Get(t.Context(), second); err != nil || v.State != shred.VersionEnabled {
		t.Errorf("the other version after the restart = %+v, %v", v, err)
	}
}

func TestServer_RotatesByItselfWhenAsked(t *testing.T) {
	b := setup(t)
	ctx, raw := b.Raw(t, kmsemu.Admin)
	name := kmsemu.DefaultKeyRing + "/cryptoKeys/rotating"
	_, err := raw.CreateCryptoKey(ctx, &kmspb.CreateCryptoKeyRequest{
		Parent: kmsemu.DefaultKeyRing, CryptoKeyId: "rotating",
		CryptoKey: &kmspb.CryptoKey{
			Purpose:          kmspb.CryptoKey_ENCRYPT_DECRYPT,
			RotationSchedule: &kmspb.CryptoKey_RotationPeriod{RotationPeriod: durationpb.New(delay)},
			NextRotationTime: timestamppb.New(b.Clock.Now().Add(time.Hour)),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"/cryptoKeyVersions/1", "/cryptoKeyVersions/2", "/cryptoKeyVersions/3"} {
		resp, err := raw.Encrypt(ctx, &kmspb.EncryptRequest{Name: name, Plaintext: []byte("x")})
		if err != nil || resp.GetName() != name+want {
			t.Errorf("Encrypt under the key = %s, %v, want %s", resp.GetName(), err, want)
		}
		b.Clock.Advance(delay)
	}
	k, err := raw.UpdateCryptoKeyPrimaryVersion(ctx, &kmspb.UpdateCryptoKeyPrimaryVersionRequest{Name: name, CryptoKeyVersionId: "1"})
	if err != nil || k.GetPrimary().GetName() != name+"/cryptoKeyVersions/1" {
		t.Errorf("UpdateCryptoKeyPrimaryVersion = %v, %v", k.GetPrimary().GetName(), err)
	}
}

// A version goes on working for a while after it was destroyed, as Cloud KMS's
// may: whoever confirms a destruction must be able to meet this in a test.
func TestServer_StaleFault(t *testing.T) {
	b := setup(t)
	b.destroy(t)
	remove := b.Server.Inject(kmsemu.Fault{Method: "Decrypt", Stale: true, Times: 1})
	defer remove()
	if err := b.decrypt(t); err != nil {
		t.Errorf("Decrypt while the destruction has not spread: %v", err)
	}
	if err := b.decrypt(t); !errors.Is(err, memd.ErrShredded) {
		t.Errorf("Decrypt after it has = %v, want ErrShredded", err)
	}
	if got := b.Server.Calls("Decrypt"); got != 2 {
		t.Errorf("Calls = %d, want 2", got)
	}
}
