package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/kmstest"
	"forgettable.dev/memd/shred/ledger"
	"forgettable.dev/memd/tenants"
)

// issued is an installation with some receipts.
type issued struct {
	db       *pgtest.DB
	emulator *kmstest.Emulator
	ledger   string
	salt     receipts.Salt
	issuer   *receipts.Issuer
	tenant   memd.TenantNo
}

func newIssued(t *testing.T, n int) *issued {
	t.Helper()
	w := &issued{db: pgtest.Database(t), emulator: kmstest.StartEmulator(t, ""), ledger: t.TempDir()}
	pool := w.db.Pool("memd_worker")
	l, err := ledger.OpenFolder(w.ledger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	var installation uuid.UUID
	err = w.db.Pool("").With(t.Context(), func(db pg.DB) (err error) {
		if installation, err = provenance.Installation(t.Context(), db); err != nil {
			return err
		}
		made, err := tenants.Create(t.Context(), db, time.Now().UTC(), "pharmacy", "", tenants.DefaultPolicy())
		w.tenant = made.No
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	signer, err := receipts.OpenSigner(t.Context(), receipts.SignerConfig{
		Pool: pool, KMS: w.emulator.Client(t, kmsemu.Worker), Ledger: l, Installation: installation,
	})
	if err != nil {
		t.Fatal(err)
	}
	if w.salt, err = receipts.NewSalt(); err != nil {
		t.Fatal(err)
	}
	w.issuer = &receipts.Issuer{Pool: pool, Signer: signer, Ledger: l}
	for range n {
		w.issue(t)
	}
	return w
}

func (w *issued) issue(t *testing.T) {
	t.Helper()
	now := time.Now()
	_, err := w.issuer.Issue(t.Context(), w.tenant, receipts.Receipt{
		Kind: receipts.User, Stage: receipts.Provisional, Tenant: "pharmacy", RequestID: uuid.New(),
		Commitment: receipts.Commit(w.salt, "pharmacy", "assistant", "user-17", ""),
		Times:      receipts.Times{Accepted: now, Erased: now},
		Checks:     []receipts.Check{{Name: "memories", Result: receipts.Pass, ControlBefore: 37}},
		NotRun:     []receipts.NotRun{{What: string(receipts.OmittedRotation), Reason: "never_seen"}},
		Sweep:      receipts.Sweep{State: receipts.SweepPlanned, PlannedAt: now.Add(time.Hour)},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// must runs a command that has to end with a status, and returns its output.
func must(t *testing.T, status int, args ...string) (stdout, stderr string) {
	t.Helper()
	got, stdout, stderr := invoke(t, "", "", args...)
	if got != status {
		t.Fatalf("%v: status %d, want %d\n%s%s", args, got, status, stdout, stderr)
	}
	return stdout, stderr
}

func TestReceipt_VerifiesOffline(t *testing.T) {
	w := newIssued(t, 4)
	dir := t.TempDir()
	url := "--database-url=" + w.db.URL("memd_app")
	key := filepath.Join(dir, "keys.json")
	stdout, _ := must(t, exitOK, "receipt", "public-key", url)
	write(t, key, stdout)
	to := filepath.Join(dir, "log")
	must(t, exitOK, "receipt", "export", "pharmacy", "--to="+to, url)
	w.issue(t)
	_, said := must(t, exitOK, "receipt", "export", "pharmacy", "--to="+to, url)
	if !strings.Contains(said, "1 receipt written, of 5") {
		t.Errorf("second export said %q", said)
	}
	file := func(n string) string { return filepath.Join(to, "00000000000"+n+".json") }
	public := "--public-key=" + key

	stdout, _ = must(t, exitOK, "receipt", "verify", "--all="+to, public)
	if !strings.Contains(stdout, "verified: 5 receipts") {
		t.Errorf("said %q", stdout)
	}
	must(t, exitOK, "receipt", "verify", file("3"), public)
	must(t, exitOK, "receipt", "verify", file("3"), file("4"), public, "--checkpoint="+file("2"))
	checkpoint := filepath.Join(dir, "head.txt")
	write(t, checkpoint, read(t, file("4")).Checkpoint)
	must(t, exitOK, "receipt", "verify", "--all="+to, public, "--checkpoint="+checkpoint)

	proof := filepath.Join(dir, "proof.json")
	stdout, _ = must(t, exitOK, "receipt", "consistency", "pharmacy", "--from=2", "--to=5", url)
	write(t, proof, stdout)
	must(t, exitOK, "receipt", "verify", file("4"), public, "--checkpoint="+file("1"), "--consistency="+proof)
	must(t, exitOK, "receipt", "verify", file("1"), public, "--checkpoint="+checkpoint, "--consistency="+proof)
	must(t, exitFailure, "receipt", "verify", file("4"), public, "--checkpoint="+file("2"), "--consistency="+proof)
	must(t, exitUsage, "receipt", "verify", file("4"), public, "--consistency="+proof)

	// Prove whom it is about.
	salt := "--salt=" + w.salt.Reveal()
	stdout, _ = must(t, exitOK, "receipt", "prove", file("0"), salt, "--app=assistant", "--user=user-17", public)
	if !strings.Contains(stdout, "proved") || strings.Contains(stdout, "user-17") {
		t.Errorf("said %q", stdout)
	}
	must(t, exitFailure, "receipt", "prove", file("0"), salt, "--app=assistant", "--user=user-18", public)
	_, said = must(t, exitUsage, "receipt", "prove", file("0"), "--salt=abc", "--app=assistant", "--user=user-17", public)
	if strings.Contains(said, "abc") {
		t.Errorf("the salt is repeated: %s", said)
	}

	// What does not hold is 1, with --json too, and what was meant is 2.
	must(t, exitFailure, "receipt", "verify", file("3"), file("4"), public)                            // begins in the middle
	must(t, exitFailure, "receipt", "verify", file("4"), public, "--checkpoint="+file("2"))            // leaves one out
	must(t, exitFailure, "receipt", "verify", file("0"), file("1"), public, "--checkpoint="+file("4")) // is shorter than was
	must(t, exitUsage, "receipt", "verify", public)
	must(t, exitUsage, "receipt", "verify", file("0"))
	changed := filepath.Join(dir, "changed.json")
	content, err := os.ReadFile(file("3"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, changed, strings.Replace(string(content), `"control_before":37`, `"control_before":38`, 1))
	_, said = must(t, exitFailure, "receipt", "verify", changed, public)
	if !strings.Contains(said, "signature does not fit") {
		t.Errorf("said %q", said)
	}
	stdout, _ = must(t, exitFailure, "receipt", "verify", changed, public, "--json")
	var verdict receiptVerdict
	if err := json.Unmarshal([]byte(stdout), &verdict); err != nil || verdict.Verified || verdict.Error == "" {
		t.Errorf("verdict %+v: %v", verdict, err)
	}
	if err := os.Remove(file("2")); err != nil {
		t.Fatal(err)
	}
	_, said = must(t, exitFailure, "receipt", "verify", "--all="+to, public)
	if !strings.Contains(said, "receipt number 2 is missing") {
		t.Errorf("said %q", said)
	}
	// A file that was changed is not written over.
	write(t, file("1"), string(content))
	must(t, exitFailure, "receipt", "export", "pharmacy", "--to="+to, url)
}

func TestReceipt_RotateKey(t *testing.T) {
	w := newIssued(t, 1)
	stdout, _ := must(t, exitOK, "receipt", "rotate-key", "--database-url="+w.db.URL("memd_worker"),
		"--kms=emulator:"+w.emulator.Address, "--kms-token="+w.emulator.Server.Tokens()[kmsemu.Worker], "--ledger="+w.ledger)
	public, _ := must(t, exitOK, "receipt", "public-key", "--database-url="+w.db.URL("memd_app"))
	keys, err := receipts.ParseKeys([]byte(public))
	if err != nil {
		t.Fatal(err)
	}
	if ids := keys.IDs(); len(ids) != 2 || ids[1].String() != strings.TrimSpace(stdout) {
		t.Errorf("keys %v, and %q was made", ids, stdout)
	}
}

func TestReceipt_NoKeyYet(t *testing.T) {
	db := pgtest.Database(t)
	_, said := must(t, exitFailure, "receipt", "public-key", "--database-url="+db.URL("memd_app"))
	if !strings.Contains(said, "worker") {
		t.Errorf("said %q", said)
	}
}

func read(t *testing.T, file string) receipts.Bundle {
	t.Helper()
	b, err := readBundle(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
