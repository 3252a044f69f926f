package erasure_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd/compact"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/tenants"
)

// eager is a policy whose sweep follows at once.
func eager(c tenants.CompactionMode) tenants.Policy {
	p := memdtest.Policy()
	p.IngestionDelay, p.Compaction = 0, c
	return p
}

// compactedReceipts forgets a user of a database in which a statement was run before,
// and returns both receipts.
func compactedReceipts(t *testing.T, before string, mode tenants.CompactionMode, options ...memdtest.Option) map[receipts.Stage]receipts.Receipt {
	t.Helper()
	w := newWorld(t, append(options, memdtest.WithWitness())...)
	w.exec(`CREATE EXTENSION IF NOT EXISTS pageinspect SCHEMA pg_catalog`)
	w.exec(`ALTER TABLE memd.memories SET (autovacuum_enabled = off)`) // It may come between.
	if before != "" {
		w.exec(before)
	}
	tenant := w.Tenant("globex", eager(mode))
	for i := range 20 {
		w.addTo(tenant, said("mara", "m1", fmt.Sprintf("Orders %d are for Tannery Lane", i)), said("jonas", "j1", fmt.Sprintf("Tea %d", i)))
	}
	id := uuid.New()
	r, err := w.a.Erasure.ForgetUser(t.Context(), erasure.Caller{Tenant: tenant.No, Epoch: tenant.Epoch}, app, "mara", id)
	if err != nil || r.State != erasure.StateDone {
		t.Fatalf("%v, %v", r.State, err)
	}
	w.within(time.Minute, "the erasure is final", func() bool {
		return w.job(erasure.Job{Tenant: tenant.No, ID: id}).State == erasure.StateFinal
	})
	out := map[receipts.Stage]receipts.Receipt{}
	for _, text := range w.strings(`SELECT convert_from(bundle, 'UTF8') FROM memd.receipts WHERE request_id = $1`, id) {
		b, err := receipts.ParseBundle([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		rec := b.Entry.Receipt
		out[rec.Stage] = rec
	}
	if len(out) != 2 {
		t.Fatalf("%d receipts", len(out))
	}
	return out
}

func residue(r receipts.Receipt) receipts.Check {
	for _, c := range r.Checks {
		if c.Name == "residue" {
			return c
		}
	}
	return receipts.Check{}
}

func sealedPages(r receipts.Receipt) *receipts.Residual {
	for _, x := range r.Residuals {
		if x.Kind == receipts.ResidualPages {
			return &x
		}
	}
	return nil
}

func omitted(r receipts.Receipt) receipts.Reason {
	for _, n := range r.NotRun {
		if n.What == string(receipts.OmittedCompaction) {
			return n.Reason
		}
	}
	return ""
}

// After the deletion sealed values are in raw pages, and the receipt says how many;
// after a rewrite there are none.
func TestCompaction_RewriteLeavesNothing(t *testing.T) {
	got := compactedReceipts(t, "", tenants.CompactionRewrite, memdtest.WithCompaction())
	first, last := got[receipts.Provisional], got[receipts.Final]
	if c := residue(first); c.Count == 0 || omitted(first) != "pending" || first.Compaction != nil || sealedPages(first) == nil || sealedPages(first).Count != c.Count {
		t.Errorf("before: %+v, %q, %+v", c, omitted(first), sealedPages(first))
	}
	c := last.Compaction
	if c == nil || c.Mode != receipts.Rewritten || c.BlockedMicros == 0 || c.Tables < 20 || c.ResidueAfter == nil || *c.ResidueAfter != 0 ||
		c.ResidueBefore == nil || *c.ResidueBefore != residue(first).Count {
		t.Errorf("the compaction: %+v", c)
	}
	if k := residue(last); k.Result != receipts.Pass || k.ControlBefore == 0 || sealedPages(last) != nil || omitted(last) != "" {
		t.Errorf("after: %+v, %+v, %q", k, sealedPages(last), omitted(last))
	}
}

// After a vacuum some may be left: then the receipt says how many.
func TestCompaction_VacuumTellsTheNumber(t *testing.T) {
	got := compactedReceipts(t, "", tenants.CompactionVacuum, memdtest.WithCompaction())
	last := got[receipts.Final]
	if residue(got[receipts.Provisional]).Count == 0 {
		t.Error("nothing was left before")
	}
	c, k := last.Compaction, residue(last)
	if c == nil || c.Mode != receipts.Vacuumed || c.BlockedMicros != 0 || c.ResidueAfter == nil || *c.ResidueAfter != k.Count {
		t.Errorf("%+v, %+v", c, k)
	}
	if left := sealedPages(last); k.Count > 0 && (left == nil || left.Count != k.Count) || k.Count == 0 && left != nil {
		t.Errorf("%d are left, and the receipt says %+v", k.Count, left)
	}
	t.Logf("%d of %d sealed values are left after a vacuum", k.Count, residue(got[receipts.Provisional]).Count)
}

// Where nobody compacts, or what was tried failed, an erasure becomes final all the
// same, and says so.
func TestCompaction_NotRunIsTold(t *testing.T) {
	got := compactedReceipts(t, "", tenants.CompactionVacuum)
	if last := got[receipts.Final]; last.Compaction != nil || omitted(last) != "not_configured" || sealedPages(last) == nil || sealedPages(last).Count == 0 {
		t.Errorf("%+v, %q, %+v", last.Compaction, omitted(last), sealedPages(last))
	}
	got = compactedReceipts(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I OWNER TO %I', current_database(), current_user); END $$`,
		tenants.CompactionVacuum, memdtest.WithCompaction())
	if last := got[receipts.Final]; last.Compaction != nil || omitted(last) != "no_permission" {
		t.Errorf("%+v, %q", last.Compaction, omitted(last))
	}
}

// Every failure of a compaction is a word that a receipt may hold.
func TestCompaction_FailuresAreWordsOfReceipts(t *testing.T) {
	for _, f := range []compact.Failure{
		compact.NoRight, compact.Notice, compact.Locked, compact.HeldBack, compact.NoHeadroom, compact.HeadroomUnknown, compact.DiskFull,
		compact.NotRewritten, compact.Refused,
	} {
		if word := erasure.CompactionReason(f); !receipts.KnownReason(word) {
			t.Errorf("%s is %q, which is no word of receipts", f, word)
		}
	}
}
