package restore_test

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/restore"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/tenants"
)

// at is a tenant as sessions want it.
func at(t memory.Tenant) sessions.Tenant { return sessions.Tenant{No: t.No, Epoch: t.Epoch} }

func (w *world) talk(t memory.Tenant, userID, session, text string) {
	w.t.Helper()
	id := sessions.ID{App: app, UserID: userID, SessionID: session}
	if _, err := w.srv.Sessions.Create(w.t.Context(), at(t), id, nil, false); err != nil {
		w.t.Fatal(err)
	}
	if err := w.append(t, userID, session, text); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) append(t memory.Tenant, userID, session, text string) error {
	w.t.Helper()
	_, err := w.srv.Sessions.Append(w.t.Context(), at(t), sessions.ID{App: app, UserID: userID, SessionID: session},
		[]sessions.Event{{ID: uuid.NewString(), Author: "user", Content: strconv.Quote(text), Time: time.Now()}}, time.Time{}, false)
	return err
}

func (w *world) save(t memory.Tenant, userID, session, name, text string) {
	w.t.Helper()
	_, err := w.srv.Artifacts.Save(w.t.Context(), artifacts.Tenant{No: t.No, Epoch: t.Epoch},
		artifacts.Owner{App: app, UserID: userID, SessionID: session}, name, artifacts.File{}, strings.NewReader(text))
	if err != nil {
		w.t.Fatal(err)
	}
}

// receipts are all that were issued, in their order.
func (w *world) receipts() []string {
	w.t.Helper()
	var all []string
	err := w.owner.With(w.t.Context(), func(db pg.DB) error {
		rows, err := db.Query(w.t.Context(), `SELECT bundle FROM memd.receipts ORDER BY tenant_no, log_index`)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
			var b []byte
			err := row.Scan(&b)
			return string(bytes.TrimSpace(b)), err
		})
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// Erasures of every kind that were carried out after the backup are carried out again
// in what was restored, and final again after the release: nothing of theirs is
// left, nobody else's is touched, their receipts are the ones that were issued,
// and who returned since is fenced no longer.
func TestDrill_EveryKindOfErasure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	policy := memdtest.Policy()
	policy.IngestionDelay = 0
	w.tenant = w.Tenant("swift", policy)
	leaving := w.Tenant("leaving", policy)
	for _, who := range []string{"alice", "bob", "carol"} {
		w.talk(w.tenant, who, "s1", who+" says")
		w.save(w.tenant, who, "s1", "notes.txt", who+" wrote")
		w.add(said(who, "s1", who+" one"), said(who, "s2", who+" two"))
	}
	if _, err := w.srv.Memory.Add(t.Context(), leaving, []memory.Row{said("zoe", "z1", "zoe")}); err != nil {
		t.Fatal(err)
	}
	w.talk(leaving, "zoe", "z1", "zoe says")
	w.flush()
	snapshot := w.snapshot()

	w.ForgetUser(w.srv, w.tenant, app, "alice")
	// Keys of content go with the rotation of a day later, and its erasure is only
	// done until then.
	final := func(n int64) {
		t.Helper()
		w.within("the erasures final", func() bool {
			return w.number(`SELECT count(*) FROM memd.erasures WHERE state = 4 OR kind = 3 AND state = 3`) == n
		})
	}
	final(1) // Then she comes back, and is forgotten a second time.
	w.admits("alice")
	w.ForgetUser(w.srv, w.tenant, app, "alice")
	w.ForgetSession(w.srv, w.tenant, app, "bob", "s1")
	caller := erasure.Caller{Tenant: w.tenant.No, Epoch: w.tenant.Epoch, KeyID: uuid.New()}
	if _, err := w.srv.Erasure.DeleteSession(t.Context(), caller, app, "carol", "s1", false, uuid.New()); err != nil {
		t.Fatal(err)
	}
	w.Approve(w.srv, leaving.No)
	if _, err := w.srv.Erasure.DeleteTenant(t.Context(), erasure.Caller{KeyID: uuid.New()}, "leaving", "leaving", uuid.New()); err != nil {
		t.Fatal(err)
	}
	final(5)
	w.ForgetUser(w.srv, w.tenant, app, "dora") // Its rotation takes the leaves of the jobs before.
	final(6)
	issued := w.receipts()
	transitions := w.number(`SELECT count(*) FROM memd.tenant_transitions`)
	w.flush()

	w.rollback(snapshot)
	w.closed()
	report, err := restore.Run(t.Context(), w.config())
	if err != nil || report.Erasures != 6 || report.Receipts != len(issued) {
		t.Fatalf("%+v, %v; %d receipts were issued", report, err, len(issued))
	}
	w.reopened()
	left := func() {
		t.Helper()
		w.wants(user("alice"))
		w.wants(user("bob"), "bob two")
		w.wants(user("carol"), "carol one", "carol two")
		for what, want := range map[string]int64{
			`session_events WHERE tenant_no = $1`:    0, // Alice's, bob's and carol's sessions went.
			`artifact_versions WHERE tenant_no = $1`: 0,
			`memories WHERE tenant_no = $1`:          3,
		} {
			if n := w.number(`SELECT count(*) FROM memd.`+what, w.tenant.No); n != want {
				t.Errorf("%d rows in %s, want %d", n, what, want)
			}
		}
		for _, table := range []string{"memories", "session_events", "session_heads"} {
			if n := w.number(`SELECT count(*) FROM memd.`+table+` WHERE tenant_no = $1`, leaving.No); n != 0 {
				t.Errorf("%d rows of the tenant that left in %s", n, table)
			}
		}
		if err := w.append(w.tenant, "carol", "s1", "late"); !errors.Is(err, memd.ErrNotFound) && !errors.Is(err, memd.ErrSessionForgotten) {
			t.Errorf("content of a session whose content was deleted: %v", err)
		}
	}
	left()
	if diff := cmp.Diff(issued, w.receipts()); diff != "" {
		t.Errorf("receipts (-issued +recovered):\n%s", diff)
	}
	if n := w.number(`SELECT count(*) FROM memd.tenant_transitions`); n != transitions {
		t.Errorf("%d transitions, want %d", n, transitions)
	}
	if _, err := restore.Release(t.Context(), w.owner); err != nil {
		t.Fatal(err)
	}
	final(6)
	left()
	if diff := cmp.Diff(issued, w.receipts()); diff != "" {
		t.Errorf("receipts (-issued +after the release):\n%s", diff)
	}
	if n := w.number(`SELECT state FROM memd.tenants WHERE name = 'leaving'`); n != int64(tenants.StatePurged) {
		t.Errorf("the tenant that left is in state %d", n)
	}
	w.admits("alice")
	w.wants(user("alice"), "alice")
}

// A purge that a hold stopped, and an erasure that it stopped, stay stopped after
// a restore: everything is there, and served as far as it was.
func TestDrill_PurgeThatAHoldStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	w.flush()
	snapshot := w.snapshot()
	caller := erasure.Caller{Tenant: w.tenant.No, Epoch: w.tenant.Epoch, KeyID: uuid.New(), Wait: new(time.Duration)}
	hold := uuid.New()
	if _, _, err := w.srv.Erasure.Hold(t.Context(), caller, hold, "", "", "", "litigation"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.srv.Erasure.ForgetUser(t.Context(), caller, app, "alice", uuid.New()); err != nil {
		t.Fatalf("forgetting under a hold: %v", err)
	}
	w.Approve(w.srv, w.tenant.No)
	if _, err := w.srv.Erasure.DeleteTenant(t.Context(), caller, "acme", "acme", uuid.New()); err != nil {
		t.Fatalf("purging under a hold: %v", err)
	}
	w.flush()
	w.rollback(snapshot)
	w.closed()
	if _, err := restore.Run(t.Context(), w.config()); err != nil {
		t.Fatal(err)
	}
	w.reopened()
	if _, err := restore.Release(t.Context(), w.owner); err != nil {
		t.Fatal(err)
	}
	for what, want := range map[string]int64{
		`SELECT state FROM memd.tenants`:                                  int64(tenants.StateDrained),
		`SELECT count(*) FROM memd.memories`:                              2,
		`SELECT count(*) FROM memd.erasures WHERE state = 1`:              2,
		`SELECT count(*) FROM memd.fences`:                                0,
		`SELECT count(*) FROM memd.holds WHERE released_at IS NULL`:       1,
		`SELECT count(*) FROM memd.tenant_transitions WHERE to_state = 3`: 1,
	} {
		if n := w.number(what); n != want {
			t.Errorf("%s: %d, want %d", what, n, want)
		}
	}
	if _, err := w.srv.Erasure.ReleaseHold(t.Context(), caller, hold); err != nil {
		t.Fatal(err)
	}
	w.within("the purge done", func() bool {
		return w.number(`SELECT state FROM memd.tenants`) == int64(tenants.StatePurged)
	})
	if n := w.number(`SELECT count(*) FROM memd.memories`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}
