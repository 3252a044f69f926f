package erasure_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/memdtest"
)

// pointing is a verifier that knows a row which must not be there.
type pointing struct {
	w  *world
	id uuid.UUID
}

func (p pointing) Draw(context.Context, memd.Examination) (memd.Probes, error) {
	return memd.Probes{Before: map[string]int64{"unique_probes": 1}}, nil
}

func (p pointing) Verify(context.Context, memd.Examination, memd.Probes) ([]memd.Check, error) {
	c := memd.Check{Name: "unique_probes", Result: memd.ResultPass, ControlBefore: 1}
	if c.CountAfter = int64(p.w.count(`SELECT count(*) FROM memd.memories WHERE memory_id = $1`, p.id)); c.CountAfter > 0 {
		c.Result, c.Reason, c.Rows = memd.ResultFail, "rows_left", []memd.RowRef{p.row()}
	}
	return []memd.Check{c}, nil
}

func (p pointing) row() memd.RowRef { return memd.RowRef{Table: "memories", ID: p.id.String()} }

// An erasure whose check names a copy under another user stops, however often it
// is tried. An operator has the copy removed, and nothing that is not named; then
// it goes on.
func TestCheck_AnOperatorRemovesWhatItNames(t *testing.T) {
	w := newWorld(t)
	other := w.Tenant("other", memdtest.Policy())
	ids := w.add(said("alice", "s1", "alice"), said("bob", "b1", "what alice said"), said("bob", "b1", "bob"))
	w.StopWorker()
	p := pointing{w, ids[1]}
	r := w.runner()
	r.Verifier = p
	j := w.accept(w.tenant, "alice", "")
	ctx := t.Context()
	for range 2 {
		if _, err := r.Run(ctx, j); err == nil || w.job(j).State != erasure.StateRunning {
			t.Fatalf("%v; %v although something is left", w.job(j).State, err)
		}
	}
	remove := func(c erasure.Caller, rows ...memd.RowRef) error {
		return w.a.Erasure.RemoveSurvivors(ctx, c, j.ID, rows)
	}
	wantInvalid(t, remove(w.caller(), p.row(), memd.RowRef{Table: "memories", ID: ids[2].String()}), "rows")
	if err := remove(erasure.Caller{Tenant: other.No}, p.row()); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("another tenant's: %v", err)
	}
	w.wants(user("bob"), "bob", "what alice said")
	for range 2 { // Twice is once.
		if err := remove(w.caller(), p.row()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Run(ctx, w.job(j)); err != nil || w.job(j).State != erasure.StateDone {
		t.Fatalf("%v, %v", w.job(j).State, err)
	}
	w.wants(user("bob"), "bob")
	if n := w.count(`SELECT count(*) FROM memd.survivors WHERE removed_at IS NOT NULL`); n != 1 {
		t.Errorf("%d removals are on record", n)
	}
}

// survivor is a row, and the statement that counts it.
type survivor struct {
	memd.RowRef
	count string
}

// naming is a verifier that names these rows as long as they are there.
type naming struct {
	w    *world
	rows []survivor
}

func (n naming) Draw(context.Context, memd.Examination) (memd.Probes, error) {
	return memd.Probes{Before: map[string]int64{"unique_probes": 1}}, nil
}

func (n naming) Verify(context.Context, memd.Examination, memd.Probes) ([]memd.Check, error) {
	c := memd.Check{Name: "unique_probes", Result: memd.ResultPass, ControlBefore: 1, Rows: n.left()}
	if c.CountAfter = int64(len(c.Rows)); c.CountAfter > 0 {
		c.Result, c.Reason = memd.ResultFail, "rows_left"
	}
	pages := memd.Check{Name: "residue", Result: memd.ResultReview, Reason: "residue_left", Rows: []memd.RowRef{{Table: "memories", ID: "heap/7"}}}
	return []memd.Check{c, pages}, nil
}

func (n naming) left() (rows []memd.RowRef) {
	for _, row := range n.rows {
		if n.w.count(row.count) > 0 {
			rows = append(rows, row.RowRef)
		}
	}
	return rows
}

// name names the first row of a table that meets a condition.
func (n *naming) name(table, id, where string) {
	n.w.t.Helper()
	found := n.w.strings(`SELECT ` + id + ` FROM memd.` + table + ` r WHERE ` + where + ` LIMIT 1`)
	if len(found) != 1 {
		n.w.t.Fatalf("no row of %s", table)
	}
	count := fmt.Sprintf(`SELECT count(*) FROM memd.%s r WHERE %s AND %s = '%s'`, table, where, id, found[0])
	n.rows = append(n.rows, survivor{memd.RowRef{Table: table, ID: found[0]}, count})
}

// Whatever table a survivor is in, it can be removed: every one that the verifier
// names rows of, and what was written past the foreign keys.
func TestCheck_RowsOfEveryTableCanBeRemoved(t *testing.T) {
	s := newSweep(t)
	p := s.populate()
	w, no := s.world, p.tenant.No
	j := s.acceptWhole(&p, kinds[0])
	ref := w.Keys(w.a, p.tenant).UserRef(app, "bob")
	bob := w.count(`SELECT subject_no FROM memd.subjects WHERE tenant_no = $1 AND user_ref = $2`, no, ref[:])
	orphan := uuid.New().String()
	w.exec(fmt.Sprintf(`DO $do$ BEGIN
	SET LOCAL session_replication_role = replica;
	INSERT INTO memd.memory_contributions (tenant_no, memory_id, contributor_no, contributor_session) VALUES (%d, '%s', 1, 1);
	INSERT INTO memd.memory_sources (tenant_no, memory_id, ordinal, source_memory) VALUES (%d, '%s', 1, gen_random_uuid());
	END $do$`, no, orphan, no, orphan))
	n := &naming{w: w, rows: []survivor{{memd.RowRef{Table: "memories", ID: orphan}, `SELECT count(*) FROM (
		SELECT memory_id FROM memd.memory_contributions UNION ALL SELECT memory_id FROM memd.memory_sources) r WHERE memory_id = '` + orphan + `'`}}}
	of := fmt.Sprintf("r.tenant_no = %d AND r.subject_no = %d", no, bob)
	n.name("memories", "r.memory_id::text", fmt.Sprintf("r.tenant_no = %d AND r.owner_no = %d", no, bob))
	n.name("session_events", "r.subject_no || '/' || r.session_no || '/' || r.seq", of)
	n.name("session_state", "r.subject_no || '/' || r.session_no || '/' || encode(r.key_digest, 'hex')", of)
	n.name("user_state", "r.subject_no || '/' || encode(r.key_digest, 'hex')", of)
	n.name("app_state", "r.app_no || '/' || encode(r.key_digest, 'hex')", fmt.Sprintf("r.tenant_no = %d AND r.contributor_no = %d", no, bob))
	n.name("artifacts", "r.artifact_id::text", of)
	n.name("artifact_versions", "r.version_id::text", of)
	n.name("artifact_chunks", "r.version_id || '/' || r.chunk_no", of+" AND r.session_no <> 1099511627777")
	n.name("session_heads", "r.subject_no || '/' || r.session_no", of)
	n.name("sessions", "r.subject_no || '/' || r.session_no", of+" AND r.state <> 2")
	n.name("subjects", "r.subject_no::text", of+" AND r.retired_at IS NULL")
	r := *s.clean
	r.Verifier = n
	ctx, c, rows := t.Context(), erasure.Caller{Tenant: no}, n.left()
	if _, err := r.Run(ctx, j); err == nil || len(rows) != len(n.rows) {
		t.Fatalf("%d of %d rows are there, and the check passed: %v", len(rows), len(n.rows), err == nil)
	}
	wantInvalid(t, w.a.Erasure.RemoveSurvivors(ctx, c, j.ID, []memd.RowRef{{Table: "memories", ID: "heap/7"}}), "rows")
	if err := w.a.Erasure.RemoveSurvivors(ctx, c, j.ID, rows); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Run(ctx, w.job(j)); err != nil || w.job(j).State < erasure.StateDone {
		t.Errorf("%v, %v", w.job(j).State, err)
	}
	if left := n.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
