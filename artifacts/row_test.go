package artifacts_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/internal/node"
)

// What a verifier names goes with all that belongs to it, and nothing else does.
func TestDeleteRow(t *testing.T) {
	b := setup(t).smallChunks()
	for _, name := range []string{"letter", "photo", "list"} {
		b.save(anna, name, noise(1, 100))
	}
	remove := func(table, id string) (known bool, err error) {
		err = b.DB.Pool(node.WorkerRole).InTx(t.Context(), func(tx pgx.Tx) (err error) {
			known, err = artifacts.DeleteRow(t.Context(), tx, b.tenant.No, table, id)
			return err
		})
		return known, err
	}
	idOf := func(column string) string {
		var id string
		err := b.DB.Pool("").InTx(t.Context(), func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), `SELECT `+column+` FROM memd.artifact_versions ORDER BY created_at LIMIT 1`).Scan(&id)
		})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	for i, row := range [][2]string{{"artifact_chunks", idOf("version_id::text") + "/0"}, {"artifact_chunks", idOf("version_id::text") + "/0"}} {
		if known, err := remove(row[0], row[1]); !known || err != nil {
			t.Fatalf("%d: %v, %v", i, known, err)
		}
		if n := b.count(`SELECT count(*) FROM memd.artifact_versions`); n != 2 {
			t.Errorf("%d versions are left of three", n)
		}
	}
	if known, err := remove("artifacts", idOf("artifact_id::text")); !known || err != nil {
		t.Fatalf("%v, %v", known, err)
	}
	got := fmt.Sprint(b.count(`SELECT count(*) FROM memd.artifact_versions`), b.count(`SELECT count(DISTINCT version_id) FROM memd.artifact_chunks`), b.count(`SELECT count(*) FROM memd.artifacts`))
	if got != "1 1 2" {
		t.Errorf("versions, those with chunks, and names: %s", got)
	}
	if known, err := remove("memories", "x"); known || err != nil {
		t.Errorf("another's table: %v, %v", known, err)
	}
	if _, err := remove("artifacts", "x"); err == nil {
		t.Error("what names nothing is no error")
	}
}
