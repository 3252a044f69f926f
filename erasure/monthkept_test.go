package erasure_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/tenants"
)

// kept returns why each month of September is kept, by class: session, memory.
func (m *months) kept(plan []erasure.Expiry) []string {
	var out []string
	for _, e := range plan {
		if e.Month == monthNamed(september) {
			out = append(out, e.Kept)
		}
	}
	return out
}

// A hold keeps every month of which there is anything of whom it covers, and no
// other; the floor keeps all of a class; and released, or passed, the next run goes
// on. Whoever tries by hand-written SQL is refused by the database.
func TestMonth_HoldsAndFloorRefuse(t *testing.T) {
	m := newMonths(t)
	m.live(m.tenant, september, "alice")
	m.live(m.tenant, october, "bob")
	m.live(m.tenant, november, "alice", "bob")
	of := func(why ...string) {
		t.Helper()
		if diff := cmp.Diff(why, m.kept(m.run(m.tenant))); diff != "" {
			t.Errorf("of September are kept (-want +got):\n%s", diff)
		}
	}
	m.calendar.set(middleOf[november].AddDate(0, 1, 0))
	hold, _ := m.hold("alice", "")
	of(erasure.KeptHeld, erasure.KeptHeld)
	if got := m.state(erasure.Job{Tenant: m.tenant.No, ID: request(m.plan(m.tenant), memd.ClassMemory, october)}, erasure.StateFinal); got.Held {
		t.Error("October, of which there is nothing of hers, was held")
	}
	m.release(hold)
	tenant, _ := m.hold("", "")
	of(erasure.KeptHeld, erasure.KeptHeld)
	m.release(tenant)
	m.change("acme", tenants.Change{MemoryNotBefore: new(m.calendar.Now().Add(time.Second))})
	if diff := cmp.Diff([]string{"", erasure.KeptNotBefore}, m.kept(m.plan(m.tenant))); diff != "" {
		t.Errorf("with a floor (-want +got):\n%s", diff)
	}
	m.change("acme", tenants.Change{SessionMonths: new(tenants.MaxRetention), MemoryMonths: new(0), MemoryNotBefore: new(time.Unix(0, 0))})
	of(erasure.KeptInWindow, erasure.KeptForEver)
	// By hand, as the application's role, for a month that is kept.
	for _, class := range []memd.Class{memd.ClassContent, memd.ClassMemory} {
		if err := m.asApp(acceptSQL(m.tenant.No, class, november)); pg.SQLState(err) != "MD030" {
			t.Errorf("expiring November of class %v by hand: %v", class, err)
		}
	}
	m.shows(m.tenant, "alice", september, november)
	m.setRetention("acme", 2)
	m.expired(m.tenant)
	m.shows(m.tenant, "alice", november)
}

func request(plan []erasure.Expiry, class memd.Class, month string) uuid.UUID {
	i := slices.IndexFunc(plan, func(e erasure.Expiry) bool { return e.Class == class && e.Month == monthNamed(month) })
	if i < 0 {
		return uuid.Nil
	}
	return plan[i].Request
}

func acceptSQL(tenant memd.TenantNo, class memd.Class, month string) string {
	return fmt.Sprintf(`INSERT INTO memd.erasures (tenant_no, request_id, job_no, kind, app, class, month, accepted_at, due_at)
		VALUES (%d, gen_random_uuid(), memd.next_job_no(%[1]d), 5, '', %d, %d, '2030-01-01', '2030-01-01')`, tenant, class, monthNamed(month))
}

// asApp runs a statement as the application's role.
func (m *months) asApp(sql string) error {
	m.t.Helper()
	return m.app.With(m.t.Context(), func(db pg.DB) error {
		_, err := db.Exec(m.t.Context(), sql)
		return err
	})
}

// From its acceptance on a month takes nothing, by any path; before its key goes a
// hold, or another policy, stops it; and what it had stays readable until then.
func TestMonth_IsClosedFromItsAcceptanceAndStopsWhileItCan(t *testing.T) {
	m := newMonths(t)
	m.live(m.tenant, september, "alice")
	m.live(m.tenant, october, "alice")
	m.live(m.tenant, november, "alice")
	statements := m.writes()
	for name, sql := range statements {
		if err := m.asApp("BEGIN; " + sql + "; ROLLBACK"); err != nil {
			t.Fatalf("control: %s: %v", name, err)
		}
	}
	m.StopWorker()
	m.run(m.tenant)
	for name, sql := range statements {
		if err := m.asApp(sql); pg.SQLState(err) != "MD010" {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx := t.Context()
	of, id := sessions.Tenant{No: m.tenant.No, Epoch: m.tenant.Epoch}, sessions.ID{App: app, UserID: "alice", SessionID: september}
	event := sessions.Event{ID: "late", Author: "user", Time: middleOf[november], Content: `"late"`}
	refused := func() {
		t.Helper()
		m.refused(at(said("alice", "new", "late"), middleOf[september]), memd.ErrMonthExpired)
		for _, srv := range []*node.Server{m.a, m.b} {
			if _, err := srv.Sessions.Append(ctx, of, id, []sessions.Event{event}, time.Time{}, false); !errors.Is(err, memd.ErrMonthExpired) && !errors.Is(err, memd.ErrNotFound) {
				t.Errorf("appending to a session of September: %v", err)
			}
			_, err := srv.Artifacts.Save(ctx, artifacts.Tenant{No: m.tenant.No, Epoch: m.tenant.Epoch},
				artifacts.Owner{App: app, UserID: "alice", SessionID: september}, "late", artifacts.File{}, strings.NewReader("late"))
			if !errors.Is(err, memd.ErrMonthExpired) && !errors.Is(err, memd.ErrSessionForgotten) && !errors.Is(err, memd.ErrNotFound) {
				t.Errorf("saving into a session of September: %v", err)
			}
		}
	}
	refused()
	// A row that is drawn from September's words is of September.
	m.refused(at(drawn(memory.KindFact, user("alice"), "late", fromSession("alice", september)), middleOf[november]), memd.ErrMonthExpired)
	hold, _ := m.hold("alice", "")
	m.StartWorker()
	plan := m.plan(m.tenant)
	job := erasure.Job{Tenant: m.tenant.No, ID: request(plan, memd.ClassMemory, september)}
	m.within(30*time.Second, "the worker has looked", func() bool {
		return m.count(`SELECT count(*) FROM memd_jobs.river_job WHERE kind = 'memd_erasure' AND state IN ('scheduled', 'available') AND metadata ? 'snoozes'`) == 2
	})
	if !m.job(job).Held {
		t.Error("it is not held")
	}
	m.shows(m.tenant, "alice", september, october, november)
	m.setRetention("acme", tenants.MaxRetention)
	m.release(hold)
	if !m.job(job).Held {
		t.Error("it is not kept by the policy of now")
	}
	m.setRetention("acme", 2)
	for _, e := range plan {
		if e.Month == monthNamed(september) {
			m.state(erasure.Job{Tenant: m.tenant.No, ID: e.Request}, erasure.StateFinal)
		}
	}
	m.shows(m.tenant, "alice", october, november)
	refused()
	for name, sql := range statements {
		if name == "an event" || name == "a chunk" || name == "a summary grows" {
			continue // Of what is no longer there.
		}
		if err := m.asApp(sql); pg.SQLState(err) != "MD010" {
			t.Errorf("afterwards, %s: %v", name, err)
		}
	}
	// The session's id is free again, and is of the month in which it is used.
	if _, err := m.b.Sessions.Create(ctx, of, id, nil, false); err != nil {
		t.Fatal(err)
	}
	for _, srv := range []*node.Server{m.a, m.b} {
		event.ID += "r"
		if _, err := srv.Sessions.Append(ctx, of, id, []sessions.Event{event}, time.Time{}, false); err != nil {
			t.Errorf("talking on under an id of September: %v", err)
		}
	}
}

// writes are statements that write into September, as the application's role may
// write them.
func (m *months) writes() map[string]string {
	m.t.Helper()
	s := int(monthNamed(september))
	subject := m.count(`SELECT subject_no FROM memd.session_heads WHERE tenant_no = $1 AND month = $2`, m.tenant.No, s)
	session := m.count(`SELECT session_no FROM memd.session_heads WHERE tenant_no = $1 AND month = $2`, m.tenant.No, s)
	m.add(at(said("zoe", "without a head", "zoe"), middleOf[november]))
	zoe := m.count(`SELECT max(subject_no) FROM memd.subjects WHERE tenant_no = $1`, m.tenant.No)
	spare := m.count(`SELECT session_no FROM memd.sessions WHERE tenant_no = $1 AND subject_no = $2`, m.tenant.No, zoe)
	f := func(sql string) string {
		return strings.NewReplacer("$t", fmt.Sprint(m.tenant.No), "$u", fmt.Sprint(subject), "$s", fmt.Sprint(session), "$z", fmt.Sprint(zoe), "$x", fmt.Sprint(spare),
			"$m", fmt.Sprint(s), "$at", "'2025-09-20'").Replace(sql)
	}
	return map[string]string{
		"a memory": f(`INSERT INTO memd.memories (tenant_no, memory_id, owner_no, kind, month, contributor_no, contributor_session, source_time, created_at, updated_at, content_digest, sealed_text)
			VALUES ($t, gen_random_uuid(), $u, 1, $m, $u, $s, $at, now(), now(), '', '')`),
		"a memory that moves there": f(`UPDATE memd.memories SET month = $m WHERE tenant_no = $t AND owner_no = $u AND month > $m`),
		"a summary grows":           f(`UPDATE memd.memories SET sealed_text = '' WHERE tenant_no = $t AND owner_no = $u AND month = $m`),
		"a session":                 f(`SELECT memd.create_session($t, $z, $x, NULL, true, $at, '{}', '{}', '{}')`),
		"an event":                  f(`SELECT memd.append_events($t, $u, $s, NULL, true, NULL, $at, '{"\\x01"}', '{2025-09-20}', '{"\\x01"}', '{}', '{}', '{}', '{}')`),
		"an artifact's version": f(`INSERT INTO memd.artifact_versions (tenant_no, subject_no, session_no, version_id, month, source_time, created_at, touched_at)
			VALUES ($t, $u, $s, gen_random_uuid(), $m, $at, now(), now())`),
		"an artifact's name": f(`INSERT INTO memd.artifacts (tenant_no, subject_no, session_no, artifact_id, name_digest, sealed_name, month, source_time, created_at)
			VALUES ($t, $u, $s, gen_random_uuid(), substr(sha256('new'), 1, 16), '', $m, $at, now())`),
		"a chunk": f(`INSERT INTO memd.artifact_chunks (tenant_no, subject_no, session_no, version_id, chunk_no, sealed)
			SELECT tenant_no, subject_no, session_no, version_id, 77, '' FROM memd.artifact_versions WHERE tenant_no = $t AND session_no = $s LIMIT 1`),
	}
}

// While the key has gone and the rows are yet to go nobody is told of an error, and
// nobody of September.
func TestMonth_WithoutAKeyIsNotThere(t *testing.T) {
	m := newMonths(t)
	m.live(m.tenant, september, "alice")
	m.live(m.tenant, october, "alice")
	m.live(m.tenant, november, "alice")
	m.shows(m.tenant, "alice", september, october, november) // In memory on both replicas.
	m.StopWorker()
	m.run(m.tenant)
	r := m.runner()
	r.Clock = m.calendar
	for _, e := range m.plan(m.tenant) {
		if e.State != erasure.StateAccepted {
			continue
		}
		for _, s := range []erasure.Step{erasure.StepBury, erasure.StepPuncture, erasure.StepRotate} {
			if err := erasure.RunStep(t.Context(), r, m.job(erasure.Job{Tenant: m.tenant.No, ID: e.Request}), s); err != nil {
				t.Fatalf("%v: %v", s, err)
			}
		}
	}
	if n := m.count(`SELECT count(*) FROM memd.memories WHERE tenant_no = $1 AND month = $2`, m.tenant.No, int(monthNamed(september))); n != 2 {
		t.Fatalf("%d rows of September: the test is about those that are there", n)
	}
	m.shows(m.tenant, "alice", october, november)
	// Nor of one that loads the scope only now.
	cold := m.Deaf()
	if got, err := cold.Memory.Search(t.Context(), m.tenant, memory.Query{Scope: user("alice"), Vector: vector(), TopK: memd.MaxTopK}); err != nil || len(got.Hits) != 4 {
		t.Errorf("a replica that loads the scope now: %d hits, %v", len(got.Hits), err)
	}
}

// A worker expires what is due by itself.
func TestMonth_IsExpiredByTheWorkerItself(t *testing.T) {
	m := newMonths(t)
	m.live(m.tenant, september, "alice")
	m.live(m.tenant, october, "alice")
	m.live(m.tenant, november, "alice")
	m.StopWorker()
	m.exec(`DELETE FROM memd_jobs.river_job`) // It looked an hour ago.
	m.StartWorker()
	m.within(60*time.Second, "September expired", func() bool {
		return m.count(`SELECT count(*) FROM memd.erasures WHERE tenant_no = $1 AND kind = 5 AND state = 4`, m.tenant.No) == 2
	})
	m.shows(m.tenant, "alice", october, november)
	if n := m.count(`SELECT count(*) FROM memd_jobs.river_job WHERE kind = 'memd_retention' AND args->>'tenant' = $1`, fmt.Sprint(m.tenant.No)); n != 1 {
		t.Errorf("%d jobs of the tenant's retention", n)
	}
}
