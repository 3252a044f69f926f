package erasure_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/memdtest"
)

// pointing is a verifier that knows a row which must not be there.
type pointing struct {
	w  *world
	id uuid.UUID
}

func (p pointing) Draw(context.Context, memd.Examination) (memd.Probes, error) {
	return memd.Probes{Before: map[string]int64{"unique_probes": 1}}, nil
}

func (p pointing) Verify(context.Context, memd.Examination, memd.Probes) ([]memd.Check, error) {
	c := memd.Check{Name: "unique_probes", Result: memd.ResultPass, ControlBefore: 1}
	if c.CountAfter = int64(p.w.count(`SELECT count(*) FROM memd.memories WHERE memory_id = $1`, p.id)); c.CountAfter > 0 {
		c.Result, c.Reason, c.Rows = memd.ResultFail, "rows_left", []memd.RowRef{p.row()}
	}
	return []memd.Check{c}, nil
}

func (p pointing) row() memd.RowRef { return memd.RowRef{Table: "memories", ID: p.id.String()} }

// An erasure whose check names a copy under another user stops, however often it
// is tried. An operator has the copy removed, and nothing that is not named; then
// it goes on.
func TestCheck_AnOperatorRemovesWhatItNames(t *testing.T) {
	w := newWorld(t)
	other := w.Tenant("other", memdtest.Policy())
	ids := w.add(said("alice", "s1", "alice"), said("bob", "b1", "what alice said"), said("bob", "b1", "bob"))
	w.StopWorker()
	p := pointing{w, ids[1]}
	r := w.runner()
	r.Verifier = p
	j := w.accept(w.tenant, "alice", "")
	ctx := t.Context()
	for range 2 {
		if _, err := r.Run(ctx, j); err == nil || w.job(j).State != erasure.StateRunning {
			t.Fatalf("%v; %v although something is left", w.job(j).State, err)
		}
	}
	remove := func(c erasure.Caller, rows ...memd.RowRef) error {
		return w.a.Erasure.RemoveSurvivors(ctx, c, j.ID, rows)
	}
	wantInvalid(t, remove(w.caller(), p.row(), memd.RowRef{Table: "memories", ID: ids[2].String()}), "rows")
	if err := remove(erasure.Caller{Tenant: other.No}, p.row()); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("another tenant's: %v", err)
	}
	w.wants(user("bob"), "bob", "what alice said")
	for range 2 { // Twice is once.
		if err := remove(w.caller(), p.row()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Run(ctx, w.job(j)); err != nil || w.job(j).State != erasure.StateDone {
		t.Fatalf("%v, %v", w.job(j).State, err)
	}
	w.wants(user("bob"), "bob")
	if n := w.count(`SELECT count(*) FROM memd.survivors WHERE removed_at IS NOT NULL`); n != 1 {
		t.Errorf("%d removals are on record", n)
	}
}
