package erasure_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/fault"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/ledger"
	"forgettable.dev/memd/tenants"
)

// strideVariable makes the sweeps complete: make attack sets it. Without it
// every stride-th point is broken at, each mode beginning at another one.
const (
	strideVariable = "MEMD_ATTACK"
	stride         = 37
)

// Invariant 5: killed after any SQL statement, KMS call or ledger operation and
// started again, an erasure ends in the same state. At no point is anything of
// the living lost, and at the end nothing of the forgotten is readable.
func TestInvariant5_CrashSweep(t *testing.T) {
	for _, c := range []struct {
		name, session string
	}{{"ForgetUser", ""}, {"ForgetSession", "s1"}} {
		t.Run(c.name, func(t *testing.T) {
			w := newSweep(t)
			want := w.unbroken(c.session)
			for i, mode := range fault.Modes {
				step, k := 1, 1
				if os.Getenv(strideVariable) == "" {
					step, k = stride, 1+i*stride/len(fault.Modes)
				}
				last, broken := 0, map[string]int{}
				for ; ; k += step {
					kind, blown := w.breakAt(c.session, k, mode, want)
					if t.Failed() {
						t.Fatalf("first failure: %s %d, a %s", mode, k, kind)
					}
					if !blown {
						break
					}
					broken[kind]++
					last = k
				}
				t.Logf("%s: broke off at %v of %d points", mode, broken, last)
			}
		})
	}
}

// sweep is a world without a worker, where many tenants are broken one by one.
type sweep struct {
	*world
	fuse  *fault.Fuse
	wire  *fault.Wire
	clean *erasure.Runner
	n     int
	id    uuid.UUID
}

func newSweep(t *testing.T) *sweep {
	t.Helper()
	w := &sweep{world: &world{Stack: memdtest.Start(t), t: t}, fuse: &fault.Fuse{}, id: uuid.New()}
	w.StopWorker()
	w.a, _ = w.Server()
	w.b = w.a
	w.owner = w.DB.Pool("")
	folder, err := ledger.OpenFolder(w.Ledger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = folder.Close() })
	if w.clean, err = w.runnerBehind(t.Context(), &fault.Fuse{}, w.DB.Pool(node.WorkerRole), folder); err != nil {
		t.Fatal(err)
	}
	wire, err := fault.OpenWire(w.fuse, w.DB.URL(node.WorkerRole))
	if err != nil {
		t.Fatal(err)
	}
	w.wire = wire
	t.Cleanup(wire.Close)
	return w
}

// people is a populated tenant, with what its random ids stand for.
type people struct {
	tenant memory.Tenant
	labels []string // id, label, id, label …
	old    tables
	living []string // what anybody but alice's session said
}

func (w *sweep) populate() people {
	w.t.Helper()
	w.n++
	ctx := w.t.Context()
	pool := w.clean.Pool
	var p people
	err := pool.With(ctx, func(db pg.DB) error {
		t, err := tenants.Create(ctx, db, time.Now(), fmt.Sprintf("tenant-%d", w.n), "", delayed(0))
		if err != nil {
			return err
		}
		folder, err := ledger.OpenFolder(w.Ledger)
		if err != nil {
			return err
		}
		defer func() { _ = folder.Close() }()
		err = shred.Provision(ctx, shred.ProvisionConfig{
			Pool: pool, KMS: w.identity(kmsemu.Worker), Ledgers: []ledger.Ledger{folder}, Installation: w.id,
			DestroyDelay: 24 * time.Hour, Clock: memd.SystemClock{},
		}, t.No)
		if err != nil {
			return err
		}
		policy := memdtest.Policy()
		p.tenant = memory.Tenant{No: t.No, Epoch: 1, Dimension: policy.Dimension, Embedder: policy.Embedder, Format: memory.VectorFormat(policy.VectorFormat)}
		return tenants.Activate(ctx, db, time.Now(), t.No)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	a := w.addTo(p.tenant,
		said("alice", "s1", "alice one"), said("alice", "s2", "alice two"), contributed("alice", "s1", "alice shared"),
		said("bob", "b1", "bob"), said("bob", "", "bob outside"), contributed("bob", "b1", "bob shared"),
	)
	d := w.addTo(p.tenant, drawn(memory.KindFact, user("bob"), "bob on alice", from(a[0]), from(a[3])), drawn(memory.KindFact, user("bob"), "bob on bob", from(a[3])))
	e := w.addTo(p.tenant, drawn(memory.KindSummary, shared, "summary", from(d[0]), from(a[5])))
	for i, id := range append(append(a, d...), e...) {
		p.labels = append(p.labels, id.String(), fmt.Sprintf("row %d", i), strings.ReplaceAll(id.String(), "-", ""), fmt.Sprintf("row %d", i))
	}
	k := w.Keys(w.a, p.tenant)
	group := k.SharedRef(app)
	p.labels = append(p.labels, fmt.Sprintf("%x", group[:]), "shared")
	for _, name := range []string{"alice", "bob"} {
		ref := k.UserRef(app, name)
		p.labels = append(p.labels, fmt.Sprintf("%x", ref[:]), name)
		for _, s := range []string{"s1", "s2", "b1"} {
			sref := k.SessionRef(ref, s)
			p.labels = append(p.labels, fmt.Sprintf("%x", sref[:]), name+"'s "+s)
		}
	}
	p.living = []string{"bob", "bob on bob", "bob outside", "bob shared"}
	p.old = w.copyOf(p.tenant)
	return p
}

// unbroken returns the state that every broken erasure must end in.
func (w *sweep) unbroken(session string) string {
	w.t.Helper()
	p := w.populate()
	if _, err := w.clean.Run(w.t.Context(), w.acceptWhole(p, session)); err != nil {
		w.t.Fatal(err)
	}
	w.check(p, session)
	return w.dump(p)
}

// breakAt breaks an erasure off at the k-th effect, resumes it and compares.
func (w *sweep) breakAt(session string, k int, mode fault.Mode, want string) (kind string, blown bool) {
	w.t.Helper()
	p := w.populate()
	j := w.acceptWhole(p, session)
	w.fuse.Arm(k, mode)
	err := w.runBroken(j, mode)
	kind, blown = w.fuse.Blown()
	w.fuse.Disarm()
	if !blown && err != nil {
		w.t.Fatalf("point %d was not reached, and yet: %v", k, err)
	}
	w.living(p)
	if _, err := w.clean.Run(w.t.Context(), w.job(j)); err != nil {
		w.t.Errorf("resuming: %v", err)
	}
	if got := w.job(j); got.State != erasure.StateFinal {
		w.t.Errorf("resumed, it is %v", got.State)
	}
	w.check(p, session)
	if diff := cmp.Diff(want, w.dump(p)); diff != "" {
		w.t.Errorf("end state (-want +got):\n%s", diff)
	}
	return kind, blown
}

// runBroken runs a job behind the fuse: once, or, after a stumble, on and on with
// the same runner, as a worker does.
func (w *sweep) runBroken(j erasure.Job, mode fault.Mode) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	pool, err := pg.Open(ctx, pg.Config{URL: w.wire.URL, MaxConns: 4})
	if err != nil {
		return err
	}
	defer pool.Close()
	folder, err := ledger.OpenFolder(w.Ledger)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	r, err := w.runnerBehind(ctx, w.fuse, pool, folder)
	if err != nil {
		return err
	}
	_, err = r.Run(ctx, j)
	for tries := 0; err != nil && tries < 5 && (mode == fault.StumbleBefore || mode == fault.StumbleAfter); tries++ {
		_, err = r.Run(ctx, j)
	}
	return err
}

// living checks that whatever the point, nobody else has lost anything.
func (w *sweep) living(p people) {
	w.t.Helper()
	bob, group := w.textsOf(p.tenant, user("bob")), w.textsOf(p.tenant, shared)
	for _, text := range p.living {
		if !slices.Contains(bob, text) && !slices.Contains(group, text) {
			w.t.Errorf("%q cannot be read, %q and %q can", text, bob, group)
		}
	}
	found := w.readableAs(kmsemu.Admin, p.old)
	for _, text := range append(slices.Clone(p.living), "user bob", "session b1") {
		if !found[text] {
			w.t.Errorf("%q of the old copy cannot be read", text)
		}
	}
}

// check checks the end: all of the living, nothing of the forgotten, in the
// tables and in the copy from before.
func (w *sweep) check(p people, session string) {
	w.t.Helper()
	want := append(slices.Clone(p.living), "user bob", "session b1")
	var alice []string
	if session != "" {
		want, alice = append(want, "alice two", "user alice", "session s2"), []string{"alice two"}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(w.readableAs(kmsemu.Admin, p.old)))); diff != "" {
		w.t.Errorf("of the old copy (-want +got):\n%s", diff)
	}
	for scope, want := range map[memd.Scope][]string{
		user("alice"): alice, user("bob"): {"bob", "bob on bob", "bob outside"}, shared: {"bob shared"},
	} {
		if diff := cmp.Diff(want, w.textsOf(p.tenant, scope)); diff != "" {
			w.t.Errorf("%+v (-want +got):\n%s", scope, diff)
		}
	}
	tree := w.openHead(p.tenant)
	tree.Zero()
	versions, err := w.identity(kmsemu.Worker).List(w.t.Context(), p.old.key)
	if err != nil {
		w.t.Fatal(err)
	}
	enabled := 0
	for _, v := range versions {
		if v.State == shred.VersionEnabled {
			enabled++
		} else if !v.State.Doomed() {
			w.t.Errorf("a version is %v", v.State)
		}
	}
	if enabled != 1 {
		w.t.Errorf("%d versions are enabled", enabled)
	}
}
