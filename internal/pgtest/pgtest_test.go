//go:build unix

package pgtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
)

// userVariable makes this program a test process of its own, which uses the
// shared cluster once and ends, as go test starts one for each package.
const userVariable = "MEMD_PGTEST_TEST_USER"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func exec1(t *testing.T, p *pg.Pool, sql string) error {
	t.Helper()
	return p.With(t.Context(), func(db pg.DB) error {
		_, err := db.Exec(t.Context(), sql)
		return err
	})
}

func TestDatabase_IsTheTestsOwn(t *testing.T) {
	began := time.Now()
	one, two := pgtest.Database(t), pgtest.Database(t)
	t.Logf("two databases took %v", time.Since(began))
	if err := exec1(t, one.Pool(""), `CREATE TABLE public.mark ()`); err != nil {
		t.Fatal(err)
	}
	if err := exec1(t, two.Pool(""), `SELECT FROM public.mark`); pg.SQLState(err) != "42P01" {
		t.Errorf("the other database has the table too: %v", err)
	}
}

func TestDatabase_IsMigratedAndHardened(t *testing.T) {
	d := pgtest.Database(t)
	for _, role := range []string{"memd_app", "memd_worker", "memd_maintain"} {
		p := d.Pool(role)
		if err := p.With(t.Context(), func(db pg.DB) error { return pg.CheckSchema(t.Context(), db) }); err != nil {
			t.Errorf("%s: %v", role, err)
		}
		for _, sql := range []string{`CREATE TEMP TABLE memories ()`, `CREATE SCHEMA s`, `CREATE TABLE public.t ()`} {
			if err := exec1(t, p, sql); pg.SQLState(err) != "42501" {
				t.Errorf("%s may run %s: %v", role, sql, err)
			}
		}
	}
}

func TestDatabase_IsDroppedAtTheEnd(t *testing.T) {
	keep := pgtest.Pool(t)
	var name string
	t.Run("test", func(t *testing.T) {
		d := pgtest.Database(t)
		name = d.Name
		conn, err := pgx.Connect(t.Context(), d.URL("")) // Left open: the drop is by force.
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
	})
	var left int
	err := keep.With(t.Context(), func(db pg.DB) error {
		return db.QueryRow(t.Context(), `SELECT count(*) FROM pg_database WHERE datname = $1`, name).Scan(&left)
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(0, left); diff != "" {
		t.Errorf("databases left (-want +got):\n%s", diff)
	}
}

func TestShared_UseOnce(t *testing.T) {
	p := pgtest.Pool(t)
	if os.Getenv(userVariable) == "" {
		return // The plain run only shows that it works.
	}
	err := p.With(t.Context(), func(db pg.DB) error {
		var data string
		err := db.QueryRow(t.Context(), `SHOW data_directory`).Scan(&data)
		fmt.Println("data", data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// use runs n test processes at once and returns the data folder of each.
func use(t *testing.T, tmp string, n int) []string {
	t.Helper()
	commands := make([]*exec.Cmd, n)
	outputs := make([]strings.Builder, n)
	for i := range commands {
		c := exec.Command(os.Args[0], "-test.run=^TestShared_UseOnce$")
		c.Env = append(os.Environ(), userVariable+"=1", "TMPDIR="+tmp, "MEMD_TEST_DATABASE_URL=")
		c.Stdout, c.Stderr = &outputs[i], &outputs[i]
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		commands[i] = c
	}
	var data []string
	for i, c := range commands {
		if err := c.Wait(); err != nil {
			t.Fatalf("%v\n%s", err, outputs[i].String())
		}
		_, rest, _ := strings.Cut(outputs[i].String(), "data ")
		line, _, _ := strings.Cut(rest, "\n")
		data = append(data, line)
	}
	return data
}

func TestShared_OneClusterForAllThatLeavesNothing(t *testing.T) {
	tmp := t.TempDir()
	data := use(t, tmp, 3)
	for _, d := range data {
		if d == "" || d != data[0] {
			t.Fatalf("data folders %q", data)
		}
	}
	waitEmpty(t, tmp, data[0])
	waitEmpty(t, tmp, use(t, tmp, 1)[0]) // Whoever comes after starts a new one.
}

// waitEmpty waits for the keeper, which is nobody's child, to clean up.
func waitEmpty(t *testing.T, tmp, data string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); ; <-tick.C {
		left, err := filepath.Glob(filepath.Join(tmp, "*"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = os.Stat(data)
		if len(left) == 0 && errors.Is(err, os.ErrNotExist) {
			t.Logf("gone after %v", time.Since(began))
			return
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("left behind: %v, %s", left, data)
		}
	}
}
