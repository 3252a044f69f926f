package erasure_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/fault"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/ledger"
)

// strideVariable makes the sweeps complete: make attack sets it. Without it
// every stride-th point is broken at, each mode beginning at another one.
const (
	strideVariable = "MEMD_ATTACK"
	stride         = 101
)

// broken is an erasure that is broken off, with what of the tenant can still be
// read when it is over: in the copy from before, and by the API.
type broken struct {
	name  string
	kind  erasure.Kind
	class memd.Class // of KindMonth
	// kept are the texts that stay, bob's aside, and aliceTexts and shared those
	// that a search finds. contents are alice's sessions that stay.
	kept, aliceTexts, bobTexts, shared []string
	contents                           []string
	// outside is what stores outside memd keep.
	outside []string
}

// What stays of alice when she loses one session.
var aliceKeeps = append(contentsOf("alice", "s2"), append(contentsOf("alice", "user"), "user alice", "session s2", "alice two")...)

var kinds = []broken{
	{
		name: "ForgetUser", kind: erasure.KindUser,
		bobTexts: []string{"bob", "bob on bob", "bob outside"}, shared: []string{"bob shared"}, outside: []string{"bob/b1"},
	},
	{
		name: "ForgetSession", kind: erasure.KindSession, kept: aliceKeeps, contents: []string{"s2"},
		aliceTexts: []string{"alice two"}, bobTexts: []string{"bob", "bob on bob", "bob outside"}, shared: []string{"bob shared"},
		outside: []string{"alice/s2", "bob/b1"},
	},
	{
		name: "DeleteSession", kind: erasure.KindContent, contents: []string{"s2"},
		kept:       append(slices.Clone(aliceKeeps), "alice one", "alice shared", "bob on alice", "summary", "session s1"),
		aliceTexts: []string{"alice one", "alice two"}, bobTexts: []string{"bob", "bob on alice", "bob on bob", "bob outside"},
		shared: []string{"alice shared", "bob shared", "summary"}, outside: []string{"alice/s2", "bob/b1"},
	},
	{name: "DeleteTenant", kind: erasure.KindTenant},
	expiry(memd.ClassContent), expiry(memd.ClassMemory),
}

// expiry is a month of one class that expires: what acceptWhole adds of September
// goes, but for the other class, and nothing else does.
func expiry(class memd.Class) broken {
	kept := slices.Concat(aliceKeeps, contentsOf("alice", "s1"), []string{
		"alice one", "alice shared", "bob on alice", "summary", "session s1", "session september",
	})
	c := broken{
		name: "Expire " + class.String(), kind: erasure.KindMonth, class: class, contents: []string{"s1", "s2"}, shared: []string{"alice shared", "bob shared", "summary"},
		aliceTexts: []string{"alice one", "alice two"}, bobTexts: []string{"bob", "bob on alice", "bob on bob", "bob outside"},
		outside: []string{"alice/s1", "alice/s2", "bob/b1"},
	}
	if class == memd.ClassMemory {
		c.kept = slices.Concat(kept, contentsOf("alice", "september"))
	} else {
		c.kept = append(kept, "alice in september")
		c.aliceTexts = []string{"alice in september", "alice one", "alice two"}
	}
	return c
}

// Invariant 5: killed after any SQL statement, KMS call, ledger operation or call
// to a store outside memd and started again, an erasure ends in the same state.
// At no point is anything of the living lost, and at the end nothing of the
// forgotten is readable.
func TestInvariant5_CrashSweep(t *testing.T) {
	for _, c := range kinds {
		t.Run(c.name, func(t *testing.T) {
			for i, mode := range fault.Modes {
				t.Run(mode.String(), func(t *testing.T) {
					t.Parallel() // Each has a memd of its own, and one waits for its database most of the time.
					w := newSweep(t)
					w.openBroken()
					w.each(c, mode, i*stride/len(fault.Modes), w.unbroken(c))
				})
			}
		})
	}
}

// each breaks an erasure off at one point after the other, in one mode.
func (w *sweep) each(c broken, mode fault.Mode, shift int, want string) {
	step, k := 1, 1
	if os.Getenv(strideVariable) == "" {
		step, k = stride, 1+shift
	}
	last, at := 0, map[string]int{}
	for ; ; k += step {
		kind, blown := w.breakAt(c, k, mode, want)
		if w.t.Failed() {
			w.t.Fatalf("first failure: %s %d, a %s", mode, k, kind)
		}
		if !blown {
			break
		}
		at[kind]++
		last = k
	}
	w.t.Logf("%s: broke off at %v; the last of them was point %d, and point %d is not reached", mode, at, last, k)
}

// sweep is a world without a worker, where many tenants are broken one by one.
type sweep struct {
	*world
	fuse     *fault.Fuse
	wire     *fault.Wire
	clean    *erasure.Runner
	broken   *erasure.Runner // behind the fuse, see openBroken
	caller   *purge.Caller
	store    *outsideStore
	storeURL string
	other    people       // who is never touched
	past     *node.Server // lives in September 2025
	n        int
	id       uuid.UUID
}

func newSweep(t *testing.T) *sweep {
	t.Helper()
	w := &sweep{world: &world{Stack: memdtest.Start(t), t: t}, fuse: &fault.Fuse{}, id: uuid.New()}
	w.StopWorker()
	w.a, _ = w.Server()
	w.b = w.a
	w.owner, w.app = w.DB.Pool(""), w.DB.Pool(node.AppRole)
	w.store, w.storeURL = w.startStore()
	folder, err := ledger.OpenFolder(w.Ledger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = folder.Close() })
	if w.clean, w.caller, err = w.runnerBehind(t.Context(), &fault.Fuse{}, w.DB.Pool(node.WorkerRole), folder); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.caller.Close)
	wire, err := fault.OpenWire(w.fuse, w.DB.URL(node.WorkerRole))
	if err != nil {
		t.Fatal(err)
	}
	w.wire = wire
	t.Cleanup(wire.Close)
	w.other = w.populate()
	return w
}

// openBroken makes the runner that is broken off, one for all points: a new
// connection costs the server as much as a hundred statements.
func (w *sweep) openBroken() {
	w.t.Helper()
	pool, err := pg.Open(w.t.Context(), pg.Config{URL: w.wire.URL, MaxConns: 4})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(pool.Close)
	folder, err := ledger.OpenFolder(w.Ledger)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = folder.Close() })
	var caller *purge.Caller
	if w.broken, caller, err = w.runnerBehind(w.t.Context(), w.fuse, pool, folder); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(caller.Close)
}

// unbroken returns the state that every broken erasure must end in.
func (w *sweep) unbroken(c broken) string {
	w.t.Helper()
	p := w.populate()
	if err := w.finish(w.clean, w.acceptWhole(&p, c)); err != nil {
		w.t.Fatal(err)
	}
	w.check(p, c)
	return w.dump(p)
}

// finish runs a job to its end. The keys of a session's content wait a day for a
// rotation that somebody else needs: that day passes at once.
func (w *sweep) finish(r *erasure.Runner, j erasure.Job) error {
	now := r.Clock
	defer func() { r.Clock = now }()
	p, err := r.Run(w.t.Context(), j)
	if err == nil && j.Kind == erasure.KindContent && p.Wait > time.Hour {
		r.Clock = dayLater{}
		p, err = r.Run(w.t.Context(), j)
	}
	if err == nil && !p.Over {
		err = fmt.Errorf("it waits for %v", p.Wait)
	}
	return err
}

type dayLater struct{}

// Now implements memd.Clock.
func (dayLater) Now() time.Time { return time.Now().Add(erasure.RotateEvery + time.Minute) }

// breakAt breaks an erasure off at the k-th effect, resumes it and compares.
func (w *sweep) breakAt(c broken, k int, mode fault.Mode, want string) (kind string, blown bool) {
	w.t.Helper()
	p := w.populate()
	j := w.acceptWhole(&p, c)
	w.fuse.Arm(k, mode)
	err := w.runBroken(j, mode)
	kind, blown = w.fuse.Blown()
	w.fuse.Disarm()
	if !blown && err != nil {
		w.t.Fatalf("point %d was not reached, and yet: %v", k, err)
	}
	w.living(w.other)
	if c.kind != erasure.KindTenant {
		w.living(p)
	}
	if err := w.finish(w.clean, w.job(j)); err != nil {
		w.t.Errorf("resuming: %v", err)
	}
	if got := w.job(j); got.State != erasure.StateFinal {
		w.t.Errorf("resumed, it is %v", got.State)
	}
	w.check(p, c)
	if diff := cmp.Diff(want, w.dump(p)); diff != "" {
		w.t.Errorf("end state (-want +got):\n%s", diff)
	}
	return kind, blown
}

// runBroken runs a job behind the fuse: once, or, after a stumble, on and on with
// the same runner, as a worker does.
func (w *sweep) runBroken(j erasure.Job, mode fault.Mode) error {
	if mode == fault.CrashBefore || mode == fault.CrashAfter {
		defer w.broken.Pool.Raw().Reset() // What it has cut.
	}
	err := w.finish(w.broken, j)
	for tries := 0; err != nil && tries < 5 && (mode == fault.StumbleBefore || mode == fault.StumbleAfter); tries++ {
		err = w.finish(w.broken, j)
	}
	return err
}

// living checks that whatever the point, nobody else has lost anything.
func (w *sweep) living(p people) {
	w.t.Helper()
	bob, group := w.textsOf(p.tenant, user("bob")), w.textsOf(p.tenant, shared)
	for _, text := range []string{"bob", "bob on bob", "bob outside", "bob shared"} {
		if !slices.Contains(bob, text) && !slices.Contains(group, text) {
			w.t.Errorf("%q cannot be read, %q and %q can", text, bob, group)
		}
	}
	w.kept(p.tenant, "bob", []string{"b1"}, []string{"b1"})
	found := w.readableAs(kmsemu.Admin, p.old)
	for _, text := range p.living {
		if !found[text] {
			w.t.Errorf("%q of the old copy cannot be read", text)
		}
	}
}

// check checks the end: all of the living, nothing of the forgotten, in the
// tables, outside, and in the copy from before.
func (w *sweep) check(p people, c broken) {
	w.t.Helper()
	w.outsiders(p, c.outside...)
	enabled := 1
	var want []string
	if c.kind == erasure.KindTenant {
		enabled = 0
		for _, table := range []string{"purge_targets", "principals"} {
			if n := w.count(`SELECT count(*) FROM memd.`+table+` WHERE tenant_no = $1`, p.tenant.No); n != 0 {
				w.t.Errorf("%d credentials are left in %s", n, table)
			}
		}
	} else {
		want = append(slices.Clone(p.living), c.kept...)
		w.live(p, c)
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(w.readableAs(kmsemu.Admin, p.old))), cmpopts.EquateEmpty()); diff != "" {
		w.t.Errorf("of the old copy (-want +got):\n%s", diff)
	}
	versions, err := w.identity(kmsemu.Worker).List(w.t.Context(), p.old.key)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, v := range versions {
		if v.State == shred.VersionEnabled {
			enabled--
		} else if !v.State.Doomed() {
			w.t.Errorf("a version is %v", v.State)
		}
	}
	if enabled != 0 {
		w.t.Errorf("%d versions too few are enabled", enabled)
	}
}

// live checks what the API returns of a tenant that lives on.
func (w *sweep) live(p people, c broken) {
	w.t.Helper()
	for scope, want := range map[memd.Scope][]string{user("alice"): c.aliceTexts, user("bob"): c.bobTexts, shared: c.shared} {
		if diff := cmp.Diff(want, w.textsOf(p.tenant, scope)); diff != "" {
			w.t.Errorf("%+v (-want +got):\n%s", scope, diff)
		}
	}
	w.kept(p.tenant, "alice", []string{"s1", "s2"}, c.contents)
	w.kept(p.tenant, "bob", []string{"b1"}, []string{"b1"})
	tree := w.openHead(p.tenant)
	tree.Zero()
}
