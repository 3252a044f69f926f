package shred_test

import (
	"fmt"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// breaker is a place where a run can be broken off at the k-th event.
type breaker interface {
	arm(k int, answerLost bool)
	reached() int
}

// sweep breaks a run at every event of a kind, before and after it happened, and
// resumes it. begin prepares a run and returns what runs it and what resumes and
// checks it. It ends at the first k that the run does not reach.
func sweep(t *testing.T, what string, b breaker, begin func(t *testing.T) (run func() error, resume func())) {
	t.Helper()
	for _, answerLost := range []bool{false, true} {
		k := 1
		for ; ; k++ {
			run, resume := begin(t)
			b.arm(k, answerLost)
			err := run()
			broken := b.reached() >= k
			b.arm(0, false)
			// Broken off and no error is right where only the lock's release was
			// lost; resume checks the result in either case.
			if !broken && err != nil {
				t.Fatalf("%s %d was not reached, and yet: %v", what, k, err)
			}
			resume()
			if t.Failed() {
				t.Fatalf("first failure at %s %d (answer lost: %v)", what, k, answerLost)
			}
			if !broken {
				break
			}
		}
		t.Logf("broke off at each of %d %ss (answer lost: %v)", k-1, what, answerLost)
	}
}

// Design §2, invariant 5, for rotation: killed after any SQL statement, KMS call
// or ledger operation and started again, it ends in the same state; at no point is
// a neighbour lost or the erased one back.
func TestRotator_CrashSweep(t *testing.T) {
	w := newWorld(t)
	pool, sql := w.openThroughWire()
	kms, ledgers := new(fuse), new(fuse)
	broken := w.rotator(func(c *shred.RotatorConfig) {
		c.Pool = pool
		c.Worker, c.Shredder = fusedKMS{kms, w.worker}, fusedKMS{kms, w.shredder}
		c.Ledgers = fused(ledgers, w.ledgers)
	})
	whole := w.rotator()
	begin := func(t *testing.T) (func() error, func()) {
		w := w.in(t)
		tenant := w.tenant()
		living := []shred.Path{leaf(t, 6), leaf(t, 8), leaf(t, 1)}
		w.puncture(tenant, subject(t, 7))
		run := func() error {
			_, err := broken.Rotate(t.Context(), tenant)
			return err
		}
		resume := func() {
			done := w.rotate(whole, tenant)
			if done.Epoch != 2 || done.Punctured != 1 || done.State != shred.RotationFinished {
				t.Errorf("resumed to %+v", done)
			}
			w.checkLine(tenant, living, []shred.Path{subject(t, 7)})
			// The next one must not stumble over what the crash left behind.
			w.puncture(tenant, subject(t, 12))
			w.rotate(whole, tenant)
			w.checkLine(tenant, living, []shred.Path{subject(t, 7), subject(t, 12)})
		}
		return run, resume
	}
	for _, c := range []struct {
		what string
		b    breaker
	}{{"statement", sql}, {"KMS call", kms}, {"ledger operation", ledgers}} {
		t.Run(c.what, func(t *testing.T) { sweep(t, c.what, c.b, begin) })
	}
}

// The same for setting up a tenant's keys: whatever the crash left behind, the
// first tree that a ledger has is the tenant's, and there is one.
func TestProvision_CrashSweep(t *testing.T) {
	w := newWorld(t)
	pool, sql := w.openThroughWire()
	kms, ledgers := new(fuse), new(fuse)
	broken := w.provisionConfig()
	broken.Pool, broken.KMS, broken.Ledgers = pool, fusedKMS{kms, w.worker}, fused(ledgers, w.ledgers)
	begin := func(t *testing.T) (func() error, func()) {
		w := w.in(t)
		tenant := memd.TenantNo(w.tenants.Add(1))
		run := func() error { return shred.Provision(t.Context(), broken, tenant) }
		resume := func() {
			before := fmt.Sprint(w.firstTrees(tenant))
			for range 2 {
				if err := shred.Provision(t.Context(), w.provisionConfig(), tenant); err != nil {
					t.Fatal(err)
				}
			}
			if after := fmt.Sprint(w.firstTrees(tenant)); before != "[]" && before != after {
				t.Errorf("first tree was replaced by another")
			}
			w.checkLine(tenant, []shred.Path{leaf(t, 1)}, nil)
		}
		return run, resume
	}
	for _, c := range []struct {
		what string
		b    breaker
	}{{"statement", sql}, {"KMS call", kms}, {"ledger operation", ledgers}} {
		t.Run(c.what, func(t *testing.T) { sweep(t, c.what, c.b, begin) })
	}
}

// firstTrees returns the distinct first trees that the ledgers hold.
func (w *world) firstTrees(tenant memd.TenantNo) []string {
	w.t.Helper()
	seen := make(map[string]bool)
	var found []string
	for _, l := range w.ledgers {
		data, err := l.Get(w.t.Context(), shred.LedgerName(tenant, 1))
		if err == nil && !seen[string(data)] {
			seen[string(data)] = true
			found = append(found, fmt.Sprintf("%x", data))
		}
	}
	return found
}
