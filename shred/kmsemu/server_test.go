package kmsemu_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred/kmsemu"
)

// secondProcess makes this test binary open the emulator in the directory that
// it names, instead of running tests.
const secondProcess = "MEMD_TEST_KMSEMU_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(secondProcess); dir != "" {
		server, err := kmsemu.Open(kmsemu.Config{Dir: dir})
		if errors.Is(err, kmsemu.ErrLocked) {
			fmt.Println("locked")
			return
		}
		if err == nil {
			err = server.Stop(context.Background())
		}
		fmt.Println("opened", err)
		return
	}
	goleak.VerifyTestMain(m)
}

func openElsewhere(t *testing.T, dir string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), secondProcess+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("second process: %v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestOpen_RefusesSecondProcess(t *testing.T) {
	b := setup(t)
	if got := openElsewhere(t, b.Dir); got != "locked" {
		t.Errorf("a second process: %s, want locked", got)
	}
	if _, err := kmsemu.Open(kmsemu.Config{Dir: b.Dir}); !errors.Is(err, kmsemu.ErrLocked) {
		t.Errorf("a second Server of this process = %v, want ErrLocked", err)
	}
	b.Stop()
	if got := openElsewhere(t, b.Dir); got != "opened <nil>" {
		t.Errorf("a second process after the first stopped: %s", got)
	}
}

func TestOpen_KeepsFilesToTheirOwner(t *testing.T) {
	b := setup(t)
	b.Stop()
	for _, name := range []string{kmsemu.KeyFile, kmsemu.TokensFile} {
		path := filepath.Join(b.Dir, name)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != 0o600 {
			t.Errorf("%s has mode %v, want 0600", name, got)
		}
		if err := os.Chmod(path, 0o640); err != nil {
			t.Fatal(err)
		}
		if s, err := kmsemu.Open(kmsemu.Config{Dir: b.Dir}); err == nil {
			t.Errorf("opened although %s is open to others", name)
			s.Stop(t.Context())
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpen_RefusesDamagedFiles(t *testing.T) {
	for name, content := range map[string]string{
		"not JSON": "secret-material", "another format": `{"format": 2}`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, kmsemu.KeyFile), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := kmsemu.Open(kmsemu.Config{Dir: dir})
		if err == nil {
			s.Stop(t.Context())
			t.Errorf("%s: opened", name)
		} else if strings.Contains(err.Error(), "secret-material") {
			t.Errorf("%s: the file's content is in the error: %v", name, err)
		}
	}
	for name, content := range map[string]string{
		"no identities": `{}`, "short tokens": `{"app":"a","worker":"b","shredder":"c","admin":"d"}`,
		"shared tokens": `{"app":"0123456789abcdef","worker":"0123456789abcdef","shredder":"0123456789abcdef","admin":"0123456789abcdef"}`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, kmsemu.TokensFile), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := kmsemu.Open(kmsemu.Config{Dir: dir}); err == nil {
			s.Stop(t.Context())
			t.Errorf("%s: opened", name)
		}
	}
}

// What could not be written did not happen, and is not answered as if it had.
func TestServer_FailedWriteChangesNothing(t *testing.T) {
	b := setup(t)
	if err := os.RemoveAll(b.Dir); err != nil {
		t.Fatal(err)
	}
	if _, err := b.kms.CreateVersion(t.Context(), b.key); !errors.Is(err, memd.ErrKeyUnavailable) {
		t.Errorf("CreateVersion that cannot be written = %v, want ErrKeyUnavailable", err)
	}
	if v, err := b.kms.Destroy(t.Context(), b.version); err == nil {
		t.Errorf("Destroy that cannot be written = %+v, want an error", v)
	}
	versions, err := b.kms.List(t.Context(), b.key)
	if err != nil || len(versions) != 1 {
		t.Errorf("List = %+v, %v, want the one version there was", versions, err)
	}
	if err := b.decrypt(t); err != nil {
		t.Errorf("Decrypt after a destruction that did not happen: %v", err)
	}
}

func TestServer_AuthenticatesCallers(t *testing.T) {
	b := setup(t)
	conn, err := grpc.NewClient("passthrough:///"+b.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw := kmspb.NewKeyManagementServiceClient(conn)
	good := "Bearer " + b.Server.Tokens()[kmsemu.Admin]
	for name, values := range map[string][]string{
		"no token": nil, "empty": {""}, "unknown": {"Bearer 0123456789abcdef"}, "no scheme": {b.Server.Tokens()[kmsemu.Admin]}, "two": {good, good},
	} {
		ctx := metadata.NewOutgoingContext(t.Context(), metadata.MD{"authorization": values})
		_, err := raw.GetCryptoKey(ctx, &kmspb.GetCryptoKeyRequest{Name: b.key})
		wantCode(t, name, err, codes.Unauthenticated)
	}
	ctx := metadata.NewOutgoingContext(t.Context(), metadata.Pairs("authorization", good))
	if _, err := raw.GetCryptoKey(ctx, &kmspb.GetCryptoKeyRequest{Name: b.key}); err != nil {
		t.Errorf("the known token: %v", err)
	}
}

// operators' calls that no service identity may make.
func TestServer_OperatorsAlone(t *testing.T) {
	b := setup(t)
	for _, id := range []kmsemu.Identity{kmsemu.App, kmsemu.Worker, kmsemu.Shredder} {
		ctx, raw := b.Raw(t, id)
		calls := map[string]func() error{
			"restore": func() error {
				_, err := raw.RestoreCryptoKeyVersion(ctx, &kmspb.RestoreCryptoKeyVersionRequest{Name: b.version})
				return err
			},
			"disable": func() error {
				_, err := raw.UpdateCryptoKeyVersion(ctx, &kmspb.UpdateCryptoKeyVersionRequest{})
				return err
			},
			"primary": func() error {
				_, err := raw.UpdateCryptoKeyPrimaryVersion(ctx, &kmspb.UpdateCryptoKeyPrimaryVersionRequest{})
				return err
			},
			"create a ring": func() error {
				_, err := raw.CreateKeyRing(ctx, &kmspb.CreateKeyRingRequest{})
				return err
			},
			"what is not implemented": func() error {
				_, err := raw.GenerateRandomBytes(ctx, &kmspb.GenerateRandomBytesRequest{})
				return err
			},
		}
		for what, call := range calls {
			wantCode(t, fmt.Sprintf("%s: %s", id, what), call(), codes.PermissionDenied)
		}
	}
	ctx, raw := b.Raw(t, kmsemu.Admin)
	_, err := raw.GenerateRandomBytes(ctx, &kmspb.GenerateRandomBytesRequest{})
	wantCode(t, "admin: what is not implemented", err, codes.Unimplemented)
}

func TestServer_RingsAndPages(t *testing.T) {
	b := setup(t)
	ctx, raw := b.Raw(t, kmsemu.Admin)
	const location = "projects/memd/locations/local"
	var want []string
	for _, id := range []string{"a", "b", "c"} {
		r, err := raw.CreateKeyRing(ctx, &kmspb.CreateKeyRingRequest{Parent: location, KeyRingId: id})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, r.GetName())
	}
	want = append(want, kmsemu.DefaultKeyRing)
	_, err := raw.CreateKeyRing(ctx, &kmspb.CreateKeyRingRequest{Parent: location, KeyRingId: "a"})
	wantCode(t, "creating a ring twice", err, codes.AlreadyExists)
	var got []string
	for token, pages := "", 0; ; pages++ {
		page, err := raw.ListKeyRings(ctx, &kmspb.ListKeyRingsRequest{Parent: location, PageSize: 3, PageToken: token})
		if err != nil || page.GetTotalSize() != 4 || pages > 2 {
			t.Fatalf("ListKeyRings = %v, %v", page, err)
		}
		for _, r := range page.GetKeyRings() {
			got = append(got, r.GetName())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ListKeyRings (-want +got):\n%s", diff)
	}
	_, err = raw.ListKeyRings(ctx, &kmspb.ListKeyRingsRequest{Parent: location, PageToken: "nonsense"})
	wantCode(t, "a page token of nobody's", err, codes.InvalidArgument)
	keys, err := raw.ListCryptoKeys(ctx, &kmspb.ListCryptoKeysRequest{Parent: kmsemu.DefaultKeyRing})
	if err != nil || len(keys.GetCryptoKeys()) != 1 || keys.GetCryptoKeys()[0].GetName() != b.key {
		t.Errorf("ListCryptoKeys = %v, %v", keys, err)
	}
	_, err = raw.CreateCryptoKey(ctx, &kmspb.CreateCryptoKeyRequest{
		Parent: want[0], CryptoKeyId: "k",
		CryptoKey: &kmspb.CryptoKey{Purpose: kmspb.CryptoKey_ENCRYPT_DECRYPT, DestroyScheduledDuration: durationpb.New(121 * delay)},
	})
	wantCode(t, "a destroy delay of 121 days", err, codes.InvalidArgument)
}

func TestServer_ServesLoopbackOnly(t *testing.T) {
	for _, tc := range []struct {
		address string
		remote  bool
		refused bool
	}{{"0.0.0.0:0", false, true}, {"0.0.0.0:0", true, false}, {"127.0.0.1:0", false, false}} {
		server, err := kmsemu.Open(kmsemu.Config{Dir: t.TempDir(), AllowRemote: tc.remote})
		if err != nil {
			t.Fatal(err)
		}
		lis, err := net.Listen("tcp", tc.address)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- server.Serve(lis) }()
		if !tc.refused {
			// The connection is accepted only once Serve runs.
			conn, err := net.Dial("tcp", lis.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
		} else if err := <-served; err == nil {
			t.Errorf("%s: served", tc.address)
		}
		if err := server.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if !tc.refused {
			if err := <-served; err != nil {
				t.Errorf("%s: Serve = %v", tc.address, err)
			}
		}
		lis.Close()
	}
}

func TestServer_RegisterAuthorisesToo(t *testing.T) {
	server, err := kmsemu.Open(kmsemu.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	intercepted := 0
	own := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		intercepted++
		return next(ctx, req)
	}))
	server.Register(own)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- own.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:///"+lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	raw := kmspb.NewKeyManagementServiceClient(conn)
	_, err = raw.GetKeyRing(t.Context(), &kmspb.GetKeyRingRequest{Name: kmsemu.DefaultKeyRing})
	wantCode(t, "no token on a server of the caller's", err, codes.Unauthenticated)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+server.Tokens()[kmsemu.Admin])
	if _, err := raw.GetKeyRing(ctx, &kmspb.GetKeyRingRequest{Name: kmsemu.DefaultKeyRing}); err != nil {
		t.Errorf("GetKeyRing = %v", err)
	}
	if intercepted != 2 {
		t.Errorf("the caller's interceptor ran %d times, want 2", intercepted)
	}
	conn.Close()
	own.Stop()
	<-served
	if err := server.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}
