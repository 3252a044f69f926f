package receipts_test

import (
	"errors"
	"slices"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/receipts"
)

// Every pair of heads of one log is consistent; no head of another log is.
func TestConsistency(t *testing.T) {
	w := newWorld(t)
	i := w.issuer()
	for n := range 9 {
		w.issue(i, 7, provisional(id(byte(n+1))))
		w.issue(i, 8, provisional(id(byte(n+11))))
	}
	heads, others := checkpoints(t, w.keys(), w.check(7, 9)...), checkpoints(t, w.keys(), w.check(8, 9)...)
	prove := func(from, to uint64) (c receipts.Consistency, err error) {
		err = w.db.Pool("memd_app").With(t.Context(), func(db pg.DB) (err error) {
			c, err = receipts.ProveConsistency(t.Context(), db, 7, from, to)
			return err
		})
		return c, err
	}
	for from := range heads {
		for to := from; to < len(heads); to++ {
			c, err := prove(heads[from].Size, heads[to].Size)
			if err != nil {
				t.Fatal(err)
			}
			file, err := c.Encode()
			if err != nil {
				t.Fatal(err)
			}
			again, err := receipts.ParseConsistency(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(again.Verify(heads[from], heads[to]), again.Verify(heads[to], heads[from])); err != nil {
				t.Fatalf("from %d to %d: %v", from+1, to+1, err)
			}
			rewritten := others[from]
			rewritten.Origin = heads[from].Origin
			for name, err := range map[string]error{
				"another log's": c.Verify(others[from], heads[to]), "a rewritten log's": c.Verify(rewritten, heads[to]),
			} {
				if !errors.Is(err, memd.ErrCorrupt) {
					t.Errorf("%s, from %d to %d: %v", name, from+1, to+1, err)
				}
			}
			for n := range c.Proof {
				changed := c
				changed.Proof = slices.Clone(c.Proof)
				changed.Proof[n][5] ^= 1
				if err := changed.Verify(heads[from], heads[to]); !errors.Is(err, memd.ErrCorrupt) {
					t.Errorf("changed hash %d, from %d to %d: %v", n, from+1, to+1, err)
				}
			}
		}
	}
	if c, err := prove(0, 9); err != nil || len(c.Proof) != 0 {
		t.Errorf("from nothing: %v", err)
	}
	if _, err := prove(2, 10); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("beyond the end: %v", err)
	}
	if _, err := prove(3, 2); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("backwards: %v", err)
	}
	if _, err := receipts.ParseConsistency([]byte(`{"format":"memd-receipt-consistency/v1","from":1, "proof":[],"to":1}`)); !errors.Is(err, memd.ErrCorrupt) {
		t.Errorf("with a space: %v", err)
	}
}
