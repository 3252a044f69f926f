package gcpkms_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/shred/kmsemu"
)

const someVersion = gcpkms.EmulatorKeyRing + "/cryptoKeys/tenant-1/cryptoKeyVersions/7"

// refuser answers every Decrypt with one status.
type refuser struct {
	kmspb.UnimplementedKeyManagementServiceServer
	answer *status.Status
}

func (r *refuser) Decrypt(context.Context, *kmspb.DecryptRequest) (*kmspb.DecryptResponse, error) {
	return nil, r.answer.Err()
}

// refused returns what a client makes of an answer.
func refused(t *testing.T, code codes.Code, text string, details ...protoadapt.MessageV1) error {
	t.Helper()
	answer, err := status.New(code, text).WithDetails(details...)
	if len(details) == 0 {
		answer, err = status.New(code, text), nil
	}
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	kmspb.RegisterKeyManagementServiceServer(server, &refuser{answer: answer})
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	defer func() {
		server.Stop()
		<-served
	}()
	kms, err := gcpkms.Open(t.Context(), gcpkms.Config{
		URL: "emulator:" + lis.Addr().String(), Token: "token", MaxElapsed: 50 * time.Millisecond, InitialBackoff: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer kms.Close()
	_, err = kms.Decrypt(t.Context(), strings.TrimSuffix(someVersion, "/cryptoKeyVersions/7"), []byte("x"), []byte("a"))
	return err
}

func violation(kind string) *errdetails.PreconditionFailure {
	return &errdetails.PreconditionFailure{
		Violations: []*errdetails.PreconditionFailure_Violation{{Type: kind, Subject: someVersion}},
	}
}

// What Cloud KMS answers was read in its documentation and in published logs of
// its users; what it does not answer is here to show that nothing is guessed.
func TestClient_TellsShreddedFromUnavailable(t *testing.T) {
	const text = someVersion + " is not enabled, current state is: "
	for _, tc := range []struct {
		name    string
		text    string
		details []protoadapt.MessageV1
		want    shred.VersionState // Unknown: ErrKeyUnavailable
	}{
		{"disabled", text + "DISABLED.", []protoadapt.MessageV1{violation("KEY_DISABLED")}, shred.VersionDisabled},
		{"scheduled", text + "DESTROY_SCHEDULED.", []protoadapt.MessageV1{violation("KEY_DESTROY_SCHEDULED")}, shred.VersionDestroyScheduled},
		{"destroyed", text + "DESTROYED.", []protoadapt.MessageV1{violation("KEY_DESTROYED")}, shred.VersionDestroyed},
		{"destroyed, by its text alone", text + "DESTROYED.", nil, shred.VersionDestroyed},
		{"destroyed, by its violation alone", "Refused.", []protoadapt.MessageV1{violation("KEY_DESTROYED")}, shred.VersionDestroyed},
		{"two that contradict", text + "DISABLED.", []protoadapt.MessageV1{violation("KEY_DESTROYED")}, shred.VersionUnknown},
		{"still being generated", text + "PENDING_GENERATION.", []protoadapt.MessageV1{violation("KEY_PENDING_GENERATION")}, shred.VersionUnknown},
		{"a state of another world", text + "IMPORT_FAILED.", nil, shred.VersionUnknown},
		{"the API is switched off", "Google Cloud KMS API has not been used in this project before, or it is disabled.", nil, shred.VersionUnknown},
		{"the word in passing", "The billing account was DESTROYED.", nil, shred.VersionUnknown},
		{"nothing said", "", nil, shred.VersionUnknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := refused(t, codes.FailedPrecondition, tc.text, tc.details...)
			var state *shred.VersionStateError
			if tc.want == shred.VersionUnknown {
				if !errors.Is(err, memd.ErrKeyUnavailable) || errors.Is(err, memd.ErrShredded) {
					t.Errorf("got %v, want ErrKeyUnavailable and not ErrShredded", err)
				}
				return
			}
			if !errors.As(err, &state) || state.State != tc.want || state.Version != someVersion ||
				!errors.Is(err, memd.ErrShredded) || errors.Is(err, memd.ErrKeyUnavailable) {
				t.Errorf("got %v, want %v of %s", err, tc.want, someVersion)
			}
		})
	}
}

// A receipt that leaks what was erased, content in logs: the service's own text
// is not repeated.
func TestClient_KeepsTheServicesTextOut(t *testing.T) {
	info := &errdetails.ErrorInfo{Reason: "canary in small letters", Domain: "canary"}
	for _, code := range []codes.Code{
		codes.InvalidArgument, codes.PermissionDenied, codes.NotFound, codes.Internal, codes.Unavailable, codes.FailedPrecondition, codes.Unauthenticated,
	} {
		err := refused(t, code, "canary", info, &errdetails.PreconditionFailure{
			Violations: []*errdetails.PreconditionFailure_Violation{{Type: "KEY_DISABLED", Subject: "canary"}},
		})
		if err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%v: %v", code, err)
		}
	}
	err := refused(t, codes.PermissionDenied, "", &errdetails.ErrorInfo{Reason: "SERVICE_DISABLED"})
	if !strings.Contains(err.Error(), "SERVICE_DISABLED") {
		t.Errorf("a machine-readable reason is lost: %v", err)
	}
}

func TestClient_DisabledVersion(t *testing.T) {
	b := setup(t)
	ctx, raw := b.Raw(t, kmsemu.Admin)
	disable(t, ctx, raw, b.version)
	var state *shred.VersionStateError
	if err := b.decrypt(t, b.kms); !errors.As(err, &state) || state.State != shred.VersionDisabled {
		t.Errorf("Decrypt under a disabled version = %v, want a refusal that says DISABLED", err)
	}
	// Only disabled: whoever destroys it must still succeed.
	if v, err := b.kms.Destroy(t.Context(), b.version); err != nil || v.State != shred.VersionDestroyScheduled {
		t.Errorf("Destroy of a disabled version = %+v, %v", v, err)
	}
}

// Keys destroyed, so it says, and they were not: a refusal to destroy is success
// only when the version itself says that it is doomed.
func TestClient_RefusedDestruction(t *testing.T) {
	b := setup(t)
	remove := b.Server.Inject(kmsemu.Fault{Method: "DestroyCryptoKeyVersion", Code: codes.FailedPrecondition})
	defer remove()
	v, err := b.kms.Destroy(t.Context(), b.version)
	if !errors.Is(err, memd.ErrKeyUnavailable) || errors.Is(err, memd.ErrShredded) || v != (shred.Version{}) {
		t.Errorf("Destroy that was refused = %+v, %v, want ErrKeyUnavailable", v, err)
	}
	if err := b.decrypt(t, b.kms); err != nil {
		t.Errorf("Decrypt after a destruction that was refused: %v", err)
	}
}
