package artifacts_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
)

// Whoever has the tables, triggers and foreign keys off, can move sealed bytes
// around. Nothing that was moved opens.
func TestTampering_IsRefused(t *testing.T) {
	const replica = `SET session_replication_role = replica; `
	cases := map[string]struct {
		sql  string
		read func(b *bundle) error
	}{
		"two chunks of a version swapped": {
			`UPDATE memd.artifact_chunks SET chunk_no = CASE chunk_no WHEN 0 THEN 1001 ELSE 1000 END
			 WHERE chunk_no < 2 AND version_id = (SELECT version_id FROM memd.artifact_versions WHERE version = 0);
			 UPDATE memd.artifact_chunks SET chunk_no = chunk_no - 1000 WHERE chunk_no >= 1000`, nil},
		"chunks swapped between versions": {
			`UPDATE memd.artifact_chunks c SET sealed = o.sealed FROM memd.artifact_chunks o
			 WHERE c.version_id <> o.version_id AND c.chunk_no = o.chunk_no AND c.chunk_no = 1`, nil},
		"the last chunk repeated as one in the middle": {
			`UPDATE memd.artifact_chunks c SET sealed = o.sealed FROM memd.artifact_chunks o
			 WHERE c.version_id = o.version_id AND c.chunk_no = 1 AND o.chunk_no = 3`, nil},
		"cut off": {
			`DELETE FROM memd.artifact_chunks WHERE chunk_no = 3`, nil},
		"cut off, and the columns to match": {
			`DELETE FROM memd.artifact_chunks WHERE chunk_no = 3; UPDATE memd.artifact_versions SET chunks = 3, size = 192`, nil},
		"emptied": {
			`DELETE FROM memd.artifact_chunks`, nil},
		"a chunk flipped": {
			`UPDATE memd.artifact_chunks SET sealed = set_byte(sealed, 20, get_byte(sealed, 20) # 1) WHERE chunk_no = 2`, nil},
		"versions renumbered": {
			`UPDATE memd.artifact_versions SET version = 7 - version`, func(b *bundle) error {
				_, err := b.load(anna, "letter", 7, 0, 0)
				return err
			}},
		"descriptions swapped": {
			`UPDATE memd.artifact_versions v SET sealed_info = o.sealed_info FROM memd.artifact_versions o WHERE o.version_id <> v.version_id`, nil},
		"chunks of another version put under a description": {
			`UPDATE memd.artifact_versions SET version_id = gen_random_uuid() WHERE version = 0;
			 UPDATE memd.artifact_chunks c SET version_id = (SELECT version_id FROM memd.artifact_versions v WHERE v.version = 0)
			 WHERE c.version_id = (SELECT version_id FROM memd.artifact_versions WHERE version = 1)`, nil},
		"moved to another session": {
			"", func(b *bundle) error {
				_, err := b.load(anna, "user:letter", 0, 0, 0)
				return err
			}},
		"a name moved to another artifact": {
			`UPDATE memd.artifacts SET artifact_id = gen_random_uuid()`, func(b *bundle) error {
				_, err := b.a.List(b.ctx(), b.tenant, anna, 10, "")
				return err
			}},
	}
	b := setup(t).smallChunks()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b.t = t
			b.superuser(`TRUNCATE memd.artifacts, memd.artifact_versions, memd.artifact_chunks`)
			first, second := noise(1, 200), noise(2, 200)
			b.save(anna, "letter", first)
			b.save(anna, "letter", second)
			b.holds(anna, "letter", 0, first)
			b.holds(anna, "letter", 1, second)
			sql := c.sql
			if name == "moved to another session" {
				// The digest that the name would have there.
				b.save(anna, "user:letter", nil)
				b.superuser(`CREATE TABLE digest AS SELECT name_digest FROM memd.artifacts WHERE session_no = 1099511627777`)
				b.superuser(replica + `DELETE FROM memd.artifact_chunks WHERE session_no = 1099511627777;
					DELETE FROM memd.artifact_versions WHERE session_no = 1099511627777; DELETE FROM memd.artifacts WHERE session_no = 1099511627777`)
				sql = `UPDATE memd.artifact_chunks SET session_no = 1099511627777; UPDATE memd.artifact_versions SET session_no = 1099511627777;
					UPDATE memd.artifacts a SET session_no = 1099511627777, name_digest = (SELECT name_digest FROM digest)`
			}
			if n := b.superuser(replica + sql); n == 0 {
				t.Fatal("nothing was changed")
			}
			read := c.read
			if read == nil {
				read = func(b *bundle) error {
					_, err := b.load(anna, "letter", 0, 0, 0)
					return err
				}
			}
			if err := read(b); !errors.Is(err, memd.ErrCorrupt) {
				t.Errorf("reading it: %v", err)
			}
		})
	}
}

func TestTampering_CopiedToAnotherTenantOrUser(t *testing.T) {
	b := setup(t)
	own := b.tenant
	globex := b.Tenant("globex", b.policy())
	b.save(anna, "letter", []byte("mine"))
	from := b.numbers(anna)
	bernd := artifacts.Owner{App: anna.App, UserID: "bernd", SessionID: anna.SessionID}
	for name, c := range map[string]struct {
		tenant artifacts.Tenant
		owner  artifacts.Owner
	}{
		"another tenant's user of the same name": {artifacts.Tenant{No: globex.No, Epoch: globex.Epoch}, anna},
		"another user":                           {own, bernd},
	} {
		t.Run(name, func(t *testing.T) {
			b.t, b.tenant = t, c.tenant
			b.save(c.owner, "letter", []byte("theirs"))
			b.holds(c.owner, "letter", 0, []byte("theirs"))
			// Their name, over a copy of my version and its bytes, ids and all.
			sql := strings.NewReplacer(
				"$from", fmt.Sprintf("tenant_no = %d AND subject_no = %d AND session_no = %d", own.No, from.Subject, from.Session),
				"$to", fmt.Sprintf("tenant_no = %d AND version_id IN (SELECT version_id FROM theirs)", c.tenant.No),
				"$owner", "(SELECT tenant_no FROM theirs), (SELECT subject_no FROM theirs), (SELECT session_no FROM theirs)",
			).Replace(fmt.Sprintf(`
				SET session_replication_role = replica;
				CREATE TEMP TABLE theirs AS SELECT * FROM memd.artifact_versions
				WHERE tenant_no = %d AND (tenant_no, subject_no, session_no) <> (%d, %d, %d);
				DELETE FROM memd.artifact_chunks WHERE $to;
				DELETE FROM memd.artifact_versions WHERE $to;
				INSERT INTO memd.artifact_chunks SELECT $owner, version_id, chunk_no, sealed FROM memd.artifact_chunks WHERE $from;
				INSERT INTO memd.artifact_versions SELECT $owner, version_id, artifact_id, version, month, sealed_info, size, chunks,
					source_time, created_at, touched_at FROM memd.artifact_versions WHERE $from;
				UPDATE memd.artifacts a SET artifact_id = (SELECT artifact_id FROM memd.artifact_versions WHERE $from)
				FROM theirs WHERE a.tenant_no = theirs.tenant_no AND a.artifact_id = theirs.artifact_id`,
				c.tenant.No, own.No, from.Subject, from.Session))
			if n := b.superuser(sql); n != 1 {
				t.Fatalf("%d rows were changed", n)
			}
			if got, err := b.load(c.owner, "letter", 0, 0, 0); !errors.Is(err, memd.ErrCorrupt) {
				t.Errorf("a copy was read: %q, %v", got, err)
			}
		})
	}
	b.t, b.tenant = t, own
	b.holds(anna, "letter", 0, []byte("mine"))
}
