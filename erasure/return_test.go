package erasure_test

import (
	"slices"
	"testing"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/memory"
)

func at(row memory.Row, t time.Time) memory.Row {
	row.SourceTime = t
	return row
}

func TestForgetUser_WhoReturnsStartsEmpty(t *testing.T) {
	w := newWorld(t)
	event := said("alice", "s1", "with an event")
	event.EventID = "e1"
	old := w.add(said("alice", "s1", "alice"), event, contributed("alice", "s1", "alice shared"))
	before := time.Now()
	w.forgetUser("alice")

	// langgraph#7206: a write that was under way for long comes now. stella#671:
	// the same conversation is read again. Neither is let in by claiming to be new.
	w.refused(at(said("alice", "s1", "late"), spoken), memd.ErrErasedBefore)
	w.refused(at(said("alice", "s9", "late, in a session never seen"), before), memd.ErrErasedBefore)
	w.refused(at(said("alice", "", "late, outside"), before), memd.ErrErasedBefore)
	w.refused(at(contributed("alice", "s1", "late, shared"), before), memd.ErrErasedBefore)
	w.refused(at(event, before), memd.ErrErasedBefore)
	for _, row := range []memory.Row{said("alice", "s9", "x"), said("alice", "", "x"), contributed("alice", "s9", "x")} {
		w.refused(at(row, time.Time{}), memd.ErrSourceTimeRequired)
	}
	w.refused(drawn(memory.KindFact, user("bob"), "from a row that is gone", from(old[0])), memd.ErrSourceGone)
	w.wants(user("alice"))
	ref := w.Keys(w.a, w.tenant).UserRef(app, "alice")
	if n := w.count(`SELECT count(*) FROM memd.subjects WHERE user_ref = $1 AND retired_at IS NULL`, ref[:]); n != 0 {
		t.Error("a write that was refused left the user's sealed id in the directory again")
	}

	now := time.Now()
	w.add(at(said("alice", "s9", "back"), now), at(said("alice", "", "back, outside"), now), at(contributed("alice", "s9", "back, shared"), now))
	w.wants(user("alice"), "back", "back, outside")
	w.wants(shared, "back, shared")
	// The session's id is dead for good, whatever the time says.
	w.refused(at(said("alice", "s1", "old session"), time.Now()), memd.ErrSessionForgotten)
	w.refused(at(contributed("alice", "s1", "old session, shared"), time.Now()), memd.ErrSessionForgotten)
	w.refused(at(event, time.Now()), memd.ErrSessionForgotten)

	numbers := `SELECT subject_no::text FROM memd.subjects WHERE user_ref = $1 ORDER BY 1`
	if n := w.strings(numbers, ref[:]); len(n) != 2 || n[0] == n[1] {
		t.Errorf("numbers %q", n)
	}
	// Again: both lives are forgotten, and one more rotation punctures the new one.
	r := w.forgetUser("alice")
	if something(r.Stores)[0] != (erasure.StoreCount{Store: "memories", Before: 3}) || r.Key.Epoch != 3 {
		t.Errorf("second report %+v %+v", r.Stores, r.Key)
	}
	w.wants(user("alice"))
	w.wants(shared)
	w.refused(at(said("alice", "s9", "old session again"), time.Now()), memd.ErrSessionForgotten)
	w.add(at(said("alice", "s10", "third life"), time.Now()))
	w.wants(user("alice"), "third life")
	if n := w.strings(numbers, ref[:]); len(n) != 3 {
		t.Errorf("numbers %q", n)
	}
}

// A request that lifted its fence must not touch the user who has returned, even
// when a worker that stood still all the while goes on with it.
func TestRunner_OfARequestThatIsOverTouchesNobody(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"))
	w.StopWorker()
	j := w.accept(w.tenant, "alice", "")
	slow := w.runner()
	steps := slices.DeleteFunc(erasure.KindUser.Steps(), func(s erasure.Step) bool {
		return s == erasure.StepSweep || s == erasure.StepRecheck || s == erasure.StepFinal
	})
	if _, err := w.runner().Run(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	w.add(at(said("alice", "s2", "back"), time.Now()))
	journal := w.strings(`SELECT step::text || counts::text FROM memd.erasure_steps ORDER BY step`)
	for _, s := range steps {
		if err := erasure.RunStep(t.Context(), slow, j, s); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
	w.wants(user("alice"), "back")
	w.add(at(said("alice", "s2", "and more"), time.Now()))
	if n := w.count(`SELECT count(*) FROM memd.fences WHERE state <> 3`); n != 0 {
		t.Errorf("%d fences were raised by a request that is over", n)
	}
	if n := w.count(`SELECT count(*) FROM memd.punctures WHERE epoch IS NULL`); n != 0 {
		t.Errorf("%d keys of the living are to be punctured", n)
	}
	after := w.strings(`SELECT step::text || counts::text FROM memd.erasure_steps ORDER BY step`)
	if len(after) != len(steps) || after[0] != journal[0] || after[1] != journal[1] || after[2] != journal[2] {
		t.Errorf("journal was %q and is %q", journal, after)
	}
}

func TestForgetSession_DuringForgetUser(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "one"), said("alice", "s2", "two"), said("bob", "s1", "bob"))
	w.StopWorker()
	session := w.accept(w.tenant, "alice", "s1")
	all := w.accept(w.tenant, "alice", "")
	r := w.runner()
	// Each takes one step in turn, the session's deletion after the user's fence.
	if err := erasure.RunStep(t.Context(), r, all, erasure.StepFence); err != nil {
		t.Fatal(err)
	}
	for _, s := range []erasure.Step{erasure.StepBury, erasure.StepDelete, erasure.StepVerify, erasure.StepPuncture} {
		for _, j := range []erasure.Job{session, all} {
			if err := erasure.RunStep(t.Context(), r, j, s); err != nil {
				t.Fatalf("%s of %s: %v", s, j.Kind, err)
			}
		}
	}
	for _, j := range []erasure.Job{all, session} {
		if _, err := r.Run(t.Context(), j); err != nil {
			t.Fatalf("%s: %v", j.Kind, err)
		}
	}
	w.wants(user("alice"))
	w.wants(user("bob"), "bob")
	// The other way round: the session of somebody who is gone.
	again := w.accept(w.tenant, "alice", "s2")
	if _, err := r.Run(t.Context(), again); err != nil {
		t.Error(err)
	}
}
