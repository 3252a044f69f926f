package erasure_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/kmstest"
	"forgettable.dev/memd/tenants"
)

// told is what a worker's metrics were told.
type told struct {
	done, failed, open, swept atomic.Int64
}

func (m *told) metrics() erasure.Metrics {
	return erasure.Metrics{
		Done:   func(erasure.Kind, time.Duration) { m.done.Add(1) },
		Failed: func(erasure.Kind) { m.failed.Add(1) },
		Open:   func(b erasure.Backlog) { m.open.Store(b.Open) },
		Swept:  func(rows int64) { m.swept.Add(rows) },
	}
}

// work runs a worker of the test's own until the test or stop ends it.
func (w *world) work(provision func(ctx context.Context, t tenants.Tenant) error) (m *told, stop func()) {
	w.t.Helper()
	return w.workWith(provision, erasure.Parts{})
}

func (w *world) workWith(provision func(ctx context.Context, t tenants.Tenant) error, parts erasure.Parts) (m *told, stop func()) {
	w.t.Helper()
	m = &told{}
	r := w.runner(func(_ **pg.Pool, c *shred.RotatorConfig) { // A key service that is away is given up soon.
		c.Worker = w.KMS.Client(w.t, kmsemu.Worker, impatient)
		c.Shredder = w.KMS.Client(w.t, kmsemu.Shredder, impatient)
	})
	worker, err := erasure.NewWorker(erasure.WorkerConfig{
		Pool: r.Pool, Rotator: r.Rotator, Provision: provision, Clock: memd.SystemClock{},
		Logger: slog.New(slog.NewTextHandler(w.Logs, nil)), Metrics: m.metrics(), Parts: parts,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("running a worker: %v", err)
		}
	})
	w.t.Cleanup(stop)
	return m, stop
}

func impatient(c *gcpkms.Config) { c.MaxElapsed = 200 * time.Millisecond }

func noProvision(context.Context, tenants.Tenant) error {
	return errors.New("nothing is to be set up here")
}

func (w *world) announce(name string) tenants.Tenant {
	w.t.Helper()
	var made tenants.Tenant
	err := w.owner.With(w.t.Context(), func(db pg.DB) (err error) {
		made, err = tenants.Create(w.t.Context(), db, time.Now(), name, "", memdtest.Policy())
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return made
}

// A tenant that cannot be set up is tried again, ever more seldom, and holds up
// nobody; whatever an earlier try left is taken up.
func TestWorker_SetsUpHalfMadeTenants(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"))
	w.StopWorker()
	half := w.announce("half")
	tries := make(chan time.Time, 100)
	m, stop := w.work(func(ctx context.Context, t tenants.Tenant) error {
		tries <- time.Now()
		return errors.New("the key service does not like this tenant")
	})
	var times []time.Time
	for range 5 {
		times = append(times, <-tries)
		if len(times) == 2 { // It fails and fails, and an erasure is done.
			j := w.accept(w.tenant, "alice", "")
			w.within(20*time.Second, "an erasure beside it", func() bool { return w.job(j).State == erasure.StateDone })
		}
	}
	// Waits of 50 to 100 ms, 100 to 200, 200 to 400, 400 to 800.
	if took := times[4].Sub(times[0]); took < 750*time.Millisecond {
		t.Errorf("five tries in %v", took)
	}
	stop()
	if m.done.Load() != 1 || m.failed.Load() != 0 {
		t.Errorf("metrics: %d done, %d failed", m.done.Load(), m.failed.Load())
	}
	// Its keys are there, and the process died before it was made active.
	w.StartWorker()
	w.within(20*time.Second, "the tenant is active", func() bool {
		return w.count(`SELECT count(*) FROM memd.tenants WHERE tenant_no = $1 AND state = 2`, half.No) == 1
	})
	w.StopWorker()
	w.exec(`UPDATE memd.tenants SET state = 1 WHERE tenant_no = $1`, half.No)
	keys := w.strings(`SELECT encode(sealed, 'hex') FROM memd.key_trees WHERE tenant_no = $1`, half.No)
	w.StartWorker()
	w.within(20*time.Second, "the tenant is active again", func() bool {
		return w.count(`SELECT count(*) FROM memd.tenants WHERE tenant_no = $1 AND state = 2`, half.No) == 1
	})
	if after := w.strings(`SELECT encode(sealed, 'hex') FROM memd.key_trees WHERE tenant_no = $1`, half.No); !slices.Equal(keys, after) {
		t.Error("setting up again made other keys")
	}
}

// With the key service away an erasure goes as far as it can, stays open, says
// so by its metrics, never claims to be done, and goes on by itself.
func TestWorker_KeyServiceAway(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	w.wants(user("bob"), "bob")
	w.StopWorker()
	old := w.copyOf(w.tenant)
	w.KMS.Stop()
	j := w.accept(w.tenant, "alice", "")
	m, _ := w.work(noProvision)
	w.within(60*time.Second, "two tries failed and the erasure is reported open", func() bool {
		return m.failed.Load() >= 2 && m.open.Load() == 1
	})
	if got := w.job(j); got.State != erasure.StateRunning || m.done.Load() != 0 {
		t.Errorf("state %v, %d done", got.State, m.done.Load())
	}
	// The rows are gone and the fence is up: it waits for the keys alone.
	for step, want := range map[erasure.Step]int{erasure.StepVerify: 1, erasure.StepRotate: 0, erasure.StepDestroy: 0} {
		if n := w.count(`SELECT count(*) FROM memd.erasure_steps WHERE done AND step = $1`, step); n != want {
			t.Errorf("step %v is done %d times, want %d", step, n, want)
		}
	}
	w.refused(at(said("alice", "s9", "late"), time.Now()), memd.ErrFenced)
	w.wants(user("bob"), "bob") // From the keys that the replicas have.
	w.add(said("bob", "b1", "bob goes on"))
	w.KMS.Restart(t, 0)
	w.within(90*time.Second, "done when the key service is back", func() bool { return w.job(j).State == erasure.StateDone })
	w.within(20*time.Second, "reported done", func() bool { return m.open.Load() == 0 && m.done.Load() == 1 })
	if found, _ := w.readable(old); found["alice"] || !found["bob"] {
		t.Errorf("readable: %v", found)
	}
	w.wants(user("bob"), "bob", "bob goes on")
}

// Two workers share the work, and each erasure is done once.
func TestWorker_TwoShareTheWork(t *testing.T) {
	w := newWorld(t)
	const n = 12
	for i := range n {
		w.add(said(fmt.Sprintf("user%d", i), "s1", "words"))
	}
	w.add(said("bob", "b1", "bob"))
	w.StopWorker()
	var jobs []erasure.Job
	for i := range n {
		jobs = append(jobs, w.accept(w.tenant, fmt.Sprintf("user%d", i), ""))
	}
	one, _ := w.work(noProvision)
	two, _ := w.work(noProvision)
	w.within(60*time.Second, "all are done", func() bool {
		return !slices.ContainsFunc(jobs, func(j erasure.Job) bool { return w.job(j).State != erasure.StateDone })
	})
	w.within(10*time.Second, "all are counted", func() bool { return one.done.Load()+two.done.Load() >= n })
	if sum := one.done.Load() + two.done.Load(); sum != n || one.failed.Load()+two.failed.Load() != 0 {
		t.Errorf("%d and %d done, %d and %d failed", one.done.Load(), two.done.Load(), one.failed.Load(), two.failed.Load())
	}
	if one.done.Load() == 0 || two.done.Load() == 0 {
		t.Errorf("one did all: %d and %d", one.done.Load(), two.done.Load())
	}
	// Those of one tenant share their rotations.
	if n := w.count(`SELECT epoch FROM memd.tenant_keys`); n > 12 {
		t.Errorf("epoch %d after 12 erasures", n)
	}
	w.wants(user("bob"), "bob")
	for i := range n {
		w.wants(user(fmt.Sprintf("user%d", i)))
	}
}

// The same erasure by the same runner, at once.
func TestRunner_TwiceAtOnce(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"), said("alice", "s2", "alice"), said("bob", "b1", "bob"))
	w.StopWorker()
	j := w.accept(w.tenant, "alice", "")
	r := w.runner()
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			if _, err := r.Run(t.Context(), j); err != nil && !memd.Transient(err) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if _, err := r.Run(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	want := []string{"1 2 ", "2  2", "3  ", "4  "} // before; sessions
	got := w.strings(`SELECT concat(step, ' ', counts->'before'->'memories', ' ', counts->'sessions') FROM memd.erasure_steps WHERE step < 5 ORDER BY step`)
	if !slices.Equal(want, got) {
		t.Errorf("journal %q, want %q", got, want)
	}
	if n := w.count(`SELECT count(*) FROM memd.rotations`); n != 1 {
		t.Errorf("%d rotations", n)
	}
	w.wants(user("bob"), "bob")
}

// A hundred and more that cannot go on must not keep the next from being seen.
func TestWorker_ManyThatFailHideNobody(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"))
	broken := w.Tenant("broken", memdtest.Policy())
	w.StopWorker()
	w.exec(`CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$`)
	w.exec(fmt.Sprintf(`CREATE TRIGGER refuse BEFORE INSERT ON memd.erasure_steps FOR EACH ROW WHEN (NEW.tenant_no = %d) EXECUTE FUNCTION public.refuse()`, broken.No))
	for i := range 130 {
		w.accept(broken, fmt.Sprintf("user%d", i), "")
	}
	j := w.accept(w.tenant, "alice", "")
	m, _ := w.work(noProvision)
	w.within(60*time.Second, "done behind the others", func() bool { return w.job(j).State == erasure.StateDone })
	if m.failed.Load() == 0 {
		t.Error("nothing failed: the test shows nothing")
	}
	w.exec(`DROP TRIGGER refuse ON memd.erasure_steps`)
}

// Expired rows are never returned, swept or not (langgraph#8902), and the sweep
// takes all of them, above the size of its batches.
func TestWorker_SweepsExpiredRows(t *testing.T) {
	clock := kmstest.NewClock(time.Now())
	w := newWorld(t, memdtest.WithClock(clock))
	var rows []memory.Row
	for range erasure.SweepBatch + 50 {
		row := said("alice", "s1", "expires")
		row.ExpiresAt = clock.Now().Add(time.Hour)
		rows = append(rows, row)
	}
	for batch := range slices.Chunk(rows, memd.MaxBatch) {
		if _, err := w.a.Memory.Add(t.Context(), w.tenant, batch); err != nil {
			t.Fatal(err)
		}
	}
	w.add(said("alice", "s1", "stays"), said("bob", "b1", "bob"))
	if got := w.textsOf(w.tenant, user("alice")); len(got) != memd.MaxTopK {
		t.Fatalf("%d hits before", len(got))
	}
	w.StopWorker()
	clock.Advance(time.Hour)
	w.wants(user("alice"), "stays")
	if n := w.count(`SELECT count(*) FROM memd.memories`); n != len(rows)+2 {
		t.Fatalf("%d rows: the sweep was quicker than the test", n)
	}
	w.StartWorker()
	w.within(20*time.Second, "swept", func() bool { return w.count(`SELECT count(*) FROM memd.memories`) == 2 })
	w.wants(user("alice"), "stays")
	w.wants(user("bob"), "bob")
}
