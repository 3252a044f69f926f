package erasure_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/tenants"
)

// delayed is a policy whose second sweep comes after d.
func delayed(d time.Duration) tenants.Policy {
	p := memdtest.Policy()
	p.IngestionDelay = d
	return p
}

// state waits for an erasure to get there.
func (w *world) state(j erasure.Job, want erasure.State) erasure.Job {
	w.t.Helper()
	w.within(30*time.Second, "the erasure is "+want.String(), func() bool { return w.job(j).State >= want })
	return w.job(j)
}

// report reads an erasure's report.
func (w *world) report(t memory.Tenant, id uuid.UUID) erasure.Report {
	w.t.Helper()
	r, err := w.a.Erasure.Report(w.t.Context(), erasure.Caller{Tenant: t.No, Epoch: t.Epoch}, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// Acceptance and enqueueing are one: a request that is rolled back leaves no
// job, and one that committed has exactly one, also when it is sent again.
func TestAccept_EnqueuesInItsTransaction(t *testing.T) {
	w := newWorld(t)
	w.StopWorker()
	jobs := func() int { return w.count(`SELECT count(*) FROM memd_jobs.river_job WHERE kind = 'memd_erasure'`) }
	ref := w.Keys(w.a, w.tenant).UserRef(app, "alice")
	undone := errors.New("undone")
	err := w.DB.Pool(node.AppRole).InTx(t.Context(), func(tx pgx.Tx) error {
		_, err := erasure.Accept(t.Context(), tx, erasure.Job{
			Tenant: w.tenant.No, ID: uuid.New(), Kind: erasure.KindUser, App: app, User: ref,
		}, uuid.Nil, time.Now())
		if err != nil {
			return err
		}
		return undone
	})
	if !errors.Is(err, undone) || jobs() != 0 {
		t.Fatalf("%v, and %d jobs of a request that was rolled back", err, jobs())
	}
	j := w.accept(w.tenant, "alice", "")
	for range 2 {
		err := w.DB.Pool(node.AppRole).With(t.Context(), func(db pg.DB) error {
			_, err := erasure.Accept(t.Context(), db, j, uuid.Nil, time.Now())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if jobs() != 1 {
		t.Errorf("%d jobs of one request", jobs())
	}
	// The application has no way into the queue beside that.
	for _, sql := range []string{
		`SELECT count(*) FROM memd_jobs.river_job`, `DELETE FROM memd_jobs.river_job`,
		`SELECT memd.enqueue_job(1, 1, 1::smallint, now())`,
	} {
		err := w.app.With(t.Context(), func(db pg.DB) error { _, err := db.Exec(t.Context(), sql); return err })
		if pg.SQLState(err) != "42501" {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// queued is memd's job as a Go program would enqueue it.
type queued struct {
	Job    memd.Number   `json:"job"`
	Tenant memd.TenantNo `json:"tenant"`
}

func (queued) Kind() string { return "memd_erasure" }

// The unique key that the database makes is the library's own: another program
// that enqueues the same erasure by the library adds nothing.
func TestAccept_HasTheQueuesOwnUniqueKey(t *testing.T) {
	w := newWorld(t)
	w.StopWorker()
	j := w.accept(w.tenant, "alice", "")
	client, err := river.NewClient(riverpgxv5.New(w.DB.Pool(node.WorkerRole).Raw()), &river.Config{Schema: pg.JobsSchema})
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Insert(t.Context(), queued{Job: j.No, Tenant: j.Tenant}, &river.InsertOpts{
		UniqueOpts: river.UniqueOpts{ByArgs: true},
	})
	if err != nil || !res.UniqueSkippedAsDuplicate {
		t.Errorf("inserted as another: %+v, %v", res, err)
	}
}

// What the queue keeps of erasures that go well and of some that do not is
// numbers and words of memd's own.
func TestQueue_HoldsNumbersAndCodesOnly(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice-canary", "s-canary", "words-canary"))
	w.forgetUser("alice-canary")
	w.exec(`CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'detail-canary of alice-canary'; END $$`)
	w.exec(`CREATE TRIGGER refuse BEFORE INSERT ON memd.erasure_steps FOR EACH ROW EXECUTE FUNCTION public.refuse()`)
	j := w.accept(w.tenant, "bob-canary", "")
	w.within(20*time.Second, "it failed twice", func() bool {
		return w.count(`SELECT coalesce(sum(cardinality(errors)), 0)::int FROM memd_jobs.river_job`) >= 2
	})
	if got := w.job(j); got.Failure != "internal" || got.State != erasure.StateAccepted {
		t.Errorf("failure %q in state %v", got.Failure, got.State)
	}
	rows := w.strings(`SELECT r::text FROM memd_jobs.river_job r`)
	errs := w.strings(`SELECT e::text FROM memd_jobs.river_job r CROSS JOIN unnest(r.errors) e`)
	if len(rows) < 2 || len(errs) < 2 {
		t.Fatalf("%d jobs with %d errors: the test shows nothing", len(rows), len(errs))
	}
	for _, text := range append(rows, errs...) {
		if strings.Contains(text, "canary") || strings.Contains(text, "refuse") {
			t.Errorf("the queue tells %s", text)
		}
	}
	for _, args := range w.strings(`SELECT args::text FROM memd_jobs.river_job WHERE kind = 'memd_erasure'`) {
		var tenant, job int64
		if n, err := fmt.Sscanf(args, `{"job": %d, "tenant": %d}`, &job, &tenant); n != 2 || err != nil {
			t.Errorf("arguments %s", args)
		}
	}
	w.exec(`DROP TRIGGER refuse ON memd.erasure_steps`)
	w.state(j, erasure.StateDone)
	if got := w.job(j); got.Tries != 0 || got.Failure != "" {
		t.Errorf("done after %d tries, failure %q", got.Tries, got.Failure)
	}
}

// A restore empties the queue; open erasures are enqueued again.
func TestWorker_EnqueuesWhatTheQueueLost(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	w.StopWorker()
	j := w.accept(w.tenant, "alice", "")
	w.exec(`TRUNCATE memd_jobs.river_job`)
	w.StartWorker()
	w.state(j, erasure.StateDone)
	w.exec(`TRUNCATE memd_jobs.river_job`) // Under a running worker, while the sweep is to come.
	w.within(30*time.Second, "the second sweep is in the queue again", func() bool {
		return w.count(`SELECT count(*) FROM memd_jobs.river_job WHERE scheduled_at > now() + interval '50 minutes'`) == 1
	})
	w.wants(user("bob"), "bob")
}

// A job that is said to be running and that nobody runs is taken up in seconds.
func TestWorker_TakesUpOrphans(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"))
	w.StopWorker()
	j := w.accept(w.tenant, "alice", "")
	w.exec(`UPDATE memd_jobs.river_job SET state = 'running', attempt = 1, attempted_at = now(), attempted_by = '{dead}' WHERE finalized_at IS NULL`)
	began := time.Now()
	w.StartWorker()
	w.state(j, erasure.StateDone)
	if took := time.Since(began); took > 60*time.Second {
		t.Errorf("taken up and done after %v", took)
	}
}

func TestList_PagesByStateNewestFirst(t *testing.T) {
	w := newWorld(t)
	neighbour := w.Tenant("other", memdtest.Policy())
	w.StopWorker()
	other := w.accept(neighbour, "alice", "")
	var want []uuid.UUID
	for i := range 5 {
		want = append([]uuid.UUID{w.accept(w.tenant, fmt.Sprint("user", i), "").ID}, want...)
	}
	var got []uuid.UUID
	var after erasure.After
	for {
		var page []erasure.Job
		err := w.app.With(t.Context(), func(db pg.DB) (err error) {
			page, err = erasure.List(t.Context(), db, w.tenant.No, []erasure.State{erasure.StateAccepted}, after, 2)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page {
			got = append(got, j.ID)
			after = erasure.After{AcceptedAt: j.AcceptedAt, ID: j.ID}
			if j.ID == other.ID || !j.DueAt.Equal(j.AcceptedAt.Add(erasure.DueWithin)) {
				t.Errorf("listed %+v", j)
			}
		}
		if len(page) < 2 {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
