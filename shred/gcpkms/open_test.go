package gcpkms_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/kmstest"
)

func disable(t *testing.T, ctx context.Context, raw kmspb.KeyManagementServiceClient, version string) {
	t.Helper()
	_, err := raw.UpdateCryptoKeyVersion(ctx, &kmspb.UpdateCryptoKeyVersionRequest{
		CryptoKeyVersion: &kmspb.CryptoKeyVersion{Name: version, State: kmspb.CryptoKeyVersion_DISABLED},
		UpdateMask:       &fieldmaskpb.FieldMask{Paths: []string{"state"}},
	})
	if err != nil {
		t.Fatalf("disabling: %v", err)
	}
}

func TestOpen_RefusesWhatDoesNotFit(t *testing.T) {
	const ring = "gcp:projects/p/locations/l/keyRings/r"
	for name, cfg := range map[string]gcpkms.Config{
		"no URL":                     {},
		"another scheme":             {URL: "aws:eu-west-1"},
		"gcp without a ring":         {URL: "gcp:projects/p"},
		"gcp with a key":             {URL: ring + "/cryptoKeys/k"},
		"gcp with a token":           {URL: ring, Token: "token"},
		"emulator without a port":    {URL: "emulator:localhost", Token: "token"},
		"emulator without a token":   {URL: "emulator:localhost:1"},
		"emulator with credentials":  {URL: "emulator:localhost:1", Token: "token", CredentialsFile: "x.json"},
		"emulator and impersonation": {URL: "emulator:localhost:1", Token: "token", Impersonate: "x@example.com"},
	} {
		if c, err := gcpkms.Open(t.Context(), cfg); !errors.Is(err, memd.ErrInvalid) {
			t.Errorf("%s: Open = %v, want ErrInvalid", name, err)
			if c != nil {
				c.Close()
			}
		}
	}
}

// The way to Google is opened without a network: credentials are parsed, and
// nothing is called.
func TestOpen_Google(t *testing.T) {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": "p", "private_key_id": "1", "client_email": "memd@p.iam.gserviceaccount.com",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"token_uri":   "http://127.0.0.1:1/token",
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "credentials.json")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := gcpkms.Config{
		URL: "gcp:projects/p/locations/l/keyRings/r", CredentialsFile: path, Endpoint: "127.0.0.1:1",
		AttemptTimeout: 100 * time.Millisecond, MaxElapsed: 300 * time.Millisecond,
	}
	c, err := gcpkms.Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer c.Close()
	if got := c.KeyRing(); got != "projects/p/locations/l/keyRings/r" {
		t.Errorf("KeyRing = %q", got)
	}
	_, err = c.Get(t.Context(), c.KeyRing()+"/cryptoKeys/k/cryptoKeyVersions/1")
	if !errors.Is(err, memd.ErrKeyUnavailable) || errors.Is(err, memd.ErrShredded) {
		t.Errorf("Get from a service that is not there = %v, want ErrKeyUnavailable", err)
	}
	cfg.CredentialsFile = path + ".missing"
	if c, err := gcpkms.Open(t.Context(), cfg); err == nil {
		c.Close()
		t.Error("Open with a credentials file that is missing succeeded")
	}
}

func TestOpen_EmulatorKeyRing(t *testing.T) {
	if gcpkms.EmulatorKeyRing != kmsemu.DefaultKeyRing {
		t.Errorf("the client looks for %q, the emulator makes %q", gcpkms.EmulatorKeyRing, kmsemu.DefaultKeyRing)
	}
}

func TestClient_UnknownToken(t *testing.T) {
	e := kmstest.StartEmulator(t, "")
	kms := e.Client(t, kmsemu.Worker, func(c *gcpkms.Config) { c.Token = "some other token" })
	if _, _, err := kms.CreateKey(t.Context(), "tenant-1", delay); !errors.Is(err, memd.ErrUnauthenticated) {
		t.Errorf("CreateKey with an unknown token = %v, want ErrUnauthenticated", err)
	}
}

// Automatic rotation decides which version wraps a month.
func TestClient_RefusesAutomaticRotation(t *testing.T) {
	b := setup(t)
	ctx, raw := b.Raw(t, kmsemu.Admin)
	_, err := raw.CreateCryptoKey(ctx, &kmspb.CreateCryptoKeyRequest{
		Parent: gcpkms.EmulatorKeyRing, CryptoKeyId: "rotating",
		CryptoKey: &kmspb.CryptoKey{
			Purpose: kmspb.CryptoKey_ENCRYPT_DECRYPT, DestroyScheduledDuration: durationpb.New(delay),
			RotationSchedule: &kmspb.CryptoKey_RotationPeriod{RotationPeriod: durationpb.New(delay)},
			NextRotationTime: timestamppb.New(b.Clock.Now().Add(delay)),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.kms.CreateKey(t.Context(), "rotating", delay); !errors.Is(err, memd.ErrExists) {
		t.Errorf("CreateKey of a key that rotates by itself = %v, want ErrExists", err)
	}
}

// Delete-all clears only the first page: a listing longer than a page is whole.
func TestClient_ListAboveThePageSize(t *testing.T) {
	b := setup(t)
	const n = 501
	for range n - 1 {
		if _, err := b.kms.CreateVersion(t.Context(), b.key); err != nil {
			t.Fatalf("CreateVersion: %v", err)
		}
	}
	versions, err := b.kms.List(t.Context(), b.key)
	if err != nil || len(versions) != n {
		t.Fatalf("List = %d versions, %v, want %d", len(versions), err, n)
	}
	if got := versions[n-1].Name; got != b.key+"/cryptoKeyVersions/501" {
		t.Errorf("the last version is %s", got)
	}
}
