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

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/journal"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/restore"
	"forgettable.dev/memd/shred"
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

// The ledger lost a tenant's key trees, and the tree of the backup is under a
// version that was destroyed: what is lost is named, and nothing is served or
// deleted, until the operator gives that tenant up. Then the others are served.
func TestRun_KeysAreLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	other := w.Tenant("globex", memdtest.Policy())
	if _, err := w.srv.Memory.Add(t.Context(), other, []memory.Row{said("carol", "c1", "carol")}); err != nil {
		t.Fatal(err)
	}
	snapshot := w.snapshot()
	w.ForgetUser(w.srv, w.tenant, app, "alice")
	w.flush()
	trees, err := filepath.Glob(filepath.Join(w.Ledger, "trees", w.tenant.No.String(), "*"))
	if err != nil || len(trees) < 2 {
		t.Fatalf("trees %v, %v", trees, err)
	}
	for _, f := range trees[1:] {
		if err := os.Rename(f, f+".away"); err != nil {
			t.Fatal(err)
		}
	}
	w.rollback(snapshot)
	w.closed()
	config := w.config()
	for _, c := range []struct {
		advance time.Duration
		want    string
		final   bool
	}{
		{0, "will be destroyed at", false},
		{25 * time.Hour, "was destroyed for good: without a ledger that has a later tree, everything of this tenant is lost", true},
	} {
		w.KMS.Restart(t, c.advance)
		_, err := restore.Run(t.Context(), config)
		var unreadable *restore.UnreadableError
		if !errors.As(err, &unreadable) || len(unreadable.Lost) != 1 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("after %v: %v", c.advance, err)
		}
		w.closed()
		for name, confirm := range map[string]string{"acme": "not acme", "globex": "globex", "nobody": "nobody"} {
			if g, err := restore.GiveUp(t.Context(), config, name, confirm); err == nil {
				t.Errorf("giving up %s, confirmed with %q: %+v", name, confirm, g)
			}
		}
		var lost *shred.LostKeysError
		if _, err := restore.GiveUp(t.Context(), config, "acme", "acme"); !c.final && !errors.As(err, &lost) {
			t.Errorf("giving up what can be had back: %v", err)
		} else if c.final && err != nil {
			t.Errorf("giving up: %v", err)
		}
		if n := w.number(`SELECT count(*) FROM memd.memories WHERE tenant_no = $1`, w.tenant.No); n != map[bool]int64{false: 1, true: 0}[c.final] {
			t.Errorf("after %v: %d rows are left: alice's alone have a tombstone", c.advance, n)
		}
	}
	if _, err := restore.GiveUp(t.Context(), config, "acme", "acme"); err != nil {
		t.Errorf("giving up again: %v", err)
	}
	if _, err := restore.Run(t.Context(), config); err != nil {
		t.Fatalf("restoring without the lost tenant: %v", err)
	}
	w.reopened()
	if _, err := w.search(user("bob")); !errors.Is(err, memd.ErrShredded) { // Its API keys are gone: nobody can ask by the API.
		t.Errorf("the tenant that is lost answers: %v", err)
	}
	res, err := w.srv.Memory.Search(t.Context(), other, memory.Query{Scope: user("carol"), Vector: vector(), TopK: 1})
	if err != nil || len(res.Hits) != 1 {
		t.Errorf("the other tenant finds %d rows: %v", len(res.Hits), err)
	}
	if next := w.Tenant("next", memdtest.Policy()); next.No <= other.No {
		t.Errorf("tenant number %d after %d", next.No, other.No)
	}
}

// What a ledger still has is not given up.
func TestGiveUp_NotWithALaterTree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"))
	snapshot := w.snapshot()
	w.ForgetUser(w.srv, w.tenant, app, "alice")
	w.flush()
	w.rollback(snapshot)
	w.KMS.Restart(t, 25*time.Hour)
	if g, err := restore.GiveUp(t.Context(), w.config(), "acme", "acme"); !errors.Is(err, memd.ErrInvalid) || !strings.Contains(err.Error(), "later state") {
		t.Errorf("%+v, %v", g, err)
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
