package erasure_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/memory"
)

func (w *world) hold(userID, sessionID string) (uuid.UUID, []erasure.Job) {
	w.t.Helper()
	id, scope := uuid.New(), app
	if userID == "" {
		scope = ""
	}
	c := w.caller()
	c.KeyID = uuid.New()
	h, paused, err := w.a.Erasure.Hold(w.t.Context(), c, id, scope, userID, sessionID, "case-canary 17/2026")
	if err != nil {
		w.t.Fatal(err)
	}
	if !h.InForce() || h.Reason != "case-canary 17/2026" || h.Author != c.KeyID {
		w.t.Errorf("hold %+v", h)
	}
	return id, paused
}

func (w *world) release(id uuid.UUID) {
	w.t.Helper()
	h, err := w.b.Erasure.ReleaseHold(w.t.Context(), w.caller(), id)
	if err != nil || h.InForce() {
		w.t.Fatalf("releasing: %+v, %v", h, err)
	}
}

// Accepted under a hold, an erasure fences nobody and waits, visibly. Released,
// it goes on at once.
func TestHold_BeforeAcceptance(t *testing.T) {
	for name, covered := range map[string][2]string{"user": {"alice", ""}, "session": {"alice", "s1"}, "tenant": {"", ""}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
			hold, paused := w.hold(covered[0], covered[1])
			if len(paused) != 0 {
				t.Errorf("%d erasures are paused before there is any", len(paused))
			}
			j := w.accept(w.tenant, "alice", "")
			if !j.Held {
				t.Error("accepted and not held")
			}
			w.within(10*time.Second, "the worker has looked", func() bool {
				return w.count(`SELECT count(*) FROM memd_jobs.river_job WHERE state IN ('scheduled', 'available') AND metadata ? 'snoozes'`) == 1
			})
			w.wants(user("alice"), "alice")
			w.add(said("alice", "s1", "goes on"))
			if n := w.count(`SELECT (SELECT count(*) FROM memd.fences) + (SELECT count(*) FROM memd.erasure_steps)`); n != 0 {
				t.Errorf("%d fences and steps under a hold", n)
			}
			if covered[0] != "" { // Bob is nobody's business.
				w.forgetUser("bob")
			}
			w.release(hold)
			w.state(j, erasure.StateDone)
			w.wants(user("alice"))
			if n := w.count(`SELECT count(*) FROM memd.memories m JOIN memd.subjects s USING (tenant_no) WHERE s.subject_no = m.owner_no AND s.retired_at IS NOT NULL`); n != 0 {
				t.Errorf("%d rows of the forgotten", n)
			}
		})
	}
}

// A hold that is set while an erasure is under way stops it between two steps,
// at each of them, and never inside one.
func TestHold_BetweenSteps(t *testing.T) {
	w := newWorld(t)
	w.StopWorker()
	r := w.runner()
	for i, stop := range []erasure.Step{erasure.StepFence, erasure.StepDelete, erasure.StepPuncture, erasure.StepRotate} {
		name := "alice" + string(rune('a'+i))
		w.add(said(name, "s1", "words"))
		j := w.accept(w.tenant, name, "")
		for _, s := range erasure.KindUser.Steps() {
			if err := erasure.RunStep(t.Context(), r, j, s); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
			if s == stop {
				break
			}
		}
		hold, paused := w.hold(name, "")
		if len(paused) != 1 || paused[0].ID != j.ID {
			t.Errorf("paused %+v", paused)
		}
		steps := `SELECT concat(step, done) FROM memd.erasure_steps WHERE request_id = $1 ORDER BY 1`
		before := strings.Join(w.strings(steps, j.ID), " ")
		p, err := r.Run(t.Context(), w.job(j))
		if err != nil || p.Wait == 0 || p.Over || p.Done {
			t.Errorf("under a hold after %s: %+v, %v", stop, p, err)
		}
		if after := strings.Join(w.strings(steps, j.ID), " "); after != before || strings.Contains(after, "f") {
			t.Errorf("held after %s: journal was %s and is %s", stop, before, after)
		}
		w.release(hold)
		if _, err := r.Run(t.Context(), w.job(j)); err != nil || w.job(j).State != erasure.StateDone {
			t.Errorf("released after %s: %v in %v", stop, err, w.job(j).State)
		}
	}
}

// The reason of a hold is at rest sealed, and goes with whom it is about.
func TestHold_ReasonIsSealedAndGoes(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"))
	hold, _ := w.hold("alice", "")
	if rows := w.strings(`SELECT h::text FROM memd.holds h`); len(rows) != 1 || strings.Contains(rows[0], "canary") {
		t.Errorf("at rest: %q", rows)
	}
	c := w.caller()
	if _, _, err := w.a.Erasure.Hold(t.Context(), c, hold, app, "bob", "", "another"); !errors.Is(err, memd.ErrRequestReused) {
		t.Errorf("the id of another hold: %v", err)
	}
	if _, err := w.a.Erasure.ReleaseHold(t.Context(), c, uuid.New()); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("releasing none: %v", err)
	}
	w.release(hold)
	w.release(hold)
	w.forgetUser("alice")
	all, err := w.a.Erasure.Holds(t.Context(), c, true)
	if err != nil || len(all) != 1 || all[0].Reason != "" {
		t.Errorf("%+v, %v", all, err)
	}
	if in, err := w.a.Erasure.Holds(t.Context(), c, false); err != nil || len(in) != 0 {
		t.Errorf("in force: %+v, %v", in, err)
	}
}

// A dry run counts exactly, and changes nothing: the tables are the same to the
// last bit.
func TestDryRun_ChangesNothing(t *testing.T) {
	w := newWorld(t)
	a := w.add(said("alice", "s1", "one"), said("alice", "s2", "two"), contributed("alice", "s1", "shared"), said("bob", "b1", "bob"))
	w.add(drawn(memory.KindFact, user("bob"), "about both", from(a[0]), from(a[3])))
	w.StopWorker()
	if err := w.a.Flush(t.Context()); err != nil { // What was added made facts, which leave the tables.
		t.Fatal(err)
	}
	const tables = `SELECT string_agg(t, E'\n') FROM (SELECT c.relname || ' ' || md5(coalesce(
		(xpath('/table/row/x/text()', query_to_xml(format('SELECT md5(string_agg(r::text, '','' ORDER BY r::text)) AS x FROM %s r', c.oid::regclass), false, false, '')))[1]::text, '')) AS t
		FROM pg_class c WHERE c.relkind IN ('r', 'p') AND c.relnamespace IN ('memd'::regnamespace, 'memd_jobs'::regnamespace)
		AND c.relname NOT LIKE 'instance%' AND c.relname NOT LIKE 'river_%leader' AND c.relname NOT LIKE 'river_queue' ORDER BY c.relname) s`
	before := w.strings(tables)
	c := w.caller()
	all, err := w.a.Erasure.DryRun(t.Context(), c, erasure.KindUser, app, "alice", "")
	if err != nil || all.Counts["memories"] != 4 || all.Counts["memories_derived"] != 1 || all.Sessions != 2 || all.Held {
		t.Errorf("alice: %+v, %v", all, err)
	}
	one, err := w.a.Erasure.DryRun(t.Context(), c, erasure.KindSession, app, "alice", "s1")
	if err != nil || one.Counts["memories"] != 3 || one.Sessions != 1 {
		t.Errorf("s1: %+v, %v", one, err)
	}
	tenant, err := w.a.Erasure.DryRunTenant(t.Context(), "acme")
	if err != nil || tenant.Counts["memories"] != 5 || tenant.Subjects != 3 || tenant.DisplayName != "acme" {
		t.Errorf("the tenant: %+v, %v", tenant, err)
	}
	nobody, err := w.a.Erasure.DryRun(t.Context(), c, erasure.KindUser, app, "nobody", "")
	if err != nil || nobody.Counts["memories"] != 0 {
		t.Errorf("nobody: %+v, %v", nobody, err)
	}
	if _, err := w.a.Erasure.DryRun(t.Context(), c, erasure.KindUser, app, "*", ""); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("a wildcard: %v", err)
	}
	after := w.strings(tables)
	if before[0] != after[0] || len(before[0]) < 500 {
		t.Errorf("tables were\n%s\nand are\n%s", before[0], after[0])
	}
	w.StartWorker()
	r := w.forgetUser("alice")
	for _, s := range r.Stores {
		if s.Store != "sessions" && all.Counts[s.Store] != s.Before {
			t.Errorf("%s: the dry run counted %d and the erasure %d", s.Store, all.Counts[s.Store], s.Before)
		}
	}
}

// A watcher on one replica is told every step, in order and once, whoever does
// it, and from the beginning however late it comes; it ends with the erasure.
func TestWatch_TellsEveryStep(t *testing.T) {
	w := newWorld(t)
	soon := w.Tenant("soon", delayed(0))
	w.addTo(soon, said("alice", "s1", "alice"))
	w.StopWorker()
	j := w.accept(soon, "alice", "")
	c := erasure.Caller{Tenant: soon.No}
	watch := func(early bool) {
		w.t.Helper()
		var done []erasure.Step
		var states []erasure.State
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		err := w.b.Erasure.Watch(ctx, c, j.ID, false, nil, func(e erasure.Event) error {
			switch {
			case e.Step == erasure.StepUnknown:
				states = append(states, e.Job.State)
			case e.Done:
				done = append(done, e.Step)
			}
			if early && e.Job.State == erasure.StateAccepted && e.Step == erasure.StepUnknown {
				w.StartWorker()
			}
			return nil
		})
		want := erasure.KindUser.Steps()
		if err != nil || len(done) != len(want) {
			t.Fatalf("%v; done %v; states %v", err, done, states)
		}
		for i := range want {
			if done[i] != want[i] {
				t.Errorf("step %d is %v, want %v", i, done[i], want[i])
			}
		}
		if states[len(states)-1] != erasure.StateFinal {
			t.Errorf("states %v", states)
		}
	}
	watch(true)
	watch(false)
	if err := w.b.Erasure.Watch(t.Context(), c, uuid.New(), false, nil, nil); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("of none: %v", err)
	}
	if err := w.b.Erasure.Watch(t.Context(), w.caller(), j.ID, false, nil, nil); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("of another tenant's: %v", err)
	}
}

// A process that ends lets its watchers go without an error.
func TestWatch_EndsWithTheProcess(t *testing.T) {
	w := newWorld(t)
	w.StopWorker()
	j := w.accept(w.tenant, "alice", "")
	closing := make(chan struct{})
	w.a.Erasure.Closing = closing
	err := w.a.Erasure.Watch(t.Context(), w.caller(), j.ID, false, nil, func(erasure.Event) error { close(closing); return nil })
	if err != nil {
		t.Error(err)
	}
}

// A row whose time passes during a hold is not returned, stays where it is, and is
// swept when the hold is released: of whoever the hold covers, by owner, contribution
// and session, and of nobody else.
func TestHold_KeepsWhatExpires(t *testing.T) {
	for name, c := range map[string]struct {
		user, session string
		kept          int
	}{"user": {"alice", "", 4}, "session": {"alice", "s1", 3}, "tenant": {"", "", 5}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.StopWorker() // Whose sweep is run here by hand.
			expiring := func(r memory.Row) memory.Row {
				r.ExpiresAt = time.Now().Add(time.Hour)
				return r
			}
			a := w.add(expiring(said("alice", "s1", "one")), expiring(said("alice", "s2", "two")), expiring(contributed("alice", "s1", "shared")),
				expiring(said("bob", "b1", "bob")))
			w.add(expiring(drawn(memory.KindFact, user("bob"), "bob on alice", from(a[0]), from(a[3]))))
			hold, _ := w.hold(c.user, c.session)
			swept := func() int {
				err := w.DB.Pool(node.WorkerRole).InTx(t.Context(), func(tx pgx.Tx) error {
					_, err := memory.SweepExpired(t.Context(), tx, dayLater{}.Now(), 100)
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				return w.count(`SELECT count(*) FROM memd.memories`)
			}
			if n := swept(); n != c.kept {
				t.Errorf("%d rows are left, %d are held", n, c.kept)
			}
			later, _ := w.ServerWith(func(c *node.ServerConfig) { c.Clock = dayLater{} })
			for _, scope := range []memd.Scope{user("alice"), user("bob"), shared} {
				res, err := later.Memory.Search(t.Context(), w.tenant, memory.Query{Scope: scope, Vector: vector(), TopK: 10})
				if err != nil || len(res.Hits) != 0 {
					t.Errorf("%+v: %d rows whose time has passed, %v", scope, len(res.Hits), err)
				}
			}
			w.release(hold)
			if n := swept(); n != 0 {
				t.Errorf("%d rows are left after the release", n)
			}
		})
	}
}
