package shred_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/fault"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// With MEMD_ATTACK set, as make attack does, an undo is broken off at every point,
// otherwise at every undoStride-th, each mode beginning at another one.
const (
	attackVariable = "MEMD_ATTACK"
	undoStride     = 41
)

// fusedRestorer is an operator's identity whose calls are broken off as well.
type fusedRestorer struct {
	fuse *fault.Fuse
	to   shred.Restorer
}

// Restore implements shred.Restorer.
func (r fusedRestorer) Restore(ctx context.Context, version string) (v shred.Version, err error) {
	err = fault.Call(r.fuse, fault.KMSCall, func() (err error) {
		v, err = r.to.Restore(ctx, version)
		return err
	})
	return v, err
}

// Invariant 5 of an undo: killed after any statement, KMS call or ledger operation and
// begun again, it ends in the same state: the keys of the wrong one are there, those of
// the right ones are not, neighbours never lost theirs, and one version is usable.
func TestInvariant5_UndoCrashSweep(t *testing.T) {
	w := newWorld(t)
	for i, mode := range fault.Modes {
		step, k := 1, 1
		if os.Getenv(attackVariable) == "" {
			step, k = undoStride, 1+i*undoStride/len(fault.Modes)
		}
		at := map[string]int{}
		for ; ; k += step {
			kind, blown := w.breakUndo(k, mode)
			if t.Failed() {
				t.Fatalf("first failure: %s %d, a %s", mode, k, kind)
			}
			if !blown {
				break
			}
			at[kind]++
		}
		t.Logf("%s: broke off at %v; point %d is not reached", mode, at, k)
	}
}

// breakUndo breaks an undo off at its k-th effect, and resumes it.
func (w *world) breakUndo(k int, mode fault.Mode) (kind string, blown bool) {
	w.t.Helper()
	tenant, wrong := w.tenant(), uuid.New()
	w.punctureFor(wrong, tenant, subject(w.t, 2))
	w.punctureFor(uuid.New(), tenant, subject(w.t, 1))
	w.rotate(w.rotator(), tenant)
	w.approved(tenant, wrong)
	fuse := &fault.Fuse{}
	err := w.undoBehind(fuse, k, mode, tenant, wrong)
	if kind, blown = fuse.Blown(); !blown && err != nil {
		w.t.Fatalf("point %d was not reached, and yet: %v", k, err)
	}
	clean := w.rotator(func(c *shred.RotatorConfig) { c.Pool = w.owner() })
	if _, err := clean.Undo(w.t.Context(), tenant, wrong, w.restorer()); err != nil {
		w.t.Errorf("resuming: %v", err)
	}
	w.checkLine(tenant, []shred.Path{leaf(w.t, 2), leaf(w.t, 5)}, []shred.Path{subject(w.t, 1)})
	return kind, blown
}

// undoBehind runs an undo behind a fuse: once, or, after a stumble, again and again.
func (w *world) undoBehind(fuse *fault.Fuse, k int, mode fault.Mode, tenant memd.TenantNo, request uuid.UUID) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	wire, err := fault.OpenWire(fuse, w.db.URL(""))
	if err != nil {
		return err
	}
	defer wire.Close()
	pool, err := pg.Open(ctx, pg.Config{URL: wire.URL, MaxConns: 4})
	if err != nil {
		return err
	}
	defer pool.Close()
	r := w.rotator(func(c *shred.RotatorConfig) {
		c.Pool, c.Worker, c.Shredder = pool, fault.KMS(fuse, w.worker), fault.KMS(fuse, w.shredder)
		c.Ledgers = fault.Ledgers(fuse, w.ledgers)
	})
	fuse.Arm(k, mode)
	restorer := fusedRestorer{fuse, w.restorer()}
	_, err = r.Undo(ctx, tenant, request, restorer)
	for tries := 0; err != nil && tries < 5 && (mode == fault.StumbleBefore || mode == fault.StumbleAfter); tries++ {
		_, err = r.Undo(ctx, tenant, request, restorer)
	}
	return err
}
