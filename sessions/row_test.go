package sessions_test

import (
	"testing"

	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/sessions"
)

// Every row of a user's can be deleted by its name, one by one.
func TestDeleteRow_ByTheVerifiersNames(t *testing.T) {
	b := full(t)
	other := b.get(id("bob", "s1"))
	ada := b.number(id("ada", "s1")).Subject
	for table, name := range map[string]string{
		"session_events": `subject_no || '/' || session_no || '/' || seq`,
		"session_state":  `subject_no || '/' || session_no || '/' || encode(key_digest, 'hex')`,
		"user_state":     `subject_no || '/' || encode(key_digest, 'hex')`,
	} {
		of := ` FROM memd.` + table + ` WHERE tenant_no = $1 AND subject_no = $2`
		for {
			var left int
			var row string
			b.must(b.worker.With(t.Context(), func(db pg.DB) error {
				return db.QueryRow(t.Context(), `SELECT count(*), coalesce(min(`+name+`), '')`+of, b.tenant.No, ada).Scan(&left, &row)
			}))
			if left == 0 {
				break
			}
			b.must(b.worker.With(t.Context(), func(db pg.DB) error {
				known, err := sessions.DeleteRow(t.Context(), db, b.tenant.No, table, row)
				if !known {
					t.Fatalf("%s is not known", table)
				}
				return err
			}))
			var after int
			b.must(b.worker.With(t.Context(), func(db pg.DB) error {
				return db.QueryRow(t.Context(), `SELECT count(*)`+of, b.tenant.No, ada).Scan(&after)
			}))
			if after != left-1 {
				t.Fatalf("%s: %d of %d are left", row, after, left)
			}
		}
	}
	if got := b.get(id("bob", "s1")); len(got.Events) != len(other.Events) {
		t.Errorf("somebody else has %d events of %d", len(got.Events), len(other.Events))
	}
	b.must(b.worker.With(t.Context(), func(db pg.DB) error {
		for table, row := range map[string]string{"session_events": "1/2", "user_state": "1/x"} {
			if known, err := sessions.DeleteRow(t.Context(), db, b.tenant.No, table, row); !known || err == nil {
				t.Errorf("%s %q: %v, %v", table, row, known, err)
			}
		}
		return nil
	}))
}
