package shred_test

import (
	"context"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// kmsAdmin does by hand what an operator, or an accident, would do to a key
// version behind memd's back.
type kmsAdmin struct {
	t     *testing.T
	api   kmspb.KeyManagementServiceClient
	token string
}

func newKMSAdmin(t *testing.T, address, token string) *kmsAdmin {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return &kmsAdmin{t: t, api: kmspb.NewKeyManagementServiceClient(conn), token: token}
}

func (a *kmsAdmin) context() context.Context {
	return metadata.AppendToOutgoingContext(a.t.Context(), "authorization", "Bearer "+a.token)
}

func (a *kmsAdmin) create(key string) string {
	a.t.Helper()
	v, err := a.api.CreateCryptoKeyVersion(a.context(), &kmspb.CreateCryptoKeyVersionRequest{
		Parent: key, CryptoKeyVersion: &kmspb.CryptoKeyVersion{},
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return v.GetName()
}

func (a *kmsAdmin) destroy(version string) {
	a.t.Helper()
	_, err := a.api.DestroyCryptoKeyVersion(a.context(), &kmspb.DestroyCryptoKeyVersionRequest{Name: version})
	if err != nil {
		a.t.Fatal(err)
	}
}

func (a *kmsAdmin) set(version string, state kmspb.CryptoKeyVersion_CryptoKeyVersionState) {
	a.t.Helper()
	_, err := a.api.UpdateCryptoKeyVersion(a.context(), &kmspb.UpdateCryptoKeyVersionRequest{
		CryptoKeyVersion: &kmspb.CryptoKeyVersion{Name: version, State: state},
		UpdateMask:       &fieldmaskpb.FieldMask{Paths: []string{"state"}},
	})
	if err != nil {
		a.t.Fatal(err)
	}
}

func (a *kmsAdmin) restore(version string) {
	a.t.Helper()
	_, err := a.api.RestoreCryptoKeyVersion(a.context(), &kmspb.RestoreCryptoKeyVersionRequest{Name: version})
	if err != nil {
		a.t.Fatal(err)
	}
}
