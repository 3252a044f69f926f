package pg_test

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
)

// steps are migrations for these tests: each leaves one table.
func steps(n int) fstest.MapFS {
	names := []string{"one", "two", "three", "four"}
	files := fstest.MapFS{}
	for i, name := range names[:n] {
		files["000"+string(rune('1'+i))+"_create_"+name+".sql"] = &fstest.MapFile{
			Data: []byte("-- +goose Up\nCREATE TABLE memd." + name + " ();\n"),
		}
	}
	return files
}

func TestMigrate_IsIdempotent(t *testing.T) {
	d := pgtest.Empty(t)
	for range 2 {
		if err := pg.Migrate(t.Context(), d.URL("")); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Pool("").With(t.Context(), func(db pg.DB) error { return pg.CheckSchema(t.Context(), db) }); err != nil {
		t.Error(err)
	}
}

func TestMigrate_SeveralAtOnce(t *testing.T) {
	d := pgtest.Empty(t)
	var g errgroup.Group
	for range 4 {
		g.Go(func() error { return pg.MigrateFS(t.Context(), d.URL(""), steps(4)) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestMigrate_FailureLeavesTheVersionBefore(t *testing.T) {
	d := pgtest.Empty(t)
	files := steps(2)
	files["0002_create_two.sql"].Data = []byte("-- +goose Up\nCREATE TABLE memd.two ();\nSELECT 1/0;\n")
	if err := pg.MigrateFS(t.Context(), d.URL(""), files); err == nil {
		t.Fatal("a failing migration succeeded")
	}
	p := d.Pool("")
	if got := text(t, p, `SELECT max(version_id)::text || coalesce(to_regclass('memd.two')::text, '') FROM memd.schema_versions`); got != "1" {
		t.Errorf("version and table: %q", got)
	}
	if err := pg.MigrateFS(t.Context(), d.URL(""), steps(2)); err != nil {
		t.Errorf("the mended migration: %v", err)
	}
}

func TestMigrate_SaysHowToGetTheExtension(t *testing.T) {
	d := pgtest.Empty(t)
	owner := d.Pool("")
	err := owner.With(t.Context(), func(db pg.DB) error {
		_, err := db.Exec(t.Context(), `DO $$ BEGIN
			IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'memd_test_nobody') THEN CREATE ROLE memd_test_nobody LOGIN; END IF;
		END $$`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = pg.Migrate(t.Context(), d.URL("memd_test_nobody"))
	if err == nil || !strings.Contains(err.Error(), "run CREATE EXTENSION vector") {
		t.Errorf("as nobody in particular: %v", err)
	}
}

func TestCheckSchema_AcceptsThisVersionAndTheOneBefore(t *testing.T) {
	for at, want := range map[int]string{
		0: "run memd migrate",
		1: "run memd migrate",
		2: "",
		3: "",
		4: "run a newer memd",
	} {
		d := pgtest.Empty(t)
		if at > 0 {
			if err := pg.MigrateFS(t.Context(), d.URL(""), steps(at)); err != nil {
				t.Fatal(err)
			}
		}
		err := d.Pool("").With(t.Context(), func(db pg.DB) error { return pg.CheckSchemaFS(t.Context(), db, steps(3)) })
		switch {
		case want == "" && err != nil:
			t.Errorf("at %d: %v", at, err)
		case want != "" && (!errors.Is(err, memd.ErrSchemaVersion) || !strings.Contains(err.Error(), want)):
			t.Errorf("at %d: %v, want %q", at, err, want)
		}
		if at == 4 {
			if err := pg.MigrateFS(t.Context(), d.URL(""), steps(3)); !errors.Is(err, memd.ErrSchemaVersion) {
				t.Errorf("migrating a newer schema: %v", err)
			}
		}
	}
}
