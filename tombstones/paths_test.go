package tombstones_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// TestGuard_EveryWayToWrite stores the same row by every form of statement that
// PostgreSQL has for it: allowed before the fence, refused behind it, and
// nothing left in the table.
func TestGuard_EveryWayToWrite(t *testing.T) {
	b := setup(t)
	bystander := b.user()
	script := func(sql func(u user) string) func(conn *pgx.Conn, u user) error {
		return func(conn *pgx.Conn, u user) error { return run(t.Context(), conn, sql(u)) }
	}
	source := func(u user) string {
		return fmt.Sprintf(`SELECT %d, gen_random_uuid(), %d, 1, 600, %d, %d, 0, NULL::timestamptz, now(), now(), NULL::timestamptz, 1, '\x'::bytea, '\x00'::bytea`,
			u.tenant, u.no, u.no, u.session)
	}
	ways := map[string]func(conn *pgx.Conn, u user) error{
		"INSERT":            script(func(u user) string { return insert(row{owner: u}) }),
		"INSERT, many rows": script(func(u user) string { return insert(row{owner: bystander}, row{owner: u}, row{owner: bystander}) }),
		"INSERT ... SELECT": script(func(u user) string { return "INSERT INTO memd.memories " + columns + source(u) }),
		"INSERT ... RETURNING": script(func(u user) string {
			return insert(row{owner: u}) + " RETURNING memory_id"
		}),
		"ON CONFLICT DO NOTHING": script(func(u user) string { return insert(row{owner: u}) + " ON CONFLICT DO NOTHING" }),
		"COPY": func(conn *pgx.Conn, u user) error {
			line := fmt.Sprintf("%d\t%s\t%d\t1\t600\t%d\t%d\t2026-01-01\t2026-01-01\t\\\\x00\t\\\\x00\n", u.tenant, uuid.New(), u.no, u.no, u.session)
			_, err := conn.PgConn().CopyFrom(t.Context(), strings.NewReader(line), `COPY memd.memories
				(tenant_no, memory_id, owner_no, kind, month, contributor_no, contributor_session, created_at, updated_at, content_digest, sealed_text) FROM STDIN`)
			return err
		},
		"MERGE, not matched": script(func(u user) string {
			return `MERGE INTO memd.memories m USING (` + source(u) + `) AS s (t, id, o, k, mo, c, cs, mc, st, ca, ua, ex, v, d, x)
				ON m.tenant_no = s.t AND m.memory_id = s.id
				WHEN NOT MATCHED THEN INSERT ` + columns + ` VALUES (t, id, o, k, mo, c, cs, mc, st, ca, ua, ex, v, d, x)`
		}),
		"CTE": script(func(u user) string {
			return "WITH w AS (" + insert(row{owner: u}) + " RETURNING memory_id) SELECT count(*) FROM w"
		}),
		"CTE that nobody reads": script(func(u user) string { return "WITH w AS (" + insert(row{owner: u}) + ") SELECT 1" }),
		"row and contribution in one statement": script(func(u user) string {
			id := uuid.New()
			return "WITH w AS (" + insert(row{id: id, owner: bystander, more: 1}) + ") " + further(id, u)
		}),
		"contribution before its row": script(func(u user) string {
			id := uuid.New()
			return "WITH w AS (" + further(id, u) + ") " + insert(row{id: id, owner: bystander, more: 1})
		}),
		"prepared by name": script(func(u user) string {
			return "PREPARE p AS " + insert(row{owner: u}) + "; EXECUTE p; DEALLOCATE p"
		}),
		"prepared by the protocol": func(conn *pgx.Conn, u user) error {
			_, err := conn.Exec(t.Context(), "INSERT INTO memd.memories "+columns+
				` VALUES ($1, $2, $3, 1, 600, $3, $4, 0, NULL, now(), now(), NULL, 1, '', '\x00')`, u.tenant, uuid.New(), u.no, u.session)
			return err
		},
		"pipeline": func(conn *pgx.Conn, u user) error {
			batch := &pgx.Batch{}
			batch.Queue(insert(row{owner: bystander}))
			batch.Queue("SELECT memd.enter($1, $2)", u.tenant, []int64{int64(bystander.no)})
			batch.Queue(insert(row{owner: u}))
			return conn.SendBatch(t.Context(), batch).Close()
		},
		"portal that is read one row at a time": func(conn *pgx.Conn, u user) error {
			return run(t.Context(), conn, "BEGIN;"+insert(row{owner: bystander})+"; DECLARE c CURSOR FOR SELECT 1; FETCH 1 FROM c;"+
				insert(row{owner: u})+" RETURNING 1; COMMIT")
		},
		"transaction": script(func(u user) string {
			return "BEGIN;" + insert(row{owner: bystander}) + ";" + insert(row{owner: u}) + "; COMMIT"
		}),
		"savepoint that is released": script(func(u user) string {
			return "BEGIN; SAVEPOINT s;" + insert(row{owner: u}) + "; RELEASE s; COMMIT"
		}),
		"after a savepoint that was rolled back": script(func(u user) string {
			return "BEGIN; SAVEPOINT s;" + insert(row{owner: u}) + "; ROLLBACK TO s;" + insert(row{owner: u}) + "; COMMIT"
		}),
		"DO block": script(func(u user) string { return "DO $$ BEGIN " + insert(row{owner: u}) + "; END $$" }),
		"DO block with a commit in it": script(func(u user) string {
			return "DO $$ BEGIN " + insert(row{owner: bystander}) + "; COMMIT; " + insert(row{owner: u}) + "; COMMIT; END $$"
		}),
		"dynamic SQL": script(func(u user) string {
			return "DO $$ BEGIN EXECUTE " + "$q$" + insert(row{owner: u}) + "$q$" + "; END $$"
		}),
		"quoted names and another search_path": script(func(u user) string {
			return `BEGIN; SET LOCAL search_path = memd, pg_temp; ` + strings.Replace(insert(row{owner: u}), "memd.memories", `"memories"`, 1) + "; COMMIT"
		}),
		"a transaction that locked first": script(func(u user) string {
			return fmt.Sprintf("BEGIN; SELECT memd.enter(%d, '{%d}'); ", u.tenant, bystander.no) + insert(row{owner: u}) + "; COMMIT"
		}),
		"a transaction that only defers": script(func(u user) string {
			return "BEGIN; SET CONSTRAINTS ALL DEFERRED; " + insert(row{owner: u}) + "; COMMIT"
		}),
	}
	for name, write := range ways {
		t.Run(name, func(t *testing.T) {
			b.t = t
			u := b.user()
			conn := b.connect("memd_app")
			if err := write(conn, u); err != nil {
				t.Fatalf("before the fence: %v", err)
			}
			before := b.rowsOf(u)
			if before == 0 {
				t.Fatal("wrote nothing before the fence")
			}
			b.fence(u)
			err := write(conn, u)
			if stateOf(err) != "MD001" {
				t.Errorf("behind the fence: %v", err)
			}
			b.must(run(t.Context(), conn, "ROLLBACK"))
			if after := b.rowsOf(u); after != before {
				t.Errorf("%d rows behind the fence, %d before it", after, before)
			}
		})
	}
	b.t = t
}

// rowsOf counts what is a user's, by owner or by contribution.
func (b *bundle) rowsOf(u user) int {
	b.t.Helper()
	return b.count(fmt.Sprintf(sqlRowsOf, u.tenant, u.no))
}

const sqlRowsOf = `
SELECT count(*) FROM memd.memories m WHERE m.tenant_no = %[1]d AND (m.owner_no = %[2]d OR m.contributor_no = %[2]d
  OR EXISTS (SELECT FROM memd.memory_contributions c WHERE c.tenant_no = m.tenant_no AND c.memory_id = m.memory_id AND c.contributor_no = %[2]d))`

// TestGuard_EveryWayToChange is the same for changes of a row that was there
// before the fence: by what it was (OLD) and by what it becomes (NEW).
func TestGuard_EveryWayToChange(t *testing.T) {
	b := setup(t)
	var bystander user
	ways := map[string]func(u user, id uuid.UUID) string{
		"UPDATE of content": func(u user, id uuid.UUID) string {
			return fmt.Sprintf(`UPDATE memd.memories SET sealed_text = '\x01', content_digest = gen_random_uuid()::text::bytea WHERE tenant_no = %d AND memory_id = '%s'`, u.tenant, id)
		},
		"UPDATE of what is no content": func(u user, id uuid.UUID) string {
			return fmt.Sprintf(`UPDATE memd.memories SET expires_at = now() + interval '1 day' WHERE tenant_no = %d AND memory_id = '%s'`, u.tenant, id)
		},
		"UPDATE of everybody's": func(u user, id uuid.UUID) string {
			return fmt.Sprintf(`UPDATE memd.memories SET edited = true WHERE tenant_no = %d AND owner_no IN (%d, %d)`, u.tenant, u.no, bystander.no)
		},
		"ON CONFLICT DO UPDATE": func(u user, id uuid.UUID) string {
			return insert(row{id: id, owner: bystander}) + ` ON CONFLICT (tenant_no, memory_id) DO UPDATE SET sealed_text = '\x02'`
		},
		"MERGE, matched": func(u user, id uuid.UUID) string {
			return fmt.Sprintf(`MERGE INTO memd.memories m USING (SELECT %d::bigint AS t, '%s'::uuid AS id) s
				ON m.tenant_no = s.t AND m.memory_id = s.id WHEN MATCHED THEN UPDATE SET sealed_text = '\x03'`, u.tenant, id)
		},
		"CTE": func(u user, id uuid.UUID) string {
			return fmt.Sprintf(`WITH w AS (UPDATE memd.memories SET sealed_text = '\x04' WHERE tenant_no = %d AND memory_id = '%s') SELECT 1`, u.tenant, id)
		},
		"one more contribution, of somebody else": func(u user, id uuid.UUID) string {
			return fmt.Sprintf(`BEGIN; UPDATE memd.memories SET more_contributions = more_contributions + 1 WHERE tenant_no = %d AND memory_id = '%s';`, u.tenant, id) +
				further(id, b.user()) + "; COMMIT"
		},
		"a source": func(u user, id uuid.UUID) string {
			return fmt.Sprintf(`INSERT INTO memd.memory_sources (tenant_no, memory_id, ordinal, source_memory)
				SELECT %d, '%s', 1 + count(*), gen_random_uuid() FROM memd.memory_sources WHERE memory_id = '%[2]s'`, u.tenant, id)
		},
	}
	for name, sql := range ways {
		t.Run(name, func(t *testing.T) {
			b.t = t
			bystander = b.user()
			u, v := b.user(), b.user()
			own := b.store(row{owner: u})
			inline := b.store(row{owner: bystander, contributor: v})
			b.allowed(sql(u, own))
			b.allowed(sql(u, inline))
			b.fence(u)
			b.fence(v)
			b.refused("MD001", sql(u, own))
			b.refused("MD001", sql(v, inline))
		})
	}
	b.t = t

	t.Run("to and from a fenced owner, by whoever may", func(t *testing.T) {
		b.t = t
		u, v := b.user(), b.user()
		w := b.user()
		owned, given, theirs := b.store(row{owner: u, contributor: w}), b.store(row{owner: w, contributor: u}), b.store(row{owner: v})
		move := func(id uuid.UUID, column string, to user) string {
			return fmt.Sprintf(`UPDATE memd.memories SET %s = %d WHERE tenant_no = %d AND memory_id = '%s'`, column, to.no, b.tenant, id)
		}
		b.fence(u)
		for name, sql := range map[string]string{
			"owner_no, away from a fenced user":       move(owned, "owner_no", v),
			"contributor_no, away from a fenced user": move(given, "contributor_no", v),
			"owner_no, to a fenced user":              move(theirs, "owner_no", u),
			"contributor_no, to a fenced user":        move(theirs, "contributor_no", u),
		} {
			if err := b.sudo(sql); stateOf(err) != "MD001" {
				t.Errorf("%s: %v", name, err)
			}
		}
		b.must(b.sudo(move(theirs, "owner_no", w))) // The positive control.
	})
	b.t = t
}

// TestGuard_SourcesNameNoFencedSession: lineage is a write as well.
func TestGuard_SourcesNameNoFencedSession(t *testing.T) {
	b := setup(t)
	u, v := b.user(), b.user()
	id := b.store(row{owner: u})
	source := func(n int, of user) string {
		return fmt.Sprintf(`INSERT INTO memd.memory_sources (tenant_no, memory_id, ordinal, source_subject, source_session)
			VALUES (%d, '%s', %d, %d, %d)`, b.tenant, id, n, of.no, of.session)
	}
	b.allowed(source(1, v))
	b.buryFirst(v)
	b.refused("MD002", source(2, v))
	b.fence(v)
	b.refused("MD001", source(3, v))
}

// TestGuard_SavepointsKeepTheLock: a lock that a subtransaction took goes with
// it when it is rolled back, and stays with the rows when it is not.
func TestGuard_SavepointsKeepTheLock(t *testing.T) {
	b := setup(t)
	u, v := b.user(), b.user()
	held := func(conn *pgx.Conn) int {
		return b.count(fmt.Sprintf(`SELECT count(*) FROM pg_locks WHERE pid = %d AND locktype = 'advisory' AND objsubid = 2 AND granted`, conn.PgConn().PID()))
	}
	b.must(run(t.Context(), b.app, "BEGIN; SAVEPOINT a;"+insert(row{owner: u})+"; SAVEPOINT c;"+insert(row{owner: u}, row{owner: v})+"; ROLLBACK TO c"))
	if n := held(b.app); n != 1 {
		t.Errorf("%d locks after the inner one was rolled back, want 1", n)
	}
	b.must(run(t.Context(), b.app, "RELEASE a"))
	if n := held(b.app); n != 1 {
		t.Errorf("%d locks after the outer one was released, want 1", n)
	}
	b.must(run(t.Context(), b.app, "COMMIT"))
	if n := held(b.app); n != 0 {
		t.Errorf("%d locks after the commit, want 0", n)
	}
}

// TestGuard_DeletesGoThrough: a fence forbids what brings something in, and
// nothing that takes something away, whoever derived from it.
func TestGuard_DeletesGoThrough(t *testing.T) {
	b := setup(t)
	u, v := b.user(), b.user()
	first := b.store(row{owner: u})
	second := b.store(row{owner: u})
	third := b.store(row{owner: v})
	derive := func(id, from uuid.UUID) string {
		return fmt.Sprintf(`INSERT INTO memd.memory_sources (tenant_no, memory_id, ordinal, source_memory) VALUES (%d, '%s', 1, '%s')`, b.tenant, id, from)
	}
	b.allowed(derive(second, first))
	b.allowed(derive(third, second))
	b.fence(v)
	b.fence(u)
	b.allowed(fmt.Sprintf(`DELETE FROM memd.memories WHERE tenant_no = %d AND memory_id = '%s'`, b.tenant, second))
	b.allowed(fmt.Sprintf(`DELETE FROM memd.memories WHERE tenant_no = %d AND memory_id = '%s'`, b.tenant, third))
	if n := b.count(`SELECT count(*) FROM memd.memories`); n != 1 {
		t.Errorf("%d rows are left, want the first", n)
	}
}

// TestDelete_OfAChainFromBothEnds: a row goes while what was derived from it is
// going too. Neither delete fails for the other's sake.
func TestDelete_OfAChainFromBothEnds(t *testing.T) {
	b := setup(t)
	u := b.user()
	first, second, third := b.store(row{owner: u}), b.store(row{owner: u}), b.store(row{owner: u})
	derive := func(id, from uuid.UUID) string {
		return fmt.Sprintf(`INSERT INTO memd.memory_sources (tenant_no, memory_id, ordinal, source_memory) VALUES (%d, '%s', 1, '%s')`, b.tenant, id, from)
	}
	remove := func(id uuid.UUID) string {
		return fmt.Sprintf(`DELETE FROM memd.memories WHERE tenant_no = %d AND memory_id = '%s'`, b.tenant, id)
	}
	b.allowed(derive(second, first))
	b.allowed(derive(third, second))
	other := b.connect("memd_app")
	b.must(run(t.Context(), other, "BEGIN;"+remove(third)))
	done := make(chan error, 1)
	go func() { done <- run(t.Context(), b.app, remove(second)) }()
	b.eventually("the second delete waits or ends", func() bool {
		return len(done) == 1 || b.count(fmt.Sprintf(`SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND wait_event_type = 'Lock'`, b.app.PgConn().PID())) == 1
	})
	b.must(run(t.Context(), other, "COMMIT"))
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := b.count(`SELECT count(*) FROM memd.memories`); n != 1 {
		t.Errorf("%d rows are left, want the first", n)
	}
}
