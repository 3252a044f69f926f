package restore_test

import (
	"errors"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/journal"
	"forgettable.dev/memd/restore"
)

// Invariant 9: what was erased after the backup is never served from it, and is
// gone from it when the gate opens again; everybody else is there.
func TestInvariant9_RestoreBringsNobodyBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(said("alice", "s1", "alice one"), said("alice", "s2", "alice two"), contributed("alice", "s1", "alice shared"))
	w.add(said("carol", "c1", "carol dead"), said("carol", "c2", "carol living"))
	bob := w.add(said("bob", "b1", "bob one"), said("bob", "b1", "bob deleted"), contributed("bob", "b1", "bob shared"))
	snapshot := w.snapshot()

	w.ForgetUser(w.srv, w.tenant, app, "alice")
	w.ForgetSession(w.srv, w.tenant, app, "carol", "c1")
	if _, err := w.srv.Memory.Delete(t.Context(), w.tenant, user("bob"), bob[1], false); err != nil {
		t.Fatal(err)
	}
	w.flush()
	w.add(said("dave", "d1", "dave is lost with the time"))
	lost := w.number(`SELECT max(subject_no) FROM memd.subjects`)

	w.rollback(snapshot)
	w.closed()
	if n := w.number(`SELECT count(*) FROM memd.memories`); n != 8 {
		t.Fatalf("the database was not rolled back: %d rows", n)
	}

	report, err := restore.Run(t.Context(), w.config())
	if err != nil {
		t.Fatal(err)
	}
	if !report.Missing || report.Erasures != 2 || report.Fell != 1 || report.Rows != 3 {
		t.Errorf("%+v", report)
	}
	w.reopened()
	w.wants(user("alice"))
	w.wants(user("bob"), "bob one")
	w.wants(user("carol"), "carol living")
	w.wants(shared, "bob shared")
	w.add(said("erin", "e1", "erin is new"))
	if n := w.number(`SELECT max(subject_no) FROM memd.subjects`); n <= lost {
		t.Errorf("number %d was given out again: %d was before", n, lost)
	}

	// Nothing that cannot be undone has happened yet.
	if n := w.number(`SELECT count(*) FROM memd.erasures WHERE state >= 3`); n != 0 {
		t.Errorf("%d erasures are done before the release", n)
	}
	released, err := restore.Release(t.Context(), w.owner)
	if err != nil || !released {
		t.Fatalf("releasing: %v, %v", released, err)
	}
	w.within("the erasures done", func() bool {
		return w.number(`SELECT count(*) FROM memd.erasures WHERE state >= 3`) == 2
	})
	w.wants(user("bob"), "bob one")

	again, err := restore.Run(t.Context(), w.config())
	if err != nil || again.Missing {
		t.Errorf("restoring once more: %+v, %v", again, err)
	}
}

// A rollback that crossed nothing opens by itself, and gives nobody a number
// that somebody may have had.
func TestInvariant9_NothingMissingOpensByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(said("bob", "b1", "bob"))
	w.flush()
	snapshot := w.snapshot()
	w.add(said("dave", "d1", "dave is lost with the time"))
	lost := w.number(`SELECT max(subject_no) FROM memd.subjects`)
	w.DB.Rollback(snapshot)
	w.reset()
	w.within("the gate open", func() bool {
		_, err := w.search(user("bob"))
		return err == nil
	})
	w.wants(user("bob"), "bob")
	w.admits("erin")
	if n := w.number(`SELECT max(subject_no) FROM memd.subjects`); n <= lost {
		t.Errorf("number %d was given out again: %d was before", n, lost)
	}
}

// A ledger that is older than the database, as one that was itself restored, opens
// nothing and is no reason to delete anything.
func TestRun_LedgerBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(said("bob", "b1", "bob"))
	w.flush()
	c := w.config()
	w.StopWorker()
	if n := w.number(`SELECT seq FROM memd.ledger_state`); n < 1 {
		t.Fatal("nothing was shipped")
	}
	if err := removeNewest(w.Ledger); err != nil {
		t.Fatal(err)
	}
	before := w.number(`SELECT count(*) FROM memd.memories`)
	_, err := restore.Run(t.Context(), c)
	if !errors.Is(err, memd.ErrRolledBack) {
		t.Errorf("restoring from an older ledger: %v", err)
	}
	_, err = journal.Open(t.Context(), journal.Config{Pool: c.Pool, Ledgers: c.Ledgers, Logger: c.Logger})
	if !errors.Is(err, memd.ErrRolledBack) {
		t.Errorf("opening with an older ledger: %v", err)
	}
	if n := w.number(`SELECT count(*) FROM memd.memories`); n != before {
		t.Errorf("%d rows are left of %d", n, before)
	}
}
