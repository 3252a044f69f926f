package migrations_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
)

var update = flag.Bool("update", false, "write the golden file")

// sqlGrants lists everything that memd's roles, or everybody, may do beyond
// what PostgreSQL gives everybody anyway: on the database, schemas, relations,
// columns, functions, types, settings, and by being a member of another role.
// A privilege on a whole relation stands without a column.
const sqlGrants = `
WITH who AS (
  SELECT oid, rolname::text AS name FROM pg_roles WHERE rolname IN ('memd_app', 'memd_worker', 'memd_maintain') UNION ALL SELECT 0, 'PUBLIC'
), grants AS (
  SELECT 'database' AS kind, ''::text AS object, a.grantee, a.privilege_type, a.is_grantable
  FROM pg_database d CROSS JOIN aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a WHERE d.datname = current_database()
  UNION ALL
  SELECT 'schema', n.nspname, a.grantee, a.privilege_type, a.is_grantable
  FROM pg_namespace n CROSS JOIN aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
  WHERE n.nspname NOT LIKE 'pg\_%' AND n.nspname <> 'information_schema'
  UNION ALL
  SELECT CASE c.relkind WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' ELSE 'table' END, c.relname, a.grantee, a.privilege_type, a.is_grantable
  FROM pg_class c CROSS JOIN aclexplode(coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END, c.relowner))) a
  WHERE c.relnamespace = 'memd'::regnamespace AND c.relkind IN ('r', 'v', 'm', 'p', 'S', 'f')
  UNION ALL
  SELECT 'column', c.relname || '.' || t.attname, a.grantee, a.privilege_type, a.is_grantable
  FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid CROSS JOIN aclexplode(t.attacl) a
  WHERE c.relnamespace = 'memd'::regnamespace
  UNION ALL
  SELECT 'function', p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')', a.grantee, a.privilege_type, a.is_grantable
  FROM pg_proc p CROSS JOIN aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
  WHERE p.pronamespace = 'memd'::regnamespace
  UNION ALL
  SELECT 'default for ' || d.defaclobjtype::text, coalesce(d.defaclnamespace::regnamespace::text, ''), a.grantee, a.privilege_type, a.is_grantable
  FROM pg_default_acl d CROSS JOIN aclexplode(d.defaclacl) a
  UNION ALL
  SELECT 'setting', p.parname, a.grantee, a.privilege_type, a.is_grantable
  FROM pg_parameter_acl p CROSS JOIN aclexplode(p.paracl) a
  UNION ALL
  SELECT 'role', r.rolname, m.member, 'MEMBER', m.admin_option
  FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid
)
SELECT w.name || ': ' || g.privilege_type || ' on ' || g.kind || CASE WHEN g.object = '' THEN '' ELSE ' ' || g.object END
  || CASE WHEN g.is_grantable THEN ' (may grant it)' ELSE '' END
FROM grants g JOIN who w ON w.oid = g.grantee
UNION ALL
SELECT r.rolname || ': attribute ' || a.name
FROM pg_roles r CROSS JOIN LATERAL (VALUES ('superuser', r.rolsuper), ('createrole', r.rolcreaterole), ('createdb', r.rolcreatedb),
  ('replication', r.rolreplication), ('bypassrls', r.rolbypassrls)) AS a (name, has)
WHERE r.rolname IN ('memd_app', 'memd_worker', 'memd_maintain') AND a.has
UNION ALL
SELECT r.rolname || ': owns ' || c.oid::regclass::text
FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE r.rolname IN ('memd_app', 'memd_worker', 'memd_maintain')
ORDER BY 1`

// TestGrants_AreTheseAndNoOther: a grant that is added here is a decision that
// somebody took. Write the file with -update and read the difference.
func TestGrants_AreTheseAndNoOther(t *testing.T) {
	var got []string
	p := pgtest.Pool(t)
	err := p.With(t.Context(), func(db pg.DB) error {
		rows, err := db.Query(t.Context(), sqlGrants)
		if err != nil {
			return err
		}
		got, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "grants.txt", got)
}

// sqlFunctions lists how each function of the schema is protected. Those that
// run with their owner's rights must pin what unqualified names mean, with
// temporary objects last.
const sqlFunctions = `
SELECT p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')' ||
  CASE WHEN p.prosecdef THEN ' as its owner' ELSE '' END ||
  coalesce(' ' || array_to_string(p.proconfig, ' '), '')
FROM pg_proc p WHERE p.pronamespace = 'memd'::regnamespace ORDER BY 1`

const sqlUnpinned = `
SELECT p.oid::regprocedure::text FROM pg_proc p
WHERE p.pronamespace = 'memd'::regnamespace AND p.prosecdef
  AND p.proconfig IS DISTINCT FROM ARRAY['search_path=pg_catalog, pg_temp']`

// sqlTriggers lists every trigger of the schema that is on.
const sqlTriggers = `
SELECT c.relname || ': ' || pg_get_triggerdef(t.oid, true)
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = 'memd'::regnamespace AND NOT t.tgisinternal AND t.tgenabled = 'O' ORDER BY 1`

func TestFunctions_PinTheirSearchPath(t *testing.T) {
	var unpinned, functions, triggers []string
	p := pgtest.Pool(t)
	for _, q := range []struct {
		sql string
		dst *[]string
	}{{sqlUnpinned, &unpinned}, {sqlFunctions, &functions}, {sqlTriggers, &triggers}} {
		err := p.With(t.Context(), func(db pg.DB) error {
			rows, err := db.Query(t.Context(), q.sql)
			if err != nil {
				return err
			}
			*q.dst, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(unpinned) > 0 {
		t.Errorf("run as their owner with the caller's search_path: %s", strings.Join(unpinned, ", "))
	}
	compare(t, "functions.txt", functions)
	compare(t, "triggers.txt", triggers)
}

func compare(t *testing.T, file string, got []string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	text := strings.Join(got, "\n") + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}
