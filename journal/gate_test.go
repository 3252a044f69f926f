package journal_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/journal"
	"forgettable.dev/memd/shred/ledger"
)

// One location that was lost is told, closes nothing, and is mirrored.
func TestRepair_OneLocationLost(t *testing.T) {
	w := newWorld(t)
	j := w.journal("memd_app")
	for range 3 {
		w.bury(1, func() {})
		if err := j.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	j.Close()
	w.ledgers = w.open(t.TempDir(), w.dirs[1]) // the first, which decides
	again := w.journal("memd_app")
	w.bury(1, func() {})
	if err := again.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	in, err := journal.Verify(t.Context(), w.ledgers)
	if err != nil || len(in.Problems) == 0 || in.Locations[0].Missing != 4 {
		t.Errorf("before: %+v, %v", in, err)
	}
	n, err := journal.Repair(t.Context(), w.ledgers)
	if err != nil || n != 4 {
		t.Errorf("mirrored %d, %v", n, err)
	}
	w.whole()
}

// Whatever is damaged in one location is told with the location, be it a record, a
// key tree or a receipt, and the others' is what the chain is followed by.
func TestVerify_NamesTheDamaged(t *testing.T) {
	w := newWorld(t)
	j := w.journal("memd_app")
	for range 2 {
		w.bury(1, func() {})
		if err := j.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{journal.RecordName(1), "receipts/1/0000000000000000", "trees/1/00000000000000000001"}
	for _, name := range names[1:] {
		if err := ledger.Mirror(w.ledgers).Put(t.Context(), name, []byte("sealed")); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		file := filepath.Join(w.dirs[0], filepath.FromSlash(name))
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)-1] ^= 1
		if err := errors.Join(os.Remove(file), os.WriteFile(file, data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	in, err := journal.Verify(t.Context(), w.ledgers)
	if err != nil || len(in.Problems) != len(names) || in.Last != 2 {
		t.Fatalf("%+v, %v", in, err)
	}
	for i, name := range names {
		if !strings.HasPrefix(in.Problems[i], "ledger 1: "+name+":") {
			t.Errorf("%s is not told: %s", name, in.Problems[i])
		}
	}
}

// All locations lost: nothing opens until the operator has them rebuilt, and no
// generation is given out twice afterwards.
func TestRebuild_AllLost(t *testing.T) {
	w := newWorld(t)
	j := w.journal("memd_app")
	w.bury(3, func() {})
	if err := j.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.ledgers = w.open(t.TempDir(), t.TempDir())
	_, err := journal.Open(t.Context(), w.config("memd_app"))
	if !errors.Is(err, memd.ErrRolledBack) || !strings.Contains(err.Error(), "memd ledger rebuild") {
		t.Fatalf("opening without a ledger: %v", err)
	}
	c := w.config("")
	c.Rebuilding = true
	r, err := journal.For(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	n, err := r.Rebuild(t.Context(), func(context.Context, pg.DB) error { return nil })
	if err != nil || n < 3 {
		t.Fatalf("rebuilt %d facts, %v", n, err)
	}
	if _, err := r.Rebuild(t.Context(), func(context.Context, pg.DB) error { return nil }); !errors.Is(err, memd.ErrExists) {
		t.Errorf("rebuilding what is there: %v", err)
	}
	w.journal("memd_app")
	in, err := journal.Verify(t.Context(), w.ledgers)
	if err != nil || len(in.Problems) > 0 || in.Generation != 1 {
		t.Errorf("%+v, %v", in, err)
	}
}

// The database of one installation and the ledger of another.
func TestOpen_OtherInstallation(t *testing.T) {
	a, b := newWorld(t), newWorld(t)
	for _, w := range []*world{a, b} {
		w.bury(1, func() {})
		if err := w.journal("memd_app").Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	b.ledgers = a.ledgers
	if _, err := journal.Open(t.Context(), b.config("memd_app")); !errors.Is(err, memd.ErrRolledBack) {
		t.Errorf("opening with another's ledger: %v", err)
	}
}

// Every copy and rollback has a generation that none had before, also one that
// crossed no fact, and one back to before another.
func TestOpen_NoGenerationTwice(t *testing.T) {
	w := newWorld(t)
	w.journal("memd_app").Close()
	first := w.db.Snapshot()
	var given []int
	for range 3 {
		w.db.Rollback(first)
		w.owner = w.db.Pool("")
		w.journal("memd_app").Close()
		given = append(given, w.number(`SELECT generation FROM memd.installation`))
	}
	if !slices.Equal(given, []int{2, 3, 4}) {
		t.Errorf("generations %v", given)
	}
}

// The gate's own cost at a start, with ten thousand tenants.
func TestOpen_Cost(t *testing.T) {
	w := newWorld(t)
	err := w.owner.With(t.Context(), func(db pg.DB) error {
		_, err := db.Exec(t.Context(), `INSERT INTO memd.tenants (name, state, policy, created_at, updated_at)
			SELECT 't' || n, 1, '{}', now(), now() FROM generate_series(1, 10000) n`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	j := w.journal("memd_worker")
	if err := j.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	best := time.Hour
	for range 5 {
		began := time.Now()
		if _, err := j.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		best = min(best, time.Since(began))
	}
	names, _ := filepath.Glob(filepath.Join(w.dirs[0], "journal", "*"))
	size := int64(0)
	for _, n := range names {
		if info, err := os.Stat(n); err == nil {
			size += info.Size()
		}
	}
	t.Logf("a check took %v; %s", best, fmt.Sprintf("%d records of %d kB", len(names), size/1000))
	if best > 50*time.Millisecond {
		t.Errorf("a check took %v", best)
	}
}
