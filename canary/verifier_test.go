package canary_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/memory"
)

func TestVerifier_AnErasureDoneWell(t *testing.T) {
	s := setup(t)
	ids := s.add(said("mara", "s1", "My daughter has asthma, send the inhaler to 14 Tannery Lane."),
		said("mara", "s2", "The order was QX-4471 from Millbrook."), said("jonas", "j1", "I like plain weather."))
	s.add(memory.Row{Scope: memd.Scope{App: app}, Kind: memory.KindSummary, Text: "An order of Mara's is QX-4471.", Sources: []memory.Source{{MemoryID: ids[1]}}})
	x := s.accept("mara")
	x.whole()
	got := x.verify()
	if f := got.failed(); f != nil {
		t.Errorf("failed: %v\n%+v", f, got)
	}
	got.want(t, "rows_by_owner pass", "rows_by_contribution pass", "sessions pass", "subjects pass", "memory_contributions not_run nothing_before",
		"unique_probes pass", "fence pass", "derivation_refused pass", "ledger_state pass", "neighbour_derives pass",
		"old_epochs pass", "key_versions pass", "instances pass", "logs not_run not_configured", "residue review residue_left",
		"session_events not_run nothing_before", "artifacts not_run nothing_before")
	if c := got["unique_probes"]; c.ControlBefore < 5 || c.Unscanned != 0 {
		t.Errorf("unique_probes: %+v", c)
	}
	// Looking changes nothing, and lifting by policy is no fault.
	x.lift()
	s.exec(`UPDATE memd.erasures SET state = 3 WHERE request_id = $1`, x.request)
	x.verify().want(t, "fence pass", "unique_probes pass", "old_epochs pass")
}

func TestVerifier_CopyWithoutProvenance(t *testing.T) {
	s := setup(t)
	s.add(said("mara", "s1", "My daughter has asthma, send the inhaler to 14 Tannery Lane in Millbrook, order QX-4471."),
		said("jonas", "j1", "I was in Millbrook once."))
	x := s.accept("mara")
	before := s.texts("jonas")
	// A summary that an agent put into another user's scope without its sources:
	// no contribution leads to it.
	planted := s.add(said("jonas", "j2", "Deliveries: an inhaler goes to Tannery Lane, QX-4471."))[0]
	x.whole()
	got := x.verify()
	got.want(t, "unique_probes fail hits_elsewhere", "rows_by_contribution pass", "shared_probes review shared_hits")
	if want := []memd.RowRef{{Table: "memories", ID: planted.String()}}; !cmp.Equal(got["unique_probes"].Rows, want) {
		t.Errorf("named %v, want %v", got["unique_probes"].Rows, want)
	}
	if f := got.failed(); len(f) != 1 {
		t.Errorf("failed: %v", f)
	}
	// He who said the same word before loses nothing: his row is named, to be
	// looked at, and stays.
	if c := got["shared_probes"]; len(c.Rows) != 1 || c.CountAfter != 1 {
		t.Errorf("shared: %+v", c)
	}
	s.exec(`DELETE FROM memd.memories WHERE memory_id = $1`, planted)
	if after := s.texts("jonas"); !cmp.Equal(before, after) {
		t.Errorf("jonas has %q, and had %q", after, before)
	}
	x.verify().want(t, "unique_probes pass")
}

func TestVerifier_OrdinaryWordIsForReview(t *testing.T) {
	s := setup(t)
	s.add(said("mara", "s1", "My daughter wheezes."), said("jonas", "j1", "I like plain weather."))
	x := s.accept("mara")
	own := s.add(said("jonas", "j2", "My daughter paints."))[0]
	x.whole()
	got := x.verify()
	// Named, and no reason to hold up the erasure: Jonas has a daughter too.
	got.want(t, "unique_probes review hits_elsewhere")
	if want := []memd.RowRef{{Table: "memories", ID: own.String()}}; !cmp.Equal(got["unique_probes"].Rows, want) {
		t.Errorf("named %v, want %v", got["unique_probes"].Rows, want)
	}
}

// Many ordinary words together are no coincidence.
func TestVerifier_ManyWordsTogether(t *testing.T) {
	s := setup(t)
	s.add(said("mara", "s1", "My daughter wheezes at night and needs the inhaler in winter."), said("jonas", "j1", "I like plain weather."))
	x := s.accept("mara")
	planted := s.add(said("jonas", "j2", "The daughter wheezes in winter."))[0]
	x.whole()
	got := x.verify()
	got.want(t, "unique_probes fail hits_elsewhere")
	if want := []memd.RowRef{{Table: "memories", ID: planted.String()}}; !cmp.Equal(got["unique_probes"].Rows, want) {
		t.Errorf("named %v, want %v", got["unique_probes"].Rows, want)
	}
}

func TestVerifier_SealedCopy(t *testing.T) {
	s := setup(t)
	ids := s.add(said("mara", "s1", "My daughter has asthma."), said("jonas", "j1", "I like plain weather."))
	x := s.accept("mara")
	// By a superuser, past every trigger: the sealed bytes of Mara's row in one of
	// Jonas's. It opens with nobody's key.
	s.exec(`UPDATE memd.memories j SET sealed_metadata = m.sealed_text FROM memd.memories m WHERE j.memory_id = $1 AND m.memory_id = $2`, ids[1], ids[0])
	x.whole()
	got := x.verify()
	got.want(t, "unique_probes fail hits_elsewhere")
	if c := got["unique_probes"]; !slices.Contains(c.Rows, memd.RowRef{Table: "memories", ID: ids[1].String()}) || c.Unscanned != 1 {
		t.Errorf("unique_probes: %+v", c)
	}
}

func TestVerifier_VectorCopy(t *testing.T) {
	s := setup(t)
	mara, jonas := said("mara", "s1", "My daughter has asthma."), said("jonas", "j1", "I like plain weather.")
	mara.Vector, jonas.Vector = unit(0.6, 0.8), unit(1)
	s.add(mara, jonas)
	x := s.accept("mara")
	copied := said("jonas", "j2", "")
	copied.Vector = unit(0.6, 0.8)
	planted := s.add(copied)[0]
	x.whole()
	got := x.verify()
	got.want(t, "unique_probes pass", "vector_probes fail hits_elsewhere")
	if want := []memd.RowRef{{Table: "memories", ID: planted.String()}}; !cmp.Equal(got["vector_probes"].Rows, want) {
		t.Errorf("named %v, want %v", got["vector_probes"].Rows, want)
	}
}

// What anybody may say within the hour holds nothing up: a date, the number of a
// house, a phrase of ordinary words and so with the same vector.
func TestVerifier_WhatAnybodySays(t *testing.T) {
	s := setup(t)
	mara, jonas := said("mara", "s1", "Yes, that works. Come on 2026-12-24 at 10:30 to number 4471."), said("jonas", "j1", "I like plain weather.")
	mara.Vector, jonas.Vector = unit(0.6, 0.8), unit(1)
	s.add(mara, jonas)
	x := s.accept("mara")
	phrase := said("jonas", "j2", "Yes.")
	phrase.Vector = unit(0.6, 0.8)
	s.add(phrase, said("jonas", "j2", "We are closed on 2026-12-24."), said("jonas", "j2", "At 10:30 then."), said("jonas", "j2", "No. 4471 has it."))
	x.whole()
	got := x.verify()
	if f := got.failed(); f != nil {
		t.Errorf("failed: %v", f)
	}
	got.want(t, "unique_probes review hits_elsewhere", "vector_probes review hits_elsewhere")
	if n := len(got["unique_probes"].Rows); n != 3 {
		t.Errorf("%d rows are named", n)
	}
}

func TestVerifier_NobodyKnown(t *testing.T) {
	s := setup(t)
	s.add(said("jonas", "j1", "I like plain weather."))
	x := s.accept("nobody-at-all")
	for name, c := range x.verify() {
		if name != "fence" && name != "neighbour_derives" && c.Result != memd.ResultNotRun {
			t.Errorf("%s: %+v, with nothing to be checked", name, c)
		}
	}
}

func TestVerifier_WithoutControl(t *testing.T) {
	s := setup(t)
	s.add(said("mara", "s1", "My daughter has asthma."), said("jonas", "j1", "I like plain weather."))
	x := s.accept("mara")
	x.whole()
	x.p = memd.Probes{}
	for name, c := range x.verify() {
		if name != "fence" && c.Result != memd.ResultNotRun {
			t.Errorf("%s: %+v, without having looked before", name, c)
		}
	}
}

func TestVerifier_WhenTheJobIsOver(t *testing.T) {
	s := setup(t)
	s.add(said("mara", "s1", "My daughter has asthma."), said("jonas", "j1", "I like plain weather."))
	x := s.accept("mara")
	x.whole()
	x.punctureJob()
	x.rotate()
	got := x.verify()
	got.want(t, "unique_probes not_run no_probes", "rows_by_owner pass", "derivation_refused pass", "old_epochs pass", "instances pass")
}

// Who comes back may say again what they said before, and who forgets one
// session may in another: that holds nothing up, and is shown.
func TestVerifier_SaidAgain(t *testing.T) {
	s := setup(t)
	s.add(said("mara", "s1", "Send the inhaler to 14 Tannery Lane, order QX-4471."), said("jonas", "j1", "I like plain weather."))
	x := s.accept("mara")
	x.whole()
	x.lift()
	s.exec(`UPDATE memd.erasures SET state = 3 WHERE request_id = $1`, x.request)
	again := said("mara", "s2", "It is 14 Tannery Lane, order QX-4471.")
	again.SourceTime = memd.SystemClock{}.Now()
	id := s.add(again)[0]
	got := x.verify()
	if f := got.failed(); f != nil {
		t.Errorf("failed: %v", f)
	}
	got.want(t, "unique_probes review hits_elsewhere", "rows_by_owner pass")
	if want := []memd.RowRef{{Table: "memories", ID: id.String()}}; !cmp.Equal(got["unique_probes"].Rows, want) {
		t.Errorf("named %v, want %v", got["unique_probes"].Rows, want)
	}
}
