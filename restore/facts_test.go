package restore_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/journal"
	"forgettable.dev/memd/restore"
	"forgettable.dev/memd/shred/ledger"
	"forgettable.dev/memd/tenants"
)

// What an operator decided after the backup holds after its restore, from the one
// ledger that is left of two: a hold that was set, a key that was revoked, a policy
// that was changed, a purge that was cancelled, a tenant that was made. An erasure
// that was final is carried out again, although a hold was set after it.
func TestDrill_DecisionsAfterTheBackup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	policy := memdtest.Policy()
	policy.IngestionDelay = 0
	w.tenant = w.Tenant("swift", policy)
	w.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	secret := w.Key(w.tenant.No, auth.Agent)
	staying := w.Tenant("staying", memdtest.Policy())
	w.Approve(w.srv, staying.No)
	files := newFiles(w)
	files.save("kept", "gone", "of two", "of two")
	files.register("old")
	snapshot := w.snapshot()

	w.ForgetUser(w.srv, w.tenant, app, "alice")
	w.within("the erasure final", func() bool {
		return w.number(`SELECT count(*) FROM memd.erasures WHERE state = 4`) == 1
	})
	caller := erasure.Caller{Tenant: w.tenant.No, Epoch: w.tenant.Epoch, KeyID: uuid.New()}
	if _, _, err := w.srv.Erasure.Hold(t.Context(), caller, uuid.New(), "", "", "", "litigation"); err != nil {
		t.Fatal(err)
	}
	err := w.srv.Pool.InTx(t.Context(), func(tx pgx.Tx) error {
		keys, err := auth.List(t.Context(), tx, w.tenant.No, auth.Cursor{}, 10)
		if err != nil {
			return err
		}
		if _, err = auth.Revoke(t.Context(), tx, time.Now(), w.tenant.No, keys[0].ID); err != nil {
			return err
		}
		sealed := func(time.Time, string) ([]byte, error) { return []byte("sealed"), nil }
		if _, err = tenants.Move(t.Context(), tx, time.Now(), "staying", tenants.StateActive, uuid.New(), "it stays", sealed); err != nil {
			return err
		}
		delay := 2 * time.Hour
		_, err = tenants.SetPolicy(t.Context(), tx, time.Now(), "swift", tenants.Change{IngestionDelay: &delay})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	files.save("late")
	files.delete("gone", artifacts.All)
	files.delete("of two", 0)
	files.unregister("old")
	files.register("new")
	late := w.Tenant("late", memdtest.Policy())
	w.flush()

	w.rollback(snapshot)
	w.closed()
	c := w.config()
	c.Ledgers = []ledger.Ledger{emptyLedger(t), c.Ledgers[0]} // The first location is lost.
	report, err := restore.Run(t.Context(), c)
	if err != nil || report.Erasures != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	if n, err := journal.Repair(t.Context(), c.Ledgers); err != nil || n == 0 {
		t.Errorf("mirrored %d, %v", n, err)
	}
	if in, err := journal.Verify(t.Context(), c.Ledgers); err != nil || len(in.Problems) > 0 {
		t.Errorf("%+v, %v", in, err)
	}
	w.reopened()
	w.wants(user("alice"))
	w.wants(user("bob"), "bob")
	if n := w.number(`SELECT state FROM memd.tenants WHERE name = 'staying'`); n != int64(tenants.StateActive) {
		t.Errorf("the tenant whose purge was cancelled is in state %d", n)
	}
	if n := w.number(`SELECT count(*) FROM memd.approvals WHERE voided_at IS NULL`); n != 0 {
		t.Errorf("%d approvals of its purge hold", n)
	}
	if n := w.number(`SELECT count(*) FROM memd.memories`); n != 1 {
		t.Errorf("%d rows are left", n)
	}
	if n := w.number(`SELECT count(*) FROM memd.holds WHERE released_at IS NULL`); n != 1 {
		t.Errorf("%d holds are in force", n)
	}
	if n := w.number(`SELECT count(*) FROM memd.principals WHERE revoked_at IS NOT NULL`); n != 1 {
		t.Errorf("%d keys are revoked", n)
	}
	if n := w.number(`SELECT count(*) FROM memd.tenants WHERE name = 'swift' AND policy ->> 'ingestion_delay' = '2h0m0s'`); n != 1 {
		t.Error("the policy is that of the backup")
	}
	if n := w.number(`SELECT count(*) FROM memd.tenants WHERE name = 'late' AND state = 2 AND tenant_no = $1`, late.No); n != 1 {
		t.Error("the tenant that was made after the backup is gone")
	}
	if n := w.number(`SELECT count(*) FROM memd.tenant_keys WHERE tenant_no = $1`, late.No); n != 1 {
		t.Error("its keys are gone")
	}
	if next := w.Tenant("next", memdtest.Policy()); next.No <= late.No {
		t.Errorf("tenant number %d after %d", next.No, late.No)
	}
	_ = secret
	// What was deleted stays so; what was only saved is lost, as everything is.
	files.wants("kept 0", "of two 1")
	files.registered("new")
}

// The ledger lost its key trees, and the tree of the backup is under a version
// that was destroyed: what is lost is named, and nothing is served or deleted.
func TestRun_KeysAreLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	snapshot := w.snapshot()
	w.ForgetUser(w.srv, w.tenant, app, "alice")
	w.flush()
	trees, err := filepath.Glob(filepath.Join(w.Ledger, "trees", "*", "*"))
	if err != nil || len(trees) < 2 {
		t.Fatalf("trees %v, %v", trees, err)
	}
	for _, f := range trees[1:] {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	w.rollback(snapshot)
	w.closed()
	for _, c := range []struct {
		advance time.Duration
		want    string
	}{{0, "will be destroyed at"}, {25 * time.Hour, "was destroyed for good: without a ledger that has a later tree, everything of this tenant is lost"}} {
		w.KMS.Restart(t, c.advance)
		_, err := restore.Run(t.Context(), w.config())
		var unreadable *restore.UnreadableError
		if !errors.As(err, &unreadable) || len(unreadable.Lost) != 1 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("after %v: %v", c.advance, err)
		}
		w.closed()
	}
	if n := w.number(`SELECT count(*) FROM memd.memories`); n != 1 {
		t.Errorf("%d rows are left: alice's alone have a tombstone", n)
	}
}

// A row that does not open and has no tombstone keeps the gate closed, is listed,
// and stays.
func TestRun_UnreadableRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	snapshot := w.snapshot()
	w.ForgetUser(w.srv, w.tenant, app, "alice")
	w.flush()
	w.rollback(snapshot)
	w.closed()
	if err := w.owner.With(t.Context(), func(db pg.DB) error {
		_, err := db.Exec(t.Context(), `ALTER TABLE memd.memories DISABLE TRIGGER USER`)
		if err == nil {
			_, err = db.Exec(t.Context(), `UPDATE memd.memories SET sealed_text = decode(repeat('00', 60), 'hex') WHERE memory_id = $1`, ids[1])
		}
		if err == nil {
			_, err = db.Exec(t.Context(), `ALTER TABLE memd.memories ENABLE TRIGGER USER`)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	_, err := restore.Run(t.Context(), w.config())
	var unreadable *restore.UnreadableError
	if !errors.As(err, &unreadable) || unreadable.Count != 1 || unreadable.Rows[w.tenant.No][0] != ids[1] {
		t.Errorf("restoring with a broken row: %v", err)
	}
	w.closed()
	if n := w.number(`SELECT count(*) FROM memd.memories`); n != 1 {
		t.Errorf("%d rows are left", n)
	}
}
