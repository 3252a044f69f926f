package tombstones_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
)

const denied = "42501" // insufficient_privilege

// TestShut_WhatTheApplicationMayNot: everything that would take the guard away,
// or what it reads.
func TestShut_WhatTheApplicationMayNot(t *testing.T) {
	b := setup(t)
	u := b.user()
	request := b.fence(u)
	b.buryFirst(u)
	id := b.store(row{owner: b.user()})
	ref := lit(u.ref)
	for name, sql := range map[string]string{
		"a temporary table":                 `CREATE TEMP TABLE fences (a int)`,
		"a temporary view":                  `CREATE TEMP VIEW fences AS SELECT 1`,
		"a temporary table of a query":      `SELECT 1 AS a INTO TEMP fences`,
		"a table":                           `CREATE TABLE memd.t (a int)`,
		"a table in public":                 `CREATE TABLE public.t (a int)`,
		"a schema":                          `CREATE SCHEMA s`,
		"a function":                        `CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'`,
		"a temporary function":              `CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'`,
		"an operator":                       `CREATE OPERATOR public.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = int8ne)`,
		"a cast":                            `CREATE CAST (bytea AS uuid) WITHOUT FUNCTION`,
		"a trigger":                         `CREATE TRIGGER t AFTER INSERT ON memd.memories EXECUTE FUNCTION memd.stamp_memory()`,
		"a rule":                            `CREATE RULE r AS ON INSERT TO memd.memories DO INSTEAD NOTHING`,
		"a child table":                     `CREATE TABLE public.t () INHERITS (memd.memories)`,
		"replica role":                      `SET session_replication_role = replica`,
		"replica role, by function":         `SELECT set_config('session_replication_role', 'replica', false)`,
		"replica role, for the role":        `ALTER ROLE memd_app SET session_replication_role = replica`,
		"triggers off":                      `ALTER TABLE memd.memories DISABLE TRIGGER ALL`,
		"user triggers off":                 `ALTER TABLE memd.memories DISABLE TRIGGER USER`,
		"one trigger off":                   `ALTER TABLE memd.memories DISABLE TRIGGER guard_insert`,
		"dropping a trigger":                `DROP TRIGGER guard_insert ON memd.memories`,
		"dropping a function":               `DROP FUNCTION memd.guard_sources() CASCADE`,
		"replacing a function":              `CREATE OR REPLACE FUNCTION memd.guard_sources() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`,
		"another role":                      `SET ROLE memd_worker`,
		"another session's role":            `SET SESSION AUTHORIZATION memd_worker`,
		"a grant to itself":                 `GRANT memd_worker TO memd_app`,
		"TRUNCATE":                          `TRUNCATE memd.memories CASCADE`,
		"TRUNCATE of fences":                `TRUNCATE memd.fences`,
		"moving a row to another owner":     fmt.Sprintf(`UPDATE memd.memories SET owner_no = %d WHERE memory_id = '%s'`, u.no, id),
		"another inline contributor":        fmt.Sprintf(`UPDATE memd.memories SET contributor_no = %d WHERE memory_id = '%s'`, u.no, id),
		"another contributing session":      `UPDATE memd.memories SET contributor_session = contributor_session`,
		"another tenant":                    `UPDATE memd.memories SET tenant_no = tenant_no`,
		"another row id":                    `UPDATE memd.memories SET memory_id = gen_random_uuid()`,
		"a version":                         `UPDATE memd.memories SET version = 1`,
		"a change stamp":                    `UPDATE memd.memories SET changed_xid = 1`,
		"another owner on conflict":         insert(row{id: id, owner: b.user()}) + ` ON CONFLICT (tenant_no, memory_id) DO UPDATE SET owner_no = excluded.owner_no`,
		"taking a contribution away":        `DELETE FROM memd.memory_contributions`,
		"changing a contribution":           `UPDATE memd.memory_contributions SET contributor_no = contributor_no`,
		"taking lineage away":               `DELETE FROM memd.memory_sources`,
		"changing lineage":                  `UPDATE memd.memory_sources SET ordinal = ordinal`,
		"another ref":                       `UPDATE memd.subjects SET user_ref = user_ref`,
		"another ref, locked":               `SELECT 1 FROM memd.subjects FOR UPDATE`,
		"another number":                    `UPDATE memd.subjects SET subject_no = subject_no`,
		"un-retiring":                       `UPDATE memd.subjects SET retired_at = NULL`,
		"a subject that is retired already": fmt.Sprintf(`INSERT INTO memd.subjects (tenant_no, subject_no, app, kind, user_ref, sealed_user_id, admitted_at, retired_at) VALUES (%d, 1, 'a', 1, %s, '', now(), now())`, b.tenant, ref),
		"a session counter":                 fmt.Sprintf(`INSERT INTO memd.subjects (tenant_no, subject_no, app, kind, user_ref, sealed_user_id, admitted_at, last_session) VALUES (%d, 1, 'a', 1, %s, '', now(), 1)`, b.tenant, ref),
		"dropping a subject":                `DELETE FROM memd.subjects`,
		"another session ref":               `UPDATE memd.sessions SET session_ref = session_ref`,
		"reviving a session":                `UPDATE memd.sessions SET state = 1`,
		"dropping a session":                `DELETE FROM memd.sessions`,
		"a counter":                         `UPDATE memd.subject_counters SET last = 0`,
		"reading a counter":                 `SELECT * FROM memd.subject_counters`,
		"the generation":                    `UPDATE memd.installation SET generation = 1`,
		"a fence":                           fmt.Sprintf(`INSERT INTO memd.fences VALUES (%d, %s, 3, now(), '%s', now())`, b.tenant, lit(newRef()), request),
		"lifting a fence":                   `UPDATE memd.fences SET state = 3`,
		"lifting a fence through its view":  `UPDATE memd.fence_states SET state = 3`,
		"dropping a fence":                  `DELETE FROM memd.fences`,
		"dropping a fence through its view": `DELETE FROM memd.fence_states`,
		"locking a fence":                   `SELECT 1 FROM memd.fences FOR SHARE`,
		"dropping a tombstone":              `DELETE FROM memd.tombstones`,
		"changing a tombstone":              `UPDATE memd.tombstones SET ref = ref`,
		"a tombstone through a view":        `DELETE FROM memd.dead_memories`,
		"a tombstone":                       fmt.Sprintf(`INSERT INTO memd.tombstones VALUES (%d, 1, %s, NULL, NULL, 1, NULL, now())`, b.tenant, ref),
		"a hide":                            fmt.Sprintf(`INSERT INTO memd.hides VALUES (%d, 1, 1, 0, 1, '%s')`, b.tenant, request),
		"dropping a hide":                   `DELETE FROM memd.hides`,
		"dropping a hide through its view":  `DELETE FROM memd.hidden_contributions`,
		"a tree":                            fmt.Sprintf(`INSERT INTO memd.key_trees VALUES (%d, 1, '', '', '', '', now())`, b.tenant),
		"changing a tree":                   `UPDATE memd.key_trees SET sealed = ''`,
		"dropping a tree":                   `DELETE FROM memd.key_trees`,
		"an epoch":                          `UPDATE memd.tenant_keys SET epoch = 1`,
		"an epoch through its view":         `UPDATE memd.key_epochs SET epoch = 1`,
		"a puncture":                        fmt.Sprintf(`INSERT INTO memd.punctures VALUES (%d, '0', '%s', now())`, b.tenant, request),
		"reading punctures":                 `SELECT 1 FROM memd.punctures`,
		"the rotation journal":              `UPDATE memd.rotations SET state = 9`,
		"dropping the rotation journal":     `DELETE FROM memd.rotations`,
		"an erasure's state":                `UPDATE memd.erasures SET state = 3`,
		"dropping an erasure":               `DELETE FROM memd.erasures`,
		"an erasure's journal":              `UPDATE memd.erasure_steps SET done = true`,
		"writing an erasure's journal":      fmt.Sprintf(`INSERT INTO memd.erasure_steps VALUES (%d, '%s', 1, true, '{}', now())`, b.tenant, request),
		"dropping an erasure's journal":     `DELETE FROM memd.erasure_steps`,
		"the state of a tenant":             `UPDATE memd.tenants SET state = 2`,
		"an API key's roles":                `UPDATE memd.principals SET roles = 31`,
		"dropping an API key":               `DELETE FROM memd.principals`,
		"the guard, by hand":                `SELECT memd.guard('{1}', '{1}', '{1}', '{now}', true)`,
		"one of the guard's locks":          `SELECT memd.try_lock(1, 1)`,
		"the guard's locks":                 `SELECT memd.lock_refs('{}')`,
		"the guard's locks, waiting":        `SELECT memd.wait_refs('{}')`,
		"a trigger's function":              `SELECT memd.guard_memories_insert()`,
		"hardening":                         `SELECT memd.harden()`,
		"the server's files":                `COPY memd.memories TO '/tmp/rows'`,
		"the server's programs":             `COPY memd.memories TO PROGRAM 'cat'`,
		"ending a superuser's session":      fmt.Sprintf(`SELECT pg_terminate_backend(%d)`, b.count(`SELECT pg_backend_pid()`)),
		"a subscription":                    `CREATE PUBLICATION p FOR TABLE memd.memories`,
		"a security label":                  `COMMENT ON TABLE memd.memories IS 'x'`,
	} {
		t.Run(name, func(t *testing.T) {
			b.t = t
			b.refused(denied, sql)
		})
	}
	b.t = t
	if n := b.count(`SELECT count(*) FROM memd.fences WHERE state = 2`); n != 1 {
		t.Errorf("%d fences are up, want 1", n)
	}
}

// TestShut_ShadowedNames gives the application what it must not have, TEMP and
// a schema of its own, and shows that the guard reads its own tables and uses
// its own operators all the same. Revoking is one protection, qualified names
// another; each has to hold alone.
func TestShut_ShadowedNames(t *testing.T) {
	b := setup(t)
	b.must(b.sudo(fmt.Sprintf(`GRANT TEMPORARY ON DATABASE "%s" TO memd_app`, b.db.Name)))
	b.must(b.sudo(`CREATE SCHEMA evil; GRANT ALL ON SCHEMA evil TO memd_app`))
	u, bystander := b.user(), b.user()
	row1 := b.store(row{owner: u, session: u.session})
	b.fence(u)
	b.buryFirst(bystander)
	conn := b.connect("memd_app")
	b.app = conn

	t.Run("temporary tables", func(t *testing.T) {
		b.t = t
		for _, name := range []string{"fences", "subjects", "sessions", "tombstones", "tenants", "memories", "memory_contributions", "hides", "installation"} {
			b.allowed("CREATE TEMP TABLE " + name + " (LIKE memd." + name + ")")
		}
		b.allowed(`CREATE TEMP TABLE new_rows (LIKE memd.memories); CREATE TEMP TABLE old_rows (LIKE memd.memories); CREATE TEMP TABLE unnest (a int)`)
		b.allowed(`SELECT count(*) FROM fences`) // The shadow is what the session sees.
	})
	t.Run("functions and operators", func(t *testing.T) {
		b.t = t
		b.allowed(`
			CREATE FUNCTION evil.no(bigint, bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';
			CREATE FUNCTION evil.no(bytea, bytea) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';
			CREATE FUNCTION evil.no(smallint, smallint) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';
			CREATE FUNCTION evil.no(smallint, int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';
			CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.no);
			CREATE OPERATOR evil.= (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = evil.no);
			CREATE OPERATOR evil.= (LEFTARG = smallint, RIGHTARG = smallint, FUNCTION = evil.no);
			CREATE OPERATOR evil.= (LEFTARG = smallint, RIGHTARG = int, FUNCTION = evil.no);
			CREATE FUNCTION evil.pg_try_advisory_xact_lock_shared(int, int) RETURNS boolean LANGUAGE sql AS 'SELECT true';
			CREATE FUNCTION evil.get_byte(bytea, int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 0';
			CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE sql AS $$SELECT 'read committed'$$;
			CREATE FUNCTION evil.has_table_privilege(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
			CREATE FUNCTION evil.array_agg(text) RETURNS text LANGUAGE sql AS 'SELECT NULL';
			SET search_path = evil, pg_temp, pg_catalog`)
		b.allowed(`DO $$ BEGIN ASSERT NOT (1::bigint = 1::bigint), 'the operator is not used'; END $$`)
	})
	b.t = t
	b.refused("MD001", insert(row{owner: u}))
	b.refused("MD001", fmt.Sprintf(`UPDATE memd.memories SET edited = true WHERE memory_id = '%s'`, row1))
	b.refused("MD001", insertSession(u, 1<<40|99, newRef(), "now()"))
	gone := newRef()
	b.fence(user{tenant: b.tenant, ref: gone})
	b.refused("MD001", insertSubject(user{tenant: b.tenant, ref: gone, no: 1<<40 | 99}))
	b.refused("MD002", insert(row{owner: bystander, session: bystander.session}))
	id := uuid.New()
	b.refused("MD001", "BEGIN;"+insert(row{id: id, owner: bystander, more: 1})+";"+further(id, u)+"; COMMIT")
	b.refused("MD008", "BEGIN;"+insert(row{owner: bystander, more: 1})+"; COMMIT")
	b.refused("MD007", "BEGIN ISOLATION LEVEL REPEATABLE READ;"+insert(row{owner: bystander})+"; COMMIT")
	b.refused("MD001", fmt.Sprintf(`INSERT INTO memd.memory_sources (tenant_no, memory_id, ordinal, source_memory) VALUES (%d, '%s', 1, gen_random_uuid())`, b.tenant, row1))
	b.refused("MD006", insert(row{owner: user{tenant: b.tenant, no: 1<<40 | 4711}}))
	b.allowed(insert(row{owner: bystander})) // The positive control.

	// A trigger of its own, inside which other rules might hold.
	b.allowed(`
		CREATE TEMP TABLE mine (a int);
		CREATE FUNCTION evil.inside() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ` + insert(row{owner: u}) + `; RETURN NULL; END $$;
		CREATE TRIGGER inside AFTER INSERT ON pg_temp.mine EXECUTE FUNCTION evil.inside()`)
	b.refused("MD001", `INSERT INTO pg_temp.mine VALUES (1)`)
	// The guard's triggers are no one else's to use.
	b.refused(denied, `CREATE TRIGGER g AFTER INSERT ON pg_temp.mine EXECUTE FUNCTION memd.guard_sources()`)
	b.refused(denied, `CREATE TRIGGER g AFTER INSERT ON pg_temp.mine EXECUTE FUNCTION memd.bury_memories()`)
}

// TestShut_TheLockIsTaken looks at what a writer holds before it commits: the
// lock of the owner and of every contributor, whatever wrote the row.
func TestShut_TheLockIsTaken(t *testing.T) {
	b := setup(t)
	u, v, w := b.user(), b.user(), b.user()
	id := uuid.New()
	for name, c := range map[string]struct {
		sql  string
		want []user
	}{
		"an owner and an inline contributor": {insert(row{owner: u, contributor: v}), []user{u, v}},
		"further contributors":               {insert(row{id: id, owner: u, more: 2}) + ";" + further(id, v, w), []user{u, v, w}},
		"a session":                          {insertSession(u, b.nextSession(u), newRef(), "NULL"), []user{u}},
		"entering":                           {fmt.Sprintf(`SELECT memd.enter(%d, '{%d,%d}')`, b.tenant, w.no, v.no), []user{v, w}},
	} {
		t.Run(name, func(t *testing.T) {
			b.t = t
			conn := b.connect("memd_app")
			b.must(run(t.Context(), conn, "BEGIN;"+c.sql))
			for _, x := range []user{u, v, w} {
				want := 0
				for _, y := range c.want {
					if x.no == y.no {
						want = 1
					}
				}
				if got := b.locksOf(x, conn.PgConn().PID()); got != want {
					t.Errorf("%d locks of a subject, want %d", got, want)
				}
			}
			b.must(run(t.Context(), conn, "ROLLBACK"))
		})
	}
	b.t = t
}

// locksOf counts the locks of a user's that a backend holds, asking by the
// key that the fence's drain uses.
func (b *bundle) locksOf(u user, pid uint32) int {
	b.t.Helper()
	return b.count(fmt.Sprintf(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND pid = %d
		AND classid::bigint = %d AND objid::bigint = %d`, pid, beUint32(u.ref[0:4]), beUint32(u.ref[4:8])))
}

// pauseBeforeLocking has the guard wait, before it takes a user's lock, for
// lock 4711 of the other space, which the test holds.
func (b *bundle) pauseBeforeLocking() {
	b.t.Helper()
	b.must(b.sudo(`
		ALTER FUNCTION memd.try_lock(integer, integer) RENAME TO try_lock_at_once;
		CREATE FUNCTION memd.try_lock(p_hi integer, p_lo integer) RETURNS boolean LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN memd.try_lock_at_once(p_hi, p_lo); END $$`))
}

// TestGuard_LooksAfterItLocked: whatever was decided before the lock was there
// counts, and so does what was decided while the writer waited for it.
func TestGuard_LooksAfterItLocked(t *testing.T) {
	writes := map[string]func(b *bundle, u user) string{
		"a memory":  func(b *bundle, u user) string { return insert(row{owner: u}) },
		"a session": func(b *bundle, u user) string { return insertSession(u, b.nextSession(u), newRef(), "now()") },
		"a subject": func(b *bundle, u user) string {
			return insertSubject(user{tenant: b.tenant, ref: u.ref, no: 1<<40 | 900})
		},
	}
	for name, sql := range writes {
		t.Run(name+", fenced before it locked", func(t *testing.T) {
			b := setup(t)
			b.pauseBeforeLocking()
			u := b.user()
			if name == "a subject" {
				b.retire(u)
			}
			statement := sql(b, u)
			other := b.connect("")
			b.must(run(t.Context(), other, "SELECT pg_advisory_lock(4711)"))
			done := make(chan error, 1)
			go func() { done <- run(t.Context(), b.app, statement) }()
			b.waitForLock(b.app)
			b.fence(u) // Nobody holds the user's lock yet.
			b.must(run(t.Context(), other, "SELECT pg_advisory_unlock(4711)"))
			if err := <-done; stateOf(err) != "MD001" {
				t.Errorf("got %v", err)
			}
		})
		t.Run(name+", fenced while it waited for the lock", func(t *testing.T) {
			b := setup(t)
			u := b.user()
			if name == "a subject" {
				b.retire(u)
			}
			statement := sql(b, u)
			drain := b.connect("") // Of another request, say a session's.
			b.must(run(t.Context(), drain, fmt.Sprintf("SELECT pg_advisory_lock(%d, %d)", int32(beUint32(u.ref[0:4])), int32(beUint32(u.ref[4:8])))))
			done := make(chan error, 1)
			go func() { done <- run(t.Context(), b.app, statement) }()
			b.waitForLock(b.app)
			b.must(b.sudo(fmt.Sprintf(`INSERT INTO memd.fences VALUES (%d, %s, 1, now(), gen_random_uuid(), now())`, u.tenant, lit(u.ref))))
			b.must(run(t.Context(), drain, "SELECT pg_advisory_unlock_all()"))
			if err := <-done; stateOf(err) != "MD001" {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestGuard_WhoeverIsAdmittedMeanwhile: a number that is admitted after the
// guard looked whom to lock must not pass without a lock. A pause is put into
// the window, in which the admission commits.
func TestGuard_WhoeverIsAdmittedMeanwhile(t *testing.T) {
	b := setup(t)
	b.pauseBeforeLocking()
	u := b.user()
	late := user{tenant: b.tenant, ref: newRef(), no: 1<<40 | 900}
	other := b.connect("")
	b.must(run(t.Context(), other, "SELECT pg_advisory_lock(4711)"))
	done := make(chan error, 1)
	go func() {
		done <- run(t.Context(), b.app, "BEGIN;"+insert(row{owner: u}, row{owner: late, sourceTime: "now()"}))
	}()
	b.waitForLock(b.app)
	b.must(run(t.Context(), other, insertSubject(late)+"; SELECT pg_advisory_unlock(4711)"))
	err := <-done
	if held := b.locksOf(late, b.app.PgConn().PID()); err == nil && held != 1 {
		t.Errorf("wrote for somebody whose lock it does not hold")
	} else if err != nil && stateOf(err) != "MD006" {
		t.Error(err)
	}
	b.must(run(t.Context(), b.app, "ROLLBACK"))
	b.allowed(insert(row{owner: late})) // The next try finds them.
}
