package provenance_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

func (b *bundle) names(d *provenance.Directory, k provenance.Keys, cs []memd.Contribution) (scopes map[memd.Number]memd.Scope, ids map[memd.Contribution]string) {
	b.t.Helper()
	var subjects []memd.Number
	for _, c := range cs {
		subjects = append(subjects, c.Subject)
	}
	b.must(b.app.With(b.t.Context(), func(db pg.DB) (err error) {
		if scopes, err = d.Scopes(b.t.Context(), db, k, subjects); err != nil {
			return err
		}
		ids, err = d.SessionIDs(b.t.Context(), db, k, cs)
		return err
	}))
	return scopes, ids
}

func TestNames_ComeBackAsTheyWere(t *testing.T) {
	b := setup(t)
	cs := b.mustAdmit(b.a, want("ada", "s1"), want("ada", "s2"), want("bob", "s1"), want("bob", ""), provenance.Want{Scope: memd.Scope{App: "app"}, Session: "all"})
	scopes := map[memd.Number]memd.Scope{cs[0].Subject: user("ada"), cs[2].Subject: user("bob"), cs[4].Subject: {App: "app"}}
	ids := map[memd.Contribution]string{cs[0]: "s1", cs[1]: "s2", cs[2]: "s1", cs[4]: "all"}
	asked := append([]memd.Contribution{{Subject: b.number(9, 9), Session: b.number(9, 9)}}, cs...)
	for _, d := range []*provenance.Directory{b.a, b.a, b.b} { // The second time from the cache.
		gotScopes, gotIDs := b.names(d, b.keys, asked)
		if diff := cmp.Diff(scopes, gotScopes); diff != "" {
			t.Errorf("scopes (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(ids, gotIDs); diff != "" {
			t.Errorf("sessions (-want +got):\n%s", diff)
		}
	}
	for _, id := range []string{"ada", "s1", "bob"} {
		if n := b.count(`SELECT count(*) FROM memd.subjects s LEFT JOIN memd.sessions x USING (tenant_no, subject_no)
			WHERE position('` + id + `'::bytea in s.sealed_user_id || s.user_ref || x.sealed_id || x.session_ref) > 0`); n > 0 {
			t.Errorf("%s is in clear in %d rows", id, n)
		}
	}
}

// TestNames_GoWithTheirKeys: after the puncture nobody can say who it was, not
// with the rows of an old backup, and not this process once it dropped its cache.
func TestNames_GoWithTheirKeys(t *testing.T) {
	b := setup(t)
	cs := b.mustAdmit(b.a, want("ada", "s1"), want("bob", "s1"), want("bob", "s2"))
	b.names(b.a, b.keys, cs)
	after := shred.NewKeys(b.tree(shred.SubjectPath(cs[0].Subject),
		shred.SessionPath(cs[2].Subject, memd.ClassContent, cs[2].Session), shred.SessionPath(cs[2].Subject, memd.ClassMemory, cs[2].Session)))
	b.a.Drop(b.tenant)
	for _, d := range []*provenance.Directory{b.a, b.b} {
		scopes, ids := b.names(d, after, cs)
		if diff := cmp.Diff(map[memd.Number]memd.Scope{cs[1].Subject: user("bob")}, scopes); diff != "" {
			t.Errorf("scopes (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[memd.Contribution]string{cs[1]: "s1"}, ids); diff != "" {
			t.Errorf("sessions (-want +got):\n%s", diff)
		}
	}
	// A stub says nothing even to old keys.
	b.forget("bob", time.Now())
	_, ids := b.names(provenance.New(memd.SystemClock{}), b.keys, cs)
	if diff := cmp.Diff(map[memd.Contribution]string{cs[0]: "s1"}, ids); diff != "" {
		t.Errorf("stubs (-want +got):\n%s", diff)
	}
}

// slow is keys that call a function while they open a user id.
type slow struct {
	*shred.Keys
	meanwhile func()
}

func (s slow) OpenUserID(subject memd.Number, sealed []byte) (string, error) {
	id, err := s.Keys.OpenUserID(subject, sealed)
	s.meanwhile()
	return id, err
}

// TestDrop_IsNotUndoneByWhoeverAskedBefore: a name that was being opened when
// the cache was dropped must not enter it afterwards.
func TestDrop_IsNotUndoneByWhoeverAskedBefore(t *testing.T) {
	b := setup(t)
	cs := b.mustAdmit(b.a, want("ada", ""))
	b.names(b.a, slow{b.keys, func() { b.a.Drop(b.tenant) }}, cs)
	after := shred.NewKeys(b.tree(shred.SubjectPath(cs[0].Subject)))
	if scopes, _ := b.names(b.a, after, cs); len(scopes) > 0 {
		t.Errorf("still knows %v", scopes)
	}
}

func TestForgetSessions_LeavesStubs(t *testing.T) {
	b := setup(t)
	cs := b.mustAdmit(b.a, want("ada", "s1"), want("ada", "s2"), want("bob", "s1"))
	ref := b.keys.UserRef("app", "ada")
	b.must(b.worker.With(t.Context(), func(db pg.DB) error {
		found, err := provenance.SessionOf(t.Context(), db, b.tenant, []memd.Number{cs[0].Subject}, b.keys.SessionRef(ref, "s1"))
		if diff := cmp.Diff(cs[:1], found); err == nil && diff != "" {
			t.Errorf("SessionOf (-want +got):\n%s", diff)
		}
		if err != nil {
			return err
		}
		for i, want := range []int64{1, 0} {
			n, err := provenance.ForgetSessions(t.Context(), db, b.tenant, []memd.Number{cs[0].Subject}, cs[0].Session)
			if err != nil {
				return err
			}
			if n != want {
				t.Errorf("try %d forgot %d sessions", i, n)
			}
		}
		live, err := provenance.CountLiveSessions(t.Context(), db, b.tenant, []memd.Contribution{{Subject: cs[0].Subject}})
		if live != 1 {
			t.Errorf("%d live sessions, want the other one", live)
		}
		// Nobody named means nobody.
		if n, err := provenance.ForgetSessions(t.Context(), db, b.tenant, nil, 0); n != 0 || err != nil {
			t.Errorf("an empty list forgot %d sessions, %v", n, err)
		}
		if err := provenance.Retire(t.Context(), db, b.tenant, nil, time.Now()); err != nil {
			return err
		}
		return err
	}))
	if n := b.count(`SELECT count(*) FROM memd.sessions WHERE state = 1`); n != 2 {
		t.Errorf("%d live sessions, want 2", n)
	}
	if n := b.count(`SELECT count(*) FROM memd.subjects WHERE retired_at IS NULL`); n != 2 {
		t.Errorf("%d live subjects, want 2", n)
	}
	if n := b.count(`SELECT octet_length(sealed_id) FROM memd.sessions WHERE state = 2`); n != 0 {
		t.Errorf("the stub has an id of %d bytes", n)
	}
}
