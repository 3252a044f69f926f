package restore_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"forgettable.dev/memd/internal/fault"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/restore"
)

// strideVariable makes the sweep complete: make attack sets it. Without it every
// stride-th point is broken at, each mode beginning at another one.
const (
	strideVariable = "MEMD_ATTACK"
	stride         = 120
	// The records are replayed first: there it is denser.
	replaying, replayStride = 40, 12
)

// Invariant 5 for restores: broken off after any statement, KMS call or ledger
// operation and run again, a restore ends in the same state, and at no point does
// anybody serve.
func TestInvariant5_RestoreCrashSweep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(said("alice", "s1", "alice one"), contributed("alice", "s1", "alice shared"))
	bob := w.add(said("bob", "b1", "bob one"), said("bob", "b1", "bob deleted"))
	w.flush()
	snapshot := w.snapshot()
	w.ForgetUser(w.srv, w.tenant, app, "alice")
	w.ForgetSession(w.srv, w.tenant, app, "carol", "never seen")
	if _, err := w.srv.Memory.Delete(t.Context(), w.tenant, user("bob"), bob[1], false); err != nil {
		t.Fatal(err)
	}
	w.flush()
	w.StopWorker()

	s := &sweep{world: w, snapshot: snapshot}
	want := s.once(0, fault.CrashBefore)
	kinds := map[string]int{}
	for i, mode := range fault.Modes {
		k := 1
		if os.Getenv(strideVariable) == "" {
			k += i * replayStride / len(fault.Modes)
		}
		broken := 0
		for ; ; k = after(k) {
			if diff := s.once(k, mode); diff != want {
				t.Errorf("%s %d, a %s, ended in another state:\n%s\nwant\n%s", mode, k, s.kind, diff, want)
			}
			if s.kind == "" || t.Failed() {
				break
			}
			broken++
			kinds[s.kind]++
		}
		t.Logf("%s: broken off at %d points", mode, broken)
	}
	if kinds[fault.Statement] < 8 || kinds[fault.Ledger] < 1 {
		t.Errorf("the sweep broke off at %v only", kinds)
	}
}

// after is the next point to break off at.
func after(k int) int {
	switch {
	case os.Getenv(strideVariable) != "":
		return k + 1
	case k < replaying:
		return k + replayStride
	}
	return k + stride
}

type sweep struct {
	*world
	snapshot string
	kind     string // of what it broke off at last
}

// once rolls back, restores with a break at k, restores again, and returns what
// is left.
func (s *sweep) once(k int, mode fault.Mode) string {
	s.t.Helper()
	s.DB.Rollback(s.snapshot)
	var f fault.Fuse
	wire, err := fault.OpenWire(&f, s.DB.URL(""))
	if err != nil {
		s.t.Fatal(err)
	}
	pool, err := pg.Open(s.t.Context(), pg.Config{URL: wire.URL, MaxConns: 24, AcquireTimeout: 5 * time.Second})
	if err != nil {
		s.t.Fatal(err)
	}
	c := s.config()
	clean := c.Pool
	defer clean.Close()
	c.Pool, c.Ledgers, c.KMS = pool, fault.Ledgers(&f, c.Ledgers), fault.KMS(&f, c.KMS)
	f.Arm(k, mode)
	_, first := restore.Run(s.t.Context(), c)
	s.kind, _ = f.Blown()
	f.Disarm()
	pool.Close()
	wire.Close()
	if k > 0 && s.kind != "" && first == nil && !strings.HasPrefix(mode.String(), "stumble") {
		// Only what comes after the last effect can be lost without an error.
		s.t.Logf("%s %d, a %s, was not noticed", mode, k, s.kind)
	}
	again := s.config()
	again.Pool = clean
	if _, err := restore.Run(s.t.Context(), again); err != nil {
		s.t.Fatalf("%s %d, a %s (%v): restoring again: %v", mode, k, s.kind, first, err)
	}
	return s.left(clean)
}

// left is the state that a restore leaves, without what is of the moment: how
// many records the facts of the restore itself fill is one.
func (s *sweep) left(pool *pg.Pool) string {
	s.t.Helper()
	var text string
	err := pool.With(s.t.Context(), func(db pg.DB) error {
		return db.QueryRow(s.t.Context(), `SELECT concat_ws(E'\n',
		  (SELECT string_agg(concat_ws(' ', 'memory', m.memory_id, m.version), E'\n' ORDER BY m.memory_id) FROM memd.memories m),
		  (SELECT string_agg(concat_ws(' ', 'tombstone', d.kind, encode(d.ref, 'hex'), d.through_version), E'\n' ORDER BY d.kind, d.ref) FROM memd.tombstones d),
		  (SELECT string_agg(concat_ws(' ', 'fence', encode(f.user_ref, 'hex'), f.state), E'\n' ORDER BY f.user_ref) FROM memd.fences f),
		  (SELECT string_agg(concat_ws(' ', 'erasure', e.request_id, e.state), E'\n' ORDER BY e.request_id) FROM memd.erasures e),
		  (SELECT string_agg(concat_ws(' ', 'step', p.request_id, p.step, p.done), E'\n' ORDER BY p.request_id, p.step) FROM memd.erasure_steps p),
		  (SELECT string_agg(concat_ws(' ', 'puncture', p.path, p.epoch), E'\n' ORDER BY p.path) FROM memd.punctures p),
		  (SELECT string_agg(concat_ws(' ', 'tree', k.epoch, encode(k.digest, 'hex')), E'\n' ORDER BY k.epoch) FROM memd.key_trees k),
		  (SELECT string_agg(concat_ws(' ', 'subject', u.subject_no, u.retired_at IS NOT NULL), E'\n' ORDER BY u.subject_no) FROM memd.subjects u),
		  (SELECT concat_ws(' ', 'state', l.restoring, l.held) FROM memd.ledger_state l),
		  (SELECT count(*) FROM memd.replays),
		  (SELECT count(*) FROM memd_jobs.river_job))`).Scan(&text)
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if n := strings.Count(text, "\n"); n < 10 {
		s.t.Fatal(fmt.Sprint("only ", n, " lines are left"))
	}
	return text
}
