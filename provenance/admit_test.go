package provenance_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
)

func TestAdmit_NumbersAreDense(t *testing.T) {
	b := setup(t)
	got := b.mustAdmit(b.a,
		want("ada", ""), want("ada", "s1"), want("bob", "s1"), want("ada", "s2"), want("ada", "s1"),
		provenance.Want{Scope: memd.Scope{App: "app"}}, provenance.Want{Scope: memd.Scope{App: "other", UserID: "ada"}})
	// Sessions are numbered by a batch in no particular order.
	ada := got[0].Subject
	sessions := map[memd.Number]bool{got[1].Session: true, got[3].Session: true}
	if !sessions[b.number(1, 2)] || !sessions[b.number(1, 3)] {
		t.Errorf("sessions of the first: %v and %v", got[1].Session, got[3].Session)
	}
	expected := []memd.Contribution{
		{Subject: b.number(1, 1), Session: memd.OwnScope}, {Subject: ada, Session: got[1].Session},
		{Subject: b.number(1, 2), Session: b.number(1, 2)}, {Subject: ada, Session: got[3].Session}, {Subject: ada, Session: got[1].Session},
		{Subject: b.number(1, 3), Session: memd.OwnScope}, {Subject: b.number(1, 4), Session: memd.OwnScope},
	}
	if diff := cmp.Diff(expected, got); diff != "" {
		t.Errorf("numbers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(got[:4], b.mustAdmit(b.b, want("ada", ""), want("ada", "s1"), want("bob", "s1"), want("ada", "s2"))); diff != "" {
		t.Errorf("another process (-want +got):\n%s", diff)
	}
	for n := range int64(5) {
		if got := b.mustAdmit(b.a, want(random(), "s"))[0]; got.Subject != b.number(1, 5+n) || got.Session != b.number(1, 2) {
			t.Errorf("the next is %v, %v", got.Subject, got.Session)
		}
	}
}

// TestAdmit_Concurrently has 64 writers on two replicas meet the same users
// and sessions for the first time, all at once.
func TestAdmit_Concurrently(t *testing.T) {
	b := setup(t)
	const writers, users, sessions = 64, 5, 4
	var wants []provenance.Want
	for u := range users {
		wants = append(wants, want(fmt.Sprint("u", u), ""))
		for s := range sessions {
			wants = append(wants, want(fmt.Sprint("u", u), fmt.Sprint("s", s)))
		}
	}
	start := make(chan struct{})
	answers := make([][]memd.Contribution, writers)
	var all sync.WaitGroup
	for i := range writers {
		d := b.a
		if i%2 == 1 {
			d = b.b
		}
		rotated := append(append([]provenance.Want{}, wants[i%len(wants):]...), wants[:i%len(wants)]...)
		all.Go(func() {
			<-start
			got, err := b.admit(d, rotated...)
			if err != nil {
				t.Error(err)
				return
			}
			n := len(got) - i%len(wants)
			answers[i] = append(append([]memd.Contribution{}, got[n:]...), got[:n]...)
		})
	}
	close(start)
	all.Wait()
	for i := range answers {
		if diff := cmp.Diff(answers[0], answers[i]); diff != "" {
			t.Fatalf("writer %d (-first +got):\n%s", i, diff)
		}
	}
	if n := b.count(`SELECT count(*) FROM memd.subjects`); n != users {
		t.Errorf("%d subjects, want %d", n, users)
	}
	if n := b.count(`SELECT count(*) FROM memd.sessions`); n != users*sessions {
		t.Errorf("%d sessions, want %d", n, users*sessions)
	}
	// One process gives a number to each; two may meet, and lose one of theirs.
	lost := b.count(`SELECT max(last) FROM memd.subject_counters`) - users
	t.Logf("%d subject numbers were lost between the two processes", lost)
	if lost > users {
		t.Errorf("%d subject numbers were lost, of %d users", lost, users)
	}
}

func TestFind_WritesNothing(t *testing.T) {
	b := setup(t)
	got := b.find(b.a, want("ada", ""), want("ada", "s1"))
	if diff := cmp.Diff([]memd.Contribution{{Session: memd.OwnScope}, {}}, got); diff != "" {
		t.Errorf("a stranger (-want +got):\n%s", diff)
	}
	if n := b.count(`SELECT count(*) FROM memd.subjects`) + b.count(`SELECT count(*) FROM memd.subject_counters`); n != 0 {
		t.Errorf("finding left %d rows", n)
	}
	admitted := b.mustAdmit(b.b, want("ada", "s1"))
	if diff := cmp.Diff(admitted, b.find(b.a, want("ada", "s1"))); diff != "" {
		t.Errorf("(-admitted +found):\n%s", diff)
	}
	if got := b.find(b.a, want("ada", "never")); got[0].Subject != admitted[0].Subject || got[0].Session.Valid() {
		t.Errorf("a session never seen: %+v", got[0])
	}
	b.forget("ada", time.Now())
	fresh := provenance.New(memd.SystemClock{})
	if got := b.find(fresh, want("ada", "s1")); got[0].Subject.Valid() || got[0].Session.Valid() {
		t.Errorf("forgotten, and found: %+v", got[0])
	}
}

// TestDirectory_IsOutOfDateInOneWay: another process forgot the user. The
// cached number is what the database refuses; evicting helps.
func TestDirectory_IsOutOfDateInOneWay(t *testing.T) {
	b := setup(t)
	old := b.mustAdmit(b.a, want("ada", "s1"), want("ada", "s2"))
	neighbour := b.mustAdmit(b.a, want("bob", "s1"))
	before := time.Now()
	b.forget("ada", before)
	if diff := cmp.Diff(old, b.find(b.a, want("ada", "s1"), want("ada", "s2"))); diff != "" {
		t.Fatalf("the cache was expected to be out of date:\n%s", diff)
	}
	err := b.app.With(t.Context(), func(db pg.DB) error {
		_, err := db.Exec(t.Context(), `INSERT INTO memd.memories (tenant_no, memory_id, owner_no, kind, month, contributor_no, contributor_session,
			source_time, created_at, updated_at, content_digest, sealed_text)
			VALUES ($1, gen_random_uuid(), $2, 1, 1, $2, $3, now() + interval '1 hour', now(), now(), '', '\x00')`, b.tenant, old[0].Subject, memd.OwnScope)
		return err
	})
	if !errors.Is(err, memd.ErrStale) {
		t.Errorf("a number of an earlier life: %v", err)
	}
	// A session never seen meets the same refusal inside Admit.
	if _, err := b.admit(b.a, want("ada", "s3")); !errors.Is(err, memd.ErrStale) && !errors.Is(err, memd.ErrSourceTimeRequired) {
		t.Errorf("a new session of an earlier life: %v", err)
	}
	b.a.Evict(b.tenant, b.keys.UserRef("app", "ada"))
	later := func(session string) provenance.Want {
		return provenance.Want{Scope: user("ada"), Session: session, SourceTime: before.Add(time.Hour)}
	}
	if _, err := b.admit(b.a, want("ada", "s3")); !errors.Is(err, memd.ErrSourceTimeRequired) {
		t.Errorf("returned without a time: %v", err)
	}
	if _, err := b.admit(b.a, provenance.Want{Scope: user("ada"), Session: "s3", SourceTime: before.Add(-time.Hour)}); !errors.Is(err, memd.ErrErasedBefore) {
		t.Errorf("returned with words of before: %v", err)
	}
	if n := b.count(`SELECT count(*) FROM memd.subjects WHERE retired_at IS NULL`); n != 1 {
		t.Errorf("%d live subjects, want the neighbour: a refused write left somebody in the directory", n)
	}
	back := b.mustAdmit(b.a, later("s3"))
	if back[0].Subject <= neighbour[0].Subject || back[0].Session != b.number(1, 2) {
		t.Errorf("returned as %v, session %v", back[0].Subject, back[0].Session)
	}
	for _, dead := range []string{"s1", "s2"} {
		if _, err := b.admit(b.a, later(dead)); !errors.Is(err, memd.ErrSessionForgotten) {
			t.Errorf("a dead session of a user who returned: %v", err)
		}
	}
	if diff := cmp.Diff(neighbour, b.mustAdmit(b.a, want("bob", "s1"))); diff != "" {
		t.Errorf("the neighbour (-want +got):\n%s", diff)
	}
}

func TestAdmit_BehindAFence(t *testing.T) {
	b := setup(t)
	b.mustAdmit(b.a, want("ada", "s1"))
	for _, id := range []string{"ada", "never seen"} {
		ref := b.keys.UserRef("app", id)
		b.sudo(fmt.Sprintf(`INSERT INTO memd.fences VALUES (1, '\x%x', 2, now(), gen_random_uuid(), now())`, ref[:]))
		if _, err := b.admit(b.b, want(id, "s2"), want("bob", "")); !errors.Is(err, memd.ErrFenced) {
			t.Errorf("%s: %v", id, err)
		}
	}
	b.sudo(`UPDATE memd.tenants SET state = 3`)
	if _, err := b.admit(b.b, want("carol", "s1")); !errors.Is(err, memd.ErrTenantInactive) {
		t.Errorf("a suspended tenant: %v", err)
	}
}

// TestNumbers_NeverRepeat: not after a rollback, which raises the generation,
// and not when the generation is set back.
func TestNumbers_NeverRepeat(t *testing.T) {
	b := setup(t)
	seen := map[memd.Contribution]bool{}
	subjects := map[memd.Number]bool{}
	constant := b.mustAdmit(b.a, want("ada", ""))[0].Subject
	for _, generation := range []int64{1, 2, 2, 5, 3, 1, 5, 6} {
		b.sudo(fmt.Sprintf(`UPDATE memd.installation SET generation = %d`, generation))
		for range 3 {
			c := b.mustAdmit(b.a, want(random(), "s"))[0]
			if subjects[c.Subject] {
				t.Fatalf("generation %d gives out %v again", generation, c.Subject)
			}
			subjects[c.Subject] = true
			s := b.mustAdmit(b.a, want("ada", random()))[0]
			if s.Subject != constant || seen[s] {
				t.Fatalf("generation %d gives out session %v again", generation, s.Session)
			}
			seen[s] = true
		}
	}
	newest := b.mustAdmit(b.a, want(random(), "s"))[0]
	if newest.Subject.Generation() != 6 || newest.Subject.Counter() != 4 || newest.Session.Generation() != 6 {
		t.Errorf("the newest is %v, session %v", newest.Subject, newest.Session)
	}
	// The counter of sessions does not run over into the next generation.
	b.sudo(fmt.Sprintf(`UPDATE memd.subjects SET last_session = (6::bigint << 40) + %d WHERE subject_no = %d`, int64(memd.MaxCounter)-1, constant))
	if got := b.mustAdmit(b.a, want("ada", random()))[0].Session; got != b.number(6, memd.MaxCounter) {
		t.Errorf("the last session number is %v", got)
	}
	if _, err := b.admit(b.a, want("ada", random())); pg.SQLState(err) != "54000" {
		t.Errorf("a session number beyond the last: %v", err)
	}
}
