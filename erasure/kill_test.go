package erasure_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/fault"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/shred/kmsemu"
)

// How often a worker is killed, and within what.
const (
	kills         = 4
	killsInAttack = 80
	killWithin    = 400 // statements
	killWithinFor = 400 * time.Millisecond
)

// Invariant 5 with a real process: memd worker is killed, not stopped, at a
// statement or at a moment picked at random, and another one finishes.
func TestInvariant5_KilledWorkers(t *testing.T) {
	w := newSweep(t)
	p := w.process(w.wire.URL)
	w.fuse.OnBlow(p.signal)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	// Not DeleteSession, whose keys wait for a day.
	of := slices.DeleteFunc(slices.Clone(kinds), func(b broken) bool { return b.kind == erasure.KindContent })
	want := make([]string, len(of))
	for i := range of {
		want[i] = w.unbroken(of[i])
	}
	n := kills
	if os.Getenv(strideVariable) != "" {
		n = killsInAttack
	}
	killed := map[erasure.State]int{}
	for i := range n {
		what := of[i%len(of)]
		victim := w.populate()
		j := w.acceptWhole(&victim, what)
		if i%4 < 3 {
			w.fuse.Arm(1+random.IntN(killWithin), fault.Modes[random.IntN(2)])
			p.start()
			w.within(30*time.Second, "killed, or done", func() bool {
				_, blown := w.fuse.Blown()
				return blown || w.job(j).State == erasure.StateFinal
			})
		} else {
			p.start()
			moment := time.NewTimer(time.Duration(random.Int64N(int64(killWithinFor))))
			<-moment.C
		}
		p.kill()
		w.fuse.Disarm()
		killed[w.job(j).State]++
		w.living(w.other)
		if what.kind != erasure.KindTenant {
			w.living(victim)
		}
		p.start()
		w.within(30*time.Second, "done by another process", func() bool { return w.job(j).State == erasure.StateFinal })
		p.kill()
		w.check(victim, what)
		if diff := cmp.Diff(want[i%len(of)], w.dump(victim)); diff != "" {
			t.Errorf("end state (-want +got):\n%s\nlog:\n%s", diff, p.log())
		}
		if t.Failed() {
			t.Fatalf("first failure: kill %d of seed %d", i, seed)
		}
	}
	t.Logf("killed %d workers; the erasures were then: %v", n, killed)
}

// One of two workers has an erasure and is killed in the middle of a call. The
// other one, who was there all the time, takes it up, and it is done once.
func TestWorker_AnotherTakesUpWhatAKilledOneHad(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	w.StopWorker()
	h, _ := w.hang(w.tenant, purge.Config{})
	j := w.ask(w.a, w.tenant, "alice")
	one, two := w.process(w.DB.URL(node.WorkerRole)), w.process(w.DB.URL(node.WorkerRole))
	one.start()
	w.within(time.Minute, "one has it, and waits for a store outside", func() bool { return h.asked.Load() == 1 })
	two.start()
	w.within(time.Minute, "the other is there", func() bool {
		return w.count(`SELECT count(*) FROM memd.instances WHERE kind = 'worker'`) == 2
	})
	if h.asked.Load() != 1 {
		t.Error("both do it at once")
	}
	one.kill()
	w.within(time.Minute, "the other has it", func() bool { return h.asked.Load() == 2 })
	close(h.free)
	w.state(j, erasure.StateDone)
	two.kill()
	w.wants(user("alice"))
	w.wants(user("bob"), "bob")
	if n := w.count(`SELECT count(*) FROM memd.rotations`); n != 1 {
		t.Errorf("%d rotations", n)
	}
}

// build builds memd once for all tests.
var build = sync.OnceValues(func() (string, error) {
	var err error
	if built, err = os.MkdirTemp("", "memd-erasure-"); err != nil {
		return "", err
	}
	binary := filepath.Join(built, "memd")
	out, err := exec.Command("go", "build", "-o", binary, "../cmd/memd").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("building memd: %w\n%s", err, out)
	}
	return binary, err
})

// process is a memd worker of its own, which can be killed and started again.
type process struct {
	t           *testing.T
	w           *world
	binary, url string

	mu     sync.Mutex
	cmd    *exec.Cmd
	output *bytes.Buffer
}

// process returns one that is not started. The URL is its database's.
func (w *world) process(url string) *process {
	w.t.Helper()
	binary, err := build()
	if err != nil {
		w.t.Fatal(err)
	}
	p := &process{t: w.t, w: w, binary: binary, url: url}
	w.t.Cleanup(p.kill)
	return p
}

func (p *process) start() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.output = &bytes.Buffer{}
	p.cmd = exec.Command(p.binary, "worker", "--one-ledger", "--target-allow-private")
	p.cmd.Env = append(os.Environ(),
		"MEMD_DATABASE_URL="+p.url, "MEMD_LEDGER="+p.w.Ledger, "MEMD_KMS=emulator:"+p.w.KMS.Address,
		"MEMD_KMS_TOKEN="+p.w.KMS.Server.Tokens()[kmsemu.Worker], "MEMD_SHREDDER_KMS_TOKEN="+p.w.KMS.Server.Tokens()[kmsemu.Shredder],
	)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	if err := p.cmd.Start(); err != nil {
		p.t.Fatalf("starting a worker: %v", err)
	}
}

// signal is kill -9.
func (p *process) signal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		_ = p.cmd.Process.Kill() // One that is dead already is as wanted.
	}
}

// kill is signal, and waits for the death.
func (p *process) kill() {
	p.signal()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		_ = p.cmd.Wait() // It was killed: that is the point.
		p.cmd = nil
	}
}

// log is what the process wrote, once it is dead.
func (p *process) log() string { return p.output.String() }
