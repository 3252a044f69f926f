package erasure_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/sessions"
)

// Of somebody who has returned, the second sweep finds in every store what they
// cannot have said: planted by a superuser with all triggers off, older than the
// erasure or of no known time. What they did say stays.
func TestSweep_FindsWhatIsStaleInEveryStore(t *testing.T) {
	w := newWorld(t)
	late := w.Tenant("late", delayed(8*time.Second))
	w.addTo(late, said("alice", "s1", "alice"))
	r := w.ForgetUser(w.a, late, app, "alice")
	ctx := t.Context()
	id, of := sessions.ID{App: app, UserID: "alice", SessionID: "s2"}, sessions.Tenant{No: late.No, Epoch: late.Epoch}
	owner := artifacts.Owner{App: app, UserID: "alice", SessionID: "s2"}
	_, err := w.a.Sessions.Create(ctx, of, id, map[string]string{"key": "1", "user:key": "2", "app:key": "3"}, false)
	if err == nil {
		_, err = w.a.Sessions.Append(ctx, of, id, []sessions.Event{{ID: "e1", Author: "user", Time: time.Now()}}, time.Time{}, false)
	}
	if err == nil {
		_, err = w.a.Artifacts.Save(ctx, artifacts.Tenant{No: late.No, Epoch: late.Epoch}, owner, "note",
			artifacts.File{SourceTime: time.Now()}, strings.NewReader("hers"))
	}
	if err != nil {
		t.Fatal(err)
	}
	ref := w.Keys(w.a, late).UserRef(app, "alice")
	back := w.count(`SELECT subject_no FROM memd.subjects WHERE tenant_no = $1 AND user_ref = $2 AND retired_at IS NULL`, late.No, ref[:])
	group := w.Keys(w.a, late).SharedRef(app)
	shared := w.count(`SELECT subject_no FROM memd.subjects WHERE tenant_no = $1 AND user_ref = $2 AND retired_at IS NULL`, late.No, group[:])
	session := w.count(`SELECT session_no FROM memd.session_heads WHERE tenant_no = $1 AND subject_no = $2`, late.No, back)
	month := w.count(`SELECT month FROM memd.session_heads WHERE tenant_no = $1 AND subject_no = $2`, late.No, back)
	digest := `decode(md5('planted'), 'hex')`
	for _, own := range []int{session, int(memd.OwnScope)} {
		w.bypass(fmt.Sprintf(`
	INSERT INTO memd.artifacts (tenant_no, subject_no, session_no, artifact_id, name_digest, sealed_name, month, source_time, created_at)
	  VALUES (%[1]d, %[2]d, %[3]d, md5('planted')::uuid, %[4]s, '', %[5]d, '2020-01-01', now());
	INSERT INTO memd.artifact_versions (tenant_no, subject_no, session_no, version_id, artifact_id, version, month, sealed_info, source_time, created_at, touched_at)
	  VALUES (%[1]d, %[2]d, %[3]d, md5('planted')::uuid, md5('planted')::uuid, 0, %[5]d, '', '2020-01-01', now(), now());
	INSERT INTO memd.artifact_chunks (tenant_no, subject_no, session_no, version_id, chunk_no, sealed)
	  VALUES (%[1]d, %[2]d, %[3]d, md5('planted')::uuid, 0, '');`, late.No, back, own, digest, month))
	}
	w.bypass(fmt.Sprintf(`
	INSERT INTO memd.session_events (tenant_no, subject_no, session_no, month, seq, event_digest, source_time, appended_at, sealed)
	  VALUES (%[1]d, %[2]d, %[3]d, %[5]d, 900, %[4]s, NULL, now(), '');
	INSERT INTO memd.session_state (tenant_no, subject_no, session_no, month, key_digest, source_time, updated_at, sealed)
	  VALUES (%[1]d, %[2]d, %[3]d, %[5]d, %[4]s, '2020-01-01', now(), '');
	INSERT INTO memd.user_state (tenant_no, subject_no, key_digest, source_time, updated_at, sealed)
	  VALUES (%[1]d, %[2]d, %[4]s, '2020-01-01', now(), '');
	INSERT INTO memd.app_state (tenant_no, app_no, key_digest, contributor_no, source_time, updated_at, sealed)
	  VALUES (%[1]d, %[6]d, %[4]s, %[2]d, '2020-01-01', now(), '');`, late.No, back, session, digest, month, shared))
	w.plant(late, back, back, int(memd.OwnScope), "NULL")
	if w.job(r.Job).State != erasure.StateDone {
		t.Fatal("swept before the rows were planted: the test shows nothing")
	}
	w.state(r.Job, erasure.StateFinal)
	got := w.report(late, r.ID).Found
	if got["artifacts_stale"] != 6 || got["sessions_stale"] != 4 || got["memories_stale"] != 1 {
		t.Errorf("the report says that %v was found", got)
	}
	s, err := w.a.Sessions.Get(ctx, of, id, sessions.Query{Events: 10})
	if err != nil || len(s.Events) != 1 || len(s.State) != 3 {
		t.Errorf("of what she said since: %d events, state %v, %v", len(s.Events), s.State, err)
	}
	if _, err := w.a.Artifacts.Load(ctx, artifacts.Tenant{No: late.No, Epoch: late.Epoch}, owner, "note", artifacts.Latest, 0, 0); err != nil {
		t.Errorf("of what she saved since: %v", err)
	}
}

// bypass runs statements as a superuser with all triggers off.
func (w *world) bypass(sql string) {
	w.t.Helper()
	w.exec("DO $do$ BEGIN\n\tSET LOCAL session_replication_role = replica;" + sql + "\n\tEND $do$")
}
