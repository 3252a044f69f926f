package restore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/restore"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/tenants"
)

// The month that expires in these tests: any that is long past.
var september = time.Date(2025, 9, 15, 12, 0, 0, 0, time.UTC)

type fixed struct{ time.Time }

// Now implements memd.Clock.
func (f fixed) Now() time.Time { return f.Time }

// keeps makes a tenant that keeps two months, with words of September and of now,
// and a session of September. The worker is stopped: it would not wait to be told.
func (w *world) keeps() {
	w.t.Helper()
	policy := memdtest.Policy()
	policy.IngestionDelay = 0
	w.tenant = w.Tenant("keeper", policy)
	w.StopWorker()
	w.retain(2)
	old, new := said("alice", "s1", "of september"), said("alice", "s1", "alice lives")
	old.SourceTime, new.SourceTime = september, time.Now()
	w.add(old, new)
	past, _ := w.ServerWith(func(c *node.ServerConfig) { c.Clock = fixed{september} })
	of, id := sessions.Tenant{No: w.tenant.No, Epoch: w.tenant.Epoch}, sessions.ID{App: app, UserID: "alice", SessionID: "old"}
	if _, err := past.Sessions.Create(w.t.Context(), of, id, nil, false); err != nil {
		w.t.Fatal(err)
	}
	event := sessions.Event{ID: "e", Author: "user", Content: `"of september"`}
	if _, err := past.Sessions.Append(w.t.Context(), of, id, []sessions.Event{event}, time.Time{}, false); err != nil {
		w.t.Fatal(err)
	}
}

// run expires what is due of the tenant and returns how many months that were.
func (w *world) run() int {
	w.t.Helper()
	var t tenants.Tenant
	err := w.srv.Pool.With(w.t.Context(), func(db pg.DB) (err error) {
		t, err = tenants.GetByNo(w.t.Context(), db, w.tenant.No)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	plan, err := erasure.RunRetention(w.t.Context(), w.srv.Pool, t, uuid.New(), time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	n := 0
	for _, e := range plan {
		if e.State != erasure.StateUnknown {
			n++
		}
	}
	return n
}

func (w *world) retain(months int) {
	w.t.Helper()
	err := w.srv.Pool.InTx(w.t.Context(), func(tx pgx.Tx) error {
		_, err := tenants.SetPolicy(w.t.Context(), tx, time.Now(), "keeper", tenants.Change{SessionMonths: &months, MemoryMonths: &months})
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.flush()
}

// A month that expired after the backup stays expired, although the policy of today
// would keep it: its rows go before the gate opens, nothing can be written into it,
// and its expiry is carried out again.
func TestDrill_MonthExpiredAfterTheBackup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.keeps()
	snapshot := w.snapshot()
	if n := w.run(); n != 2 {
		t.Fatalf("%d months expire", n)
	}
	w.StartWorker()
	final := func() bool {
		return w.number(`SELECT count(*) FROM memd.erasures WHERE kind = 5 AND state = 4`) == 2
	}
	w.within("the month expired", final)
	w.retain(tenants.MaxRetention)

	w.DB.Rollback(snapshot)
	w.reset()
	w.closed()
	if n := w.number(`SELECT count(*) FROM memd.memories WHERE tenant_no = $1`, w.tenant.No); n != 2 {
		t.Fatalf("the database was not rolled back: %d rows", n)
	}
	report, err := restore.Run(t.Context(), w.config())
	if err != nil || report.Fell != 2 {
		t.Fatalf("%+v, %v", report, err)
	}
	w.reopened()
	w.wants(user("alice"), "alice lives")
	for _, table := range []string{"memories", "session_events", "session_heads"} {
		if n := w.number(`SELECT count(*) FROM memd.`+table+` WHERE tenant_no = $1 AND month < 12 * 56`, w.tenant.No); n != 0 {
			t.Errorf("%d rows of September in %s", n, table)
		}
	}
	late := said("alice", "s1", "late")
	late.SourceTime = september
	if _, err := w.srv.Memory.Add(t.Context(), w.tenant, []memory.Row{late}); !errors.Is(err, memd.ErrMonthExpired) {
		t.Errorf("adding of September: %v", err)
	}
	if _, err := restore.Release(t.Context(), w.DB.Pool("")); err != nil {
		t.Fatal(err)
	}
	w.within("the expiry carried out again", final)
	w.wants(user("alice"), "alice lives")
}

// A retention that was raised after the backup holds after its restore.
func TestDrill_RetentionRaisedAfterTheBackup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.keeps()
	snapshot := w.snapshot()
	w.retain(tenants.MaxRetention)
	w.DB.Rollback(snapshot)
	w.reset()
	w.closed()
	if _, err := restore.Run(t.Context(), w.config()); err != nil {
		t.Fatal(err)
	}
	w.reopened()
	if _, err := restore.Release(t.Context(), w.DB.Pool("")); err != nil {
		t.Fatal(err)
	}
	if n := w.run(); n != 0 {
		t.Errorf("%d months expire by the policy of the backup", n)
	}
	w.wants(user("alice"), "alice lives", "of september")
}
