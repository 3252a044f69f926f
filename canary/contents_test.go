package canary_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/shred"
)

// converse makes a session of one event that says text and puts it into the
// state of session, user and app, and saves it as two artifacts.
func (s *scene) converse(id, session, text string) {
	s.t.Helper()
	ctx := s.t.Context()
	tenant := sessions.Tenant{No: s.tenant.No, Epoch: s.tenant.Epoch}
	at := sessions.ID{App: app, UserID: id, SessionID: session}
	if _, err := s.srv.Sessions.Create(ctx, tenant, at, nil, false); err != nil {
		s.t.Fatalf("creating a session: %v", err)
	}
	quoted := `"` + text + `"`
	_, err := s.srv.Sessions.Append(ctx, tenant, at, []sessions.Event{{
		ID: "e1", Author: "user", Content: `{"parts":[{"text":` + quoted + `}]}`,
		StateDelta: map[string]string{"plan": quoted, "user:plan": quoted, "app:" + id: quoted},
	}}, time.Time{}, false)
	if err != nil {
		s.t.Fatalf("appending: %v", err)
	}
	for _, name := range []string{"note.txt", "user:note.txt"} {
		owner := artifacts.Owner{App: app, UserID: id, SessionID: session}
		_, err := s.srv.Artifacts.Save(ctx, artifacts.Tenant{No: s.tenant.No, Epoch: s.tenant.Epoch}, owner, name,
			artifacts.File{MimeType: "text/plain"}, strings.NewReader(text))
		if err != nil {
			s.t.Fatalf("saving an artifact: %v", err)
		}
	}
}

// stores are the checks of content, and those that a copy in each is named by.
var stores = []string{
	"app_state", "artifact_chunks", "artifact_versions", "artifacts", "session_events", "session_state", "sessions", "user_state",
}

func TestVerifier_Contents(t *testing.T) {
	s := setup(t)
	s.converse("mara", "s1", "The inhaler goes to 14 Tannery Lane, QX-4471.")
	s.converse("jonas", "j1", "I like plain weather.")
	x := s.accept("mara")
	for _, name := range stores {
		if x.p.Before[name] == 0 {
			t.Errorf("%s: nothing was there before", name)
		}
	}
	// Everything is left, then ever less: each check sees its own.
	left := slices.Clone(stores)
	deleted := []struct{ what, check string }{
		{"app_state", "app_state"}, {"1_chunks", "artifact_chunks"}, {"2_versions", "artifact_versions"}, {"3_artifacts", "artifacts"},
		{"session_events", "session_events"}, {"session_state", "session_state"}, {"user_state", "user_state"}, {"session_heads", ""}, {"sessions", "sessions"},
	}
	x.delete(slices.Collect(func(yield func(string) bool) {
		for _, d := range deleted {
			if !yield(d.what) {
				return
			}
		}
	})...)
	x.puncture()
	x.rotate()
	for _, d := range deleted {
		got := x.verify()
		if d := cmp.Diff(left, slices.DeleteFunc(got.failed(), func(n string) bool { return n == "unique_probes" })); d != "" {
			t.Errorf("failed (-want +got):\n%s", d)
		}
		for _, name := range left {
			if len(got[name].Rows) == 0 {
				t.Errorf("%s names nothing", name)
			}
		}
		s.exec(deletes[d.what], x.ref[:])
		left = slices.DeleteFunc(left, func(n string) bool { return n == d.check })
	}
	got := x.verify()
	if f := got.failed(); f != nil {
		t.Errorf("failed in the end: %v", f)
	}
	for _, name := range append(slices.Clone(stores), "unique_probes") {
		got.want(t, name+" pass")
	}
}

// Copies of what a user said, in every store of another one.
func TestVerifier_CopiesInContents(t *testing.T) {
	s := setup(t)
	s.converse("mara", "s1", "The inhaler goes to 14 Tannery Lane, QX-4471.")
	s.converse("jonas", "j1", "I like plain weather.")
	x := s.accept("mara")
	s.converse("jonas", "j2", "Somebody's order, QX-4471.")
	x.whole()
	got := x.verify()
	got.want(t, "unique_probes fail hits_elsewhere")
	tables := map[string]bool{}
	for _, r := range got["unique_probes"].Rows {
		tables[r.Table] = true
	}
	want := []string{"app_state", "artifact_chunks", "session_events", "session_state", "user_state"}
	if d := cmp.Diff(want, slices.Sorted(maps.Keys(tables))); d != "" {
		t.Errorf("named (-want +got):\n%s", d)
	}
}

// A session's content goes, and what memory drew from it stays: it may say the
// same, and is no copy.
func TestVerifier_ContentAlone(t *testing.T) {
	s := setup(t)
	s.converse("mara", "s1", "The inhaler goes to 14 Tannery Lane, QX-4471.")
	s.converse("jonas", "j1", "I like plain weather.")
	x := &erasure{s: s, request: uuid.New(), v: s.verifier()}
	ref := s.Keys(s.srv, s.tenant).UserRef(app, "mara")
	subject := s.numbers(ref)[0]
	session := ask[memd.Number](s, `SELECT session_no FROM memd.sessions WHERE subject_no = $1`, subject)
	x.e = memd.Examination{
		Tenant: s.tenant.No, Job: ask[memd.Number](s, `SELECT memd.next_job_no($1)`, s.tenant.No), Content: true,
		Target: []memd.Contribution{{Subject: subject, Session: session}},
	}
	// The user's own state and artifact say the same, so nothing would be unique.
	for _, what := range []string{"user_state", "app_state"} {
		s.exec(deletes[what], ref[:])
	}
	s.exec(`DELETE FROM memd.artifact_chunks WHERE session_no = $1`, memd.OwnScope)
	x.draw()
	s.add(said("mara", "s1", "The inhaler goes to 14 Tannery Lane, QX-4471."))
	for _, table := range []string{"session_events", "session_state", "session_heads", "artifact_chunks", "artifact_versions", "artifacts"} {
		s.exec(`DELETE FROM memd.`+table+` WHERE subject_no = $1 AND session_no = $2`, subject, session)
	}
	x.e.KeysLater = true
	got := x.verify()
	if f := got.failed(); f != nil {
		t.Errorf("failed: %v", f)
	}
	got.want(t, "session_events pass", "session_state pass", "artifacts pass", "unique_probes pass",
		"derivation_refused not_run policy", "old_epochs not_run policy", "instances not_run policy")
	if _, ok := got["rows_by_owner"]; ok {
		t.Error("memories are counted, which stay")
	}
	x.e.KeysLater = false
	x.verify().want(t, "derivation_refused fail derives")
	err := s.db.With(t.Context(), func(db pg.DB) error {
		path := shred.SessionPath(subject, memd.ClassContent, session)
		return shred.RequestPuncture(t.Context(), db, x.e.Tenant, []shred.Path{path}, x.request, time.Now())
	})
	if err != nil {
		t.Fatal(err)
	}
	x.rotate()
	x.verify().want(t, "derivation_refused pass", "old_epochs pass", "neighbour_derives pass", "unique_probes pass")
}

// A whole tenant: every table is empty, no state opens, no version is left, and
// nobody holds a key.
func TestVerifier_WholeTenant(t *testing.T) {
	s := setup(t)
	s.converse("mara", "s1", "The inhaler goes to 14 Tannery Lane, QX-4471.")
	s.add(said("mara", "s1", "My daughter has asthma."))
	x := &erasure{s: s, request: uuid.New(), v: s.verifier()}
	x.e = memd.Examination{Tenant: s.tenant.No, Job: ask[memd.Number](s, `SELECT memd.next_job_no($1)`, s.tenant.No), Whole: true}
	s.exec(`UPDATE memd.tenants SET state = 5`)
	s.exec(`INSERT INTO memd.approvals (tenant_no, approval_id, digest, approved_by, approved_at, expires_at, request_id)
		VALUES ($1, gen_random_uuid(), sha256('shown'), gen_random_uuid(), now(), now() + interval '1 day', $2)`, s.tenant.No, x.request)
	s.exec(`INSERT INTO memd.erasures (tenant_no, request_id, job_no, kind, app, accepted_at, due_at)
		VALUES ($1, $2, $3, 4, '', now(), now() + interval '30 days')`, s.tenant.No, x.request, x.e.Job)
	x.draw()
	got := x.verify()
	want := append(slices.Clone(stores), "key_versions", "memories", "old_epochs")
	slices.Sort(want)
	if d := cmp.Diff(want, got.failed()); d != "" {
		t.Errorf("failed before (-want +got):\n%s", d)
	}
	for _, table := range []string{
		"memories", "session_heads", "session_events", "session_state", "user_state", "app_state", "artifact_chunks", "artifact_versions", "artifacts",
	} {
		s.exec(`DELETE FROM memd.` + table)
	}
	if _, err := s.rotator.DestroyTenant(t.Context(), s.tenant.No); err != nil {
		t.Fatal(err)
	}
	got = x.verify()
	if f := got.failed(); f != nil {
		t.Errorf("failed: %v", f)
	}
	got.want(t, "memories pass", "session_events pass", "artifact_chunks pass", "fence pass", "old_epochs pass", "key_versions pass", "instances pass",
		"derivation_refused not_run not_applicable", "unique_probes not_run not_applicable", "memory_sources not_run nothing_before")
}
