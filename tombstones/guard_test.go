package tombstones_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
)

// TestGuard_Refusals runs every refusal by hand-written SQL. Each case comes
// with its positive control: the same statement before there was a reason.
func TestGuard_Refusals(t *testing.T) {
	b := setup(t)
	bystander := b.user()
	cases := map[string]struct {
		state string
		// forbid makes the reason and returns nothing; sql is asked twice.
		forbid func(u user)
		sql    func(u user) string
	}{
		"a fenced owner": {"MD001", func(u user) { b.fence(u) }, func(u user) string {
			return insert(row{owner: u, contributor: bystander})
		}},
		"a fenced contributor, inline": {"MD001", func(u user) { b.fence(u) }, func(u user) string {
			return insert(row{owner: bystander, contributor: u, session: u.session})
		}},
		"a fenced contributor among the further ones": {"MD001", func(u user) { b.fence(u) }, func(u user) string {
			id := uuid.New()
			return insert(row{id: id, owner: bystander, more: 1}) + ";" + further(id, u)
		}},
		"a fenced user's new session": {"MD001", func(u user) { b.fence(u) }, func(u user) string {
			return insertSession(u, b.nextSession(u), newRef(), "now()")
		}},
		"a fence that still drains": {"MD001", func(u user) {
			b.must(b.sudo(fmt.Sprintf(`INSERT INTO memd.fences VALUES (%d, %s, 1, now(), gen_random_uuid(), now())`, u.tenant, lit(u.ref))))
		}, func(u user) string { return insert(row{owner: u}) }},
		"a buried session": {"MD002", b.buryFirst, func(u user) string {
			return insert(row{owner: u, session: u.session})
		}},
		"a buried session among the further contributions": {"MD002", b.buryFirst, func(u user) string {
			id := uuid.New()
			return insert(row{id: id, owner: bystander, more: 1}) + ";" + further(id, u)
		}},
		"a session that is a stub": {"MD002", func(u user) {
			b.must(b.sudo(fmt.Sprintf(`UPDATE memd.sessions SET state = 2 WHERE tenant_no = %d AND subject_no = %d`, u.tenant, u.no)))
		}, func(u user) string { return insert(row{owner: u, session: u.session}) }},
		"a retired subject": {"MD006", b.retire, func(u user) string {
			return insert(row{owner: bystander, contributor: u})
		}},
		"no source time after an erasure": {"MD012", func(u user) { b.lift(u, b.fence(u), time.Now()) }, func(u user) string {
			return insert(row{owner: u})
		}},
		"a source older than the erasure": {"MD005", func(u user) { b.lift(u, b.fence(u), time.Now()) }, func(u user) string {
			return insert(row{owner: u, sourceTime: "now() - interval '1 hour'"})
		}},
		"a session older than the erasure": {"MD005", func(u user) { b.lift(u, b.fence(u), time.Now()) }, func(u user) string {
			return insertSession(u, b.nextSession(u), newRef(), "now() - interval '1 hour'")
		}},
		"a session without a time after an erasure": {"MD012", func(u user) { b.lift(u, b.fence(u), time.Now()) }, func(u user) string {
			return insertSession(u, b.nextSession(u), newRef(), "NULL")
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b.t = t
			u := b.user()
			b.allowed(c.sql(u))
			c.forbid(u)
			b.refused(c.state, c.sql(u))
			b.allowed(insert(row{owner: bystander})) // Nobody else is touched.
		})
	}
	b.t = t
}

func TestGuard_AdmissionOfSomebodyNeverSeen(t *testing.T) {
	b := setup(t)
	u := user{tenant: b.tenant, ref: newRef(), no: 1<<40 | 900}
	request := b.fence(u) // Nobody of that ref was ever seen.
	b.refused("MD001", insertSubject(u))
	b.lift(u, request, time.Now())
	b.refused("MD012", insertSubject(u))
	b.refused("MD005", insertSubjectSince(u, "now() - interval '1 second'"))
	b.allowed(insertSubjectSince(u, "now() + interval '1 second'"))
	b.refused("MD012", insert(row{owner: u}))
	b.allowed(insert(row{owner: u, sourceTime: "now() + interval '1 second'"}))
}

func TestGuard_UnknownNumbers(t *testing.T) {
	b := setup(t)
	u := b.user()
	stranger := user{tenant: b.tenant, no: 1<<40 | 77777}
	b.refused("MD006", insert(row{owner: stranger}))
	b.refused("MD006", insert(row{owner: u, contributor: stranger}))
	b.refused("MD006", insert(row{owner: u, session: 1<<40 | 77777}))
	b.refused("MD006", insertSession(stranger, 1<<40|5, newRef(), "NULL"))
	b.refused("MD006", fmt.Sprintf(`SELECT memd.next_session_nos(%d, %d, 1)`, b.tenant, stranger.no))
	id := b.store(row{owner: u})
	b.refused("MD006", further(id, stranger))
	// Another tenant's numbers are strangers' here, even where they are equal.
	other := b.userOf(b.newTenant("globex", 2))
	b.refused("MD006", insert(row{owner: user{tenant: b.tenant, no: other.no + 500}}))
}

func TestGuard_TenantNotActive(t *testing.T) {
	b := setup(t)
	for state := 1; state <= 7; state++ {
		no := b.newTenant(fmt.Sprintf("state%d", state), 2)
		u := b.userOf(no)
		id := b.store(row{owner: u})
		b.must(b.sudo(fmt.Sprintf(`UPDATE memd.tenants SET state = %d WHERE tenant_no = %d`, state, no)))
		statements := []string{
			insert(row{owner: u}), insertSession(u, b.nextSession(u), newRef(), "NULL"),
			insertSubject(user{tenant: no, ref: newRef(), no: 1<<40 | 500}),
			fmt.Sprintf(`UPDATE memd.memories SET expires_at = now() WHERE tenant_no = %d AND memory_id = '%s'`, no, id),
		}
		for _, sql := range statements {
			if state == 2 {
				b.allowed(sql)
			} else {
				b.refused("MD004", sql)
			}
		}
	}
	ghost := user{tenant: 4711, ref: newRef(), no: 1<<40 | 1}
	b.refused("MD004", insertSubject(ghost))
	b.refused("MD004", insert(row{owner: ghost}))
}

func TestGuard_Isolation(t *testing.T) {
	b := setup(t)
	u := b.user()
	for level, state := range map[string]string{"REPEATABLE READ": "MD007", "SERIALIZABLE": "MD007", "READ UNCOMMITTED": "MD007"} {
		b.refused(state, "BEGIN ISOLATION LEVEL "+level+";"+insert(row{owner: u})+";COMMIT")
		b.refused(state, "BEGIN ISOLATION LEVEL "+level+";"+insertSession(u, b.nextSession(u), newRef(), "NULL")+";COMMIT")
		b.refused(state, "BEGIN ISOLATION LEVEL "+level+";"+insertSubject(user{tenant: b.tenant, ref: newRef(), no: 1<<40 | 500})+";COMMIT")
		b.refused(state, fmt.Sprintf("BEGIN ISOLATION LEVEL %s; SELECT memd.enter(%d, '{%d}'); COMMIT", level, b.tenant, u.no))
	}
	// A snapshot that is older than the fence is what it is about.
	early := b.connect("memd_app")
	b.must(run(t.Context(), early, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM memd.memories"))
	b.fence(u)
	if err := run(t.Context(), early, insert(row{owner: u})); stateOf(err) != "MD007" {
		t.Errorf("a snapshot older than the fence: %v", err)
	}
}

func TestGuard_TooManySubjects(t *testing.T) {
	b := setup(t)
	rows := make([]row, memd.MaxSubjects+1)
	var numbers []string
	for i := range rows {
		u := user{tenant: b.tenant, ref: newRef()}
		b.admit(&u)
		rows[i] = row{owner: u}
		numbers = append(numbers, fmt.Sprint(int64(u.no)))
	}
	b.allowed(insert(rows[:memd.MaxSubjects]...))
	b.refused("MD011", insert(rows...))
	b.refused("MD011", fmt.Sprintf("SELECT memd.enter(%d, '{%s}')", b.tenant, strings.Join(numbers, ",")))
	b.refused("MD011", fmt.Sprintf(`UPDATE memd.memories SET edited = true WHERE tenant_no = %d;`, b.tenant)+insert(rows...))
}

func TestGuard_DeletedMemoriesStayDeleted(t *testing.T) {
	b := setup(t)
	u := b.user()
	remove := func(id uuid.UUID) string {
		return fmt.Sprintf(`DELETE FROM memd.memories WHERE tenant_no = %d AND memory_id = '%s'`, b.tenant, id)
	}
	id := b.store(row{owner: u})
	b.allowed(remove(id))
	b.allowed(remove(id)) // Deleting what is gone succeeds.
	b.refused("MD003", insert(row{id: id, owner: u}))
	b.refused("MD003", insert(row{id: id, owner: u, version: 1 << 30}))
	b.refused("MD003", insert(row{id: id, owner: b.user()}))
	again := b.store(row{owner: u})
	b.refused("MD003", "BEGIN;"+remove(again)+";"+insert(row{id: again, owner: u})+";COMMIT")
	if n := b.count(fmt.Sprintf(`SELECT count(*) FROM memd.memories WHERE memory_id = '%s'`, again)); n != 1 {
		t.Errorf("the refused transaction deleted: %d rows", n)
	}

	// A delete that is not yet committed counts when it is.
	raced := b.store(row{owner: u})
	other := b.connect("memd_app")
	b.must(run(t.Context(), b.app, "BEGIN;"+remove(raced)))
	done := make(chan error, 1)
	go func() { done <- run(t.Context(), other, insert(row{id: raced, owner: u})) }()
	b.waitForLock(other)
	b.must(run(t.Context(), b.app, "COMMIT"))
	if err := <-done; stateOf(err) != "MD003" {
		t.Errorf("re-inserted while it was being deleted: %v", err)
	}
}

func TestGuard_ContributionsAreAsClaimed(t *testing.T) {
	b := setup(t)
	u, v, w := b.user(), b.user(), b.user()
	set := func(id uuid.UUID, n int) string {
		return fmt.Sprintf(`UPDATE memd.memories SET more_contributions = %d WHERE tenant_no = %d AND memory_id = '%s'`, n, b.tenant, id)
	}
	id := uuid.New()
	b.refused("MD008", insert(row{owner: u, more: 1}))
	b.refused("MD008", "BEGIN;"+insert(row{id: id, owner: u, more: 2})+";"+further(id, v)+";COMMIT")
	b.refused("MD008", "BEGIN;"+insert(row{id: id, owner: u, more: 0})+";"+further(id, v)+";COMMIT")
	b.allowed("BEGIN;" + insert(row{id: id, owner: u, more: 2}) + ";" + further(id, v, w) + ";COMMIT")
	for _, n := range []int{0, 1, 3} {
		b.refused("MD008", set(id, n))
		b.refused("MD008", "BEGIN; SET CONSTRAINTS ALL DEFERRED;"+set(id, n)+"; SET CONSTRAINTS ALL DEFERRED; COMMIT")
		b.refused("MD008", "BEGIN; SET CONSTRAINTS ALL IMMEDIATE;"+set(id, n)+";COMMIT")
	}
	b.refused("MD008", further(id, u))
	b.allowed("BEGIN; SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED;" + set(id, 3) + ";" + further(id, u) + ";COMMIT")
	// Nor by two at once, each of which would be right alone.
	one := b.connect("memd_app")
	shared := b.store(row{owner: u})
	b.must(run(t.Context(), one, "BEGIN;"+set(shared, 1)+";"+further(shared, v)))
	done := make(chan error, 1)
	go func() {
		done <- run(t.Context(), b.app, "BEGIN;"+set(shared, 1)+";"+further(shared, w)+";COMMIT")
	}()
	b.waitForLock(b.app)
	b.must(run(t.Context(), one, "COMMIT"))
	if err := <-done; stateOf(err) != "MD008" {
		t.Errorf("two at once: %v", err)
	}
	b.must(run(t.Context(), b.app, "ROLLBACK"))
	// A source of which only the number is known is a contribution like others.
	b.fence(v)
	b.refused("MD001", fmt.Sprintf(`UPDATE memd.memories SET edited = true WHERE tenant_no = %d AND memory_id = '%s'`, b.tenant, id))
}

// waitForLock returns when the connection's statement waits for a lock.
func (b *bundle) waitForLock(conn *pgx.Conn) {
	b.t.Helper()
	b.eventually("a statement waits for a lock", func() bool {
		return b.count(fmt.Sprintf(`SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND wait_event_type = 'Lock'`, conn.PgConn().PID())) == 1
	})
}

// eventually polls, because nothing tells when a backend begins to wait.
func (b *bundle) eventually(what string, ok func() bool) {
	b.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); !ok(); <-tick.C {
		if time.Since(began) > 30*time.Second {
			b.t.Fatalf("in vain: %s", what)
		}
	}
}

// What constraints would refuse the guard refuses, alone and among good rows.
func TestGuard_RowsAreAsTheyMustBe(t *testing.T) {
	b := setup(t)
	u := b.user()
	id := b.store(row{owner: u})
	b.refused("23514", insert(row{owner: u, more: 1024}))
	b.refused("23514", insert(row{owner: u}, row{owner: u, more: -1}))
	b.refused("23514", insert(row{owner: u}, row{owner: b.user(), more: -1}))
	b.refused("23514", strings.Replace(insert(row{owner: u}), ", 1, 600,", ", 4, 600,", 1))
	b.refused("23514", strings.Replace(insert(row{owner: u}), ", 1, 600,", ", 1, 0,", 1))
	b.refused("23514", strings.Replace(insert(row{owner: u}), `'\x00')`, `NULL)`, 1))
	for _, change := range []string{
		"kind = 0", "month = -1", "more_contributions = -1", "dimension = -1", "dimension = 3", `sealed_vector = '\x00'`, "sealed_text = NULL",
	} {
		b.refused("23514", fmt.Sprintf(`UPDATE memd.memories SET %s WHERE tenant_no = %d AND memory_id = '%s'`, change, b.tenant, id))
	}
	b.allowed(fmt.Sprintf(`UPDATE memd.memories SET dimension = 3, sealed_vector = '\x00', sealed_text = NULL
		WHERE tenant_no = %d AND memory_id = '%s'`, b.tenant, id))
}
