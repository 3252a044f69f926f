package erasure_test

import (
	"testing"

	"github.com/google/uuid"

	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/ledger"
)

// A worker that runs signs with a new key from its next receipt on, and the
// receipts of both keys are one log.
func TestReceipts_AreSignedWithANewKeyWithoutARestart(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	first := w.receipts(w.tenant, w.forgetUser("alice").ID)
	pool := w.DB.Pool(node.WorkerRole)
	folder, err := ledger.OpenFolder(w.Ledger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = folder.Close() })
	var installation uuid.UUID
	err = pool.With(t.Context(), func(db pg.DB) (err error) {
		installation, err = provenance.Installation(t.Context(), db)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	signer, err := receipts.RotateKey(t.Context(), receipts.SignerConfig{
		Pool: pool, KMS: w.KMS.Client(t, kmsemu.Worker), Ledger: ledger.Mirror([]ledger.Ledger{folder}), Installation: installation,
	})
	if err != nil {
		t.Fatal(err)
	}
	second := w.receipts(w.tenant, w.forgetUser("bob").ID)
	if len(first) != 1 || len(second) != 1 {
		t.Fatalf("%d and %d receipts", len(first), len(second))
	}
	if first[0].Entry.Key == signer.Key() || second[0].Entry.Key != signer.Key() {
		t.Errorf("signed with %s and then with %s; the new key is %s", first[0].Entry.Key, second[0].Entry.Key, signer.Key())
	}
	err = w.owner.With(t.Context(), func(db pg.DB) error {
		keys, err := receipts.PublicKeys(t.Context(), db)
		if err != nil {
			return err
		}
		for _, b := range []receipts.Bundle{first[0], second[0]} {
			if _, err := b.Verify(keys); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("verifying: %v", err)
	}
}
