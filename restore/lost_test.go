package restore_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/shred/kmsemu"
)

// Database and ledgers are lost, inside the destroy delay: the newest backup comes
// back with the version that the key service restores. What was forgotten since is
// there again, because only what was lost knew.
func TestDrill_EverythingLostInsideTheDestroyDelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.program()
	w.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	w.flush()
	backup := filepath.Join(t.TempDir(), "backup")
	p.must(w.DB.URL(""), "backup", backup)
	w.ForgetUser(w.srv, w.tenant, app, "alice")
	w.flush()
	w.StopWorker()
	if err := os.RemoveAll(w.Ledger); err != nil {
		t.Fatal(err)
	}
	w.DB = pgtest.Empty(t)
	w.owner = w.DB.Pool("")
	if out, err := p.run(w.DB.URL(""), "restore", "run", "--from", backup); err == nil || !strings.Contains(out, "memd ledger rebuild") {
		t.Fatalf("restoring without a ledger: %v, %s", err, out)
	}
	p.must(w.DB.URL(""), "ledger", "rebuild")
	p.must(w.DB.URL(""), "restore", "run", "--in-place")

	admin, err := gcpkms.Open(t.Context(), gcpkms.Config{URL: "emulator:" + w.KMS.Address, Token: w.KMS.Server.Tokens()[kmsemu.Admin]})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close() }()
	var version string
	if err := w.owner.With(t.Context(), func(db pg.DB) error {
		return db.QueryRow(t.Context(), `SELECT kms_version FROM memd.key_trees ORDER BY epoch DESC LIMIT 1`).Scan(&version)
	}); err != nil {
		t.Fatal(err)
	}
	if v, err := admin.Restore(t.Context(), version); err != nil || v.State != shred.VersionEnabled {
		t.Fatalf("restoring the version: %+v, %v", v, err)
	}
	w.StartWorker()
	w.srv, _ = w.Server()
	w.wants(user("alice"), "alice")
	w.wants(user("bob"), "bob")
	w.ForgetUser(w.srv, w.tenant, app, "alice")
	w.wants(user("alice"))
	w.wants(user("bob"), "bob")
}
