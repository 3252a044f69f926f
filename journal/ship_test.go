package journal_test

import (
	"errors"
	"sync"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/fault"
	"forgettable.dev/memd/journal"
)

// A transaction that took its fact's number early and commits late is not
// skipped: its fact is shipped by the first Flush after its commit.
func TestFlush_ShipsWhatCommitsLate(t *testing.T) {
	w := newWorld(t)
	j := w.journal("memd_app")
	written, commit := make(chan struct{}), make(chan struct{})
	var late sync.WaitGroup
	late.Go(func() { w.bury(1, func() { close(written); <-commit }) })
	<-written
	w.bury(1, func() {})
	if err := j.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(commit)
	late.Wait()
	if err := j.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.whole()
}

// Several processes ship at once; what Flush has returned for is in the ledgers.
func TestFlush_ManyProcesses(t *testing.T) {
	w := newWorld(t)
	var work sync.WaitGroup
	for _, role := range []string{"memd_app", "memd_worker", "memd_app"} {
		j := w.journal(role)
		for range 3 {
			work.Go(func() {
				for range 8 {
					w.bury(1+len(role)%3, func() {})
					if err := j.Flush(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	work.Wait()
	w.whole()
}

// Invariant 5 for facts: broken off at any statement or ledger operation, the
// next Flush of anybody ends in a whole journal with every fact once.
func TestInvariant5_FlushCrashSweep(t *testing.T) {
	w := newWorld(t)
	clean := w.journal("memd_worker")
	for _, mode := range fault.Modes {
		points := map[string]int{}
		for k := 1; ; k++ {
			var f fault.Fuse
			c, end := w.fused(&f)
			j, err := journal.Open(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			w.bury(2, func() {})
			f.Arm(k, mode)
			flushed := j.Flush(t.Context())
			kind, blown := f.Blown()
			f.Disarm()
			j.Close()
			end()
			w.bury(1, func() {})
			if err := clean.Flush(t.Context()); err != nil {
				t.Fatalf("%s at %s %d: flushing after it: %v", mode, kind, k, err)
			}
			w.whole()
			if t.Failed() {
				t.Fatalf("%s at %s %d (%v)", mode, kind, k, flushed)
			}
			if !blown {
				break
			}
			points[kind]++
		}
		t.Logf("%s: broken off at %v", mode, points)
		if points[fault.Statement] < 4 || points[fault.Ledger] < 2 {
			t.Errorf("the sweep broke off at %v only", points)
		}
	}
}

// A record of somebody else's stops the shipping, and closes the gate.
func TestFlush_ForeignRecord(t *testing.T) {
	w := newWorld(t)
	j := w.journal("memd_app")
	other := newWorld(t)
	w.bury(1, func() {})
	other.bury(1, func() {})
	if err := other.journal("memd_app").Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	data, err := other.ledgers[0].Get(t.Context(), journal.RecordName(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.ledgers[0].Put(t.Context(), journal.RecordName(1), data); err != nil {
		t.Fatal(err)
	}
	if err := j.Flush(t.Context()); !errors.Is(err, memd.ErrRolledBack) {
		t.Errorf("shipping past a foreign record: %v", err)
	}
	if err := j.Err(); !errors.Is(err, memd.ErrRolledBack) {
		t.Errorf("the gate after it: %v", err)
	}
	if n := w.number(`SELECT count(*) FROM memd.ledger_outbox`); n != 1 {
		t.Errorf("%d facts wait", n)
	}
	if _, err := journal.Open(t.Context(), w.config("memd_worker")); !errors.Is(err, memd.ErrRolledBack) {
		t.Errorf("opening beside it: %v", err)
	}
}

// A ledger that is away costs the acknowledgement, and nothing else.
func TestFlush_LedgerAway(t *testing.T) {
	w := newWorld(t)
	var f fault.Fuse
	c := w.config("memd_app")
	c.Ledgers = fault.Ledgers(&f, w.ledgers)
	j, err := journal.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	w.bury(1, func() {})
	f.Arm(2, fault.StumbleBefore) // the second location
	if err := j.Flush(t.Context()); err == nil {
		t.Error("a fact that one ledger lacks was acknowledged")
	}
	f.Disarm()
	if err := j.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	w.whole()
}

// What is in a record names nobody, and can be checked by itself.
func TestParseRecord_Malformed(t *testing.T) {
	w := newWorld(t)
	w.bury(2, func() {})
	if err := w.journal("memd_app").Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	data, err := w.ledgers[1].Get(t.Context(), journal.RecordName(1))
	if err != nil {
		t.Fatal(err)
	}
	for i := range data {
		broken := append([]byte{}, data...)
		broken[i] ^= 1
		if _, err := journal.ParseRecord(broken); !errors.Is(err, memd.ErrCorrupt) {
			t.Fatalf("byte %d changed: %v", i, err)
		}
		if _, err := journal.ParseRecord(data[:i]); !errors.Is(err, memd.ErrCorrupt) {
			t.Fatalf("%d bytes of it: %v", i, err)
		}
	}
}
