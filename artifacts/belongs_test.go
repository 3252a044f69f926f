package artifacts_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
)

// What foreign keys would refuse, triggers refuse: as the worker, and whoever
// was first when two meet.
func TestGuard_NothingGoesBeforeWhatBelongsToIt(t *testing.T) {
	b := setup(t).smallChunks()
	b.save(anna, "letter", noise(1, 100))
	c := b.numbers(anna)
	where := fmt.Sprintf("tenant_no = %d AND subject_no = %d", b.tenant.No, c.Subject)
	chunks, versions, names := `DELETE FROM memd.artifact_chunks WHERE `+where, `DELETE FROM memd.artifact_versions WHERE `+where, `DELETE FROM memd.artifacts WHERE `+where
	chunk := `INSERT INTO memd.artifact_chunks (tenant_no, subject_no, session_no, version_id, chunk_no, sealed)
		SELECT tenant_no, subject_no, session_no, version_id, 77, '\x00' FROM memd.artifact_versions WHERE ` + where
	try := func(role, sql string) string {
		t.Helper()
		return pg.SQLState(b.DB.Pool(role).InTx(t.Context(), func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), sql)
			return err
		}))
	}
	for _, sql := range []string{versions, names, `UPDATE memd.artifact_versions SET artifact_id = gen_random_uuid() WHERE ` + where} {
		role := node.WorkerRole
		if sql[0] == 'U' {
			role = node.AppRole
		}
		if got := try(role, sql); got != "23503" {
			t.Errorf("%q for %s", got, sql)
		}
	}
	for _, sql := range []string{chunks, versions, names} {
		if got := try(node.WorkerRole, sql); got != "" {
			t.Errorf("in the right order: %q for %s", got, sql)
		}
	}

	b.save(anna, "letter", noise(1, 100))
	if got := try(node.WorkerRole, chunks); got != "" {
		t.Fatalf("deleting chunks: %q", got)
	}
	meet := func(role, first, other, second string) string {
		t.Helper()
		s, err := b.DB.Straggle(t.Context(), role, first)
		if err != nil {
			t.Fatal(err)
		}
		var state string
		if err := s.Outlast(t.Context(), func() error { state = try(other, second); return nil }); err != nil {
			t.Fatal(err)
		}
		return state
	}
	if got := meet(node.AppRole, chunk, node.WorkerRole, versions); got != "23503" {
		t.Errorf("a version went although a chunk came: %q", got)
	}
	if got := meet(node.WorkerRole, chunks+`;`+versions, node.AppRole, chunk); got != "23503" {
		t.Errorf("a chunk came although its version went: %q", got)
	}
}
