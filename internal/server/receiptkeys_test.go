package server_test

import (
	"slices"
	"testing"

	"connectrpc.com/connect/v2"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/shred/ledger"
)

// Whoever has an API key, of whatever role, gets the public keys of all receipts,
// the newest included as soon as it is there, and nothing private.
func TestGetReceiptKeys(t *testing.T) {
	in := setup(t)
	s := in.serve()
	acme := in.tenant("acme")
	_, agent := in.key(acme.No, auth.Agent)
	if _, err := s.erasure(agent).GetReceiptKeys(t.Context(), &memdv1.GetReceiptKeysRequest{}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("before there is a key: %v", err)
	}
	if _, err := s.erasure("memd_wrong").GetReceiptKeys(t.Context(), &memdv1.GetReceiptKeysRequest{}); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("without a key of the API: %v", err)
	}
	signing := receipts.SignerConfig{
		Pool: in.worker, KMS: in.provision.KMS, Ledger: ledger.Mirror(in.provision.Ledgers), Installation: in.provision.Installation,
	}
	first, err := receipts.OpenSigner(t.Context(), signing)
	if err != nil {
		t.Fatal(err)
	}
	second, err := receipts.RotateKey(t.Context(), signing)
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []auth.Roles{auth.Agent, auth.Auditor} {
		_, secret := in.key(acme.No, role)
		resp, err := s.erasure(secret).GetReceiptKeys(t.Context(), &memdv1.GetReceiptKeysRequest{})
		if err != nil {
			t.Fatal(err)
		}
		keys, err := receipts.ParseKeys(resp.GetKeyset())
		if err != nil {
			t.Fatal(err)
		}
		if ids := keys.IDs(); len(ids) != 2 || ids[0] == ids[1] || !slices.Contains(ids, first.Key()) || !slices.Contains(ids, second.Key()) {
			t.Errorf("keys %v, want %v and %v", ids, first.Key(), second.Key())
		}
	}
}
