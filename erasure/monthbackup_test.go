package erasure_test

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd/internal/cluster"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
)

// machine is a PostgreSQL of the test's own, whose backups can be started beside it.
type machine struct {
	t   *testing.T
	dir string
	*cluster.Cluster
}

func startMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, dir: filepath.Join(t.TempDir(), "cluster")}
	m.start()
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("stopping PostgreSQL: %v", err)
		}
		if err := cluster.Remove(m.dir); err != nil {
			t.Errorf("removing the cluster: %v", err)
		}
	})
	return m
}

func (m *machine) start() {
	m.t.Helper()
	var err error
	if m.Cluster, err = cluster.Start(context.WithoutCancel(m.t.Context()), cluster.Config{Dir: m.dir}); err != nil {
		m.t.Fatal(err)
	}
}

// program runs one of PostgreSQL's own.
func (m *machine) program(name string, args ...string) {
	m.t.Helper()
	cmd := exec.CommandContext(m.t.Context(), filepath.Join(m.Programs(), name), args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	if out, err := cmd.CombinedOutput(); err != nil {
		m.t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// begin starts the machine from a base backup instead of what it has.
func (m *machine) begin(base string) {
	m.t.Helper()
	data := m.DataDir()
	info, err := os.Stat(data)
	if err == nil {
		err = m.Close()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	for _, err := range []error{
		os.RemoveAll(data),
		os.CopyFS(data, os.DirFS(base)),
		filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			mode := os.FileMode(0o600)
			if d.IsDir() {
				mode = 0o700
			}
			if err := os.Chmod(path, mode); err != nil {
				return err
			}
			return os.Lchown(path, int(owner.Uid), int(owner.Gid))
		}),
	} {
		if err != nil {
			m.t.Fatal(err)
		}
	}
	m.start()
}

// Three months, two kept: September is unreadable live, in an old dump and in a base
// backup, both real, with the key service and every tree at hand; October and
// November are readable everywhere.
func TestMonth_IsUnreadableInADumpAndInABaseBackup(t *testing.T) {
	origin, beside := startMachine(t), startMachine(t)
	ctx := t.Context()
	for _, name := range []string{"memd", "dumped"} {
		if err := origin.CreateDatabase(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := pg.Migrate(ctx, origin.URL("memd", "")); err != nil {
		t.Fatal(err)
	}
	m := newMonths(t, memdtest.WithDatabase(pgtest.At(t, origin.URL("postgres", ""), "memd")))
	for _, month := range []string{september, october, november} {
		m.live(m.tenant, month, "alice", "bob")
	}
	backups := t.TempDir()
	dump, base := filepath.Join(backups, "dump"), filepath.Join(filepath.Dir(origin.DataDir()), "base")
	origin.program("pg_dump", "--format=custom", "--no-unlogged-table-data", "--file="+dump, origin.URL("memd", ""))
	origin.program("pg_basebackup", "--pgdata="+base, "--checkpoint=fast", "--wal-method=stream", "--no-sync", "--dbname="+origin.URL("postgres", ""))

	m.expired(m.tenant)
	m.shows(m.tenant, "alice", october, november)

	origin.program("pg_restore", "--dbname="+origin.URL("dumped", ""), dump)
	beside.begin(base)
	want := sorted(wordsOf("alice", october), wordsOf("bob", october), wordsOf("alice", november), wordsOf("bob", november), timeless("alice", "bob"))
	live := m.owner
	for name, url := range map[string]string{
		"live": origin.URL("memd", ""), "the dump": origin.URL("dumped", ""), "the base backup": beside.URL("memd", ""),
	} {
		pool, err := pg.Open(ctx, pg.Config{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		m.owner = pool
		found := m.copyOf(m.tenant)
		pool.Close()
		m.owner = live
		if rows := len(found.rows); name == "live" && rows != 8 || name != "live" && rows != 12 {
			t.Errorf("%s has %d memories", name, rows)
		}
		read, _ := m.readable(found)
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(read))); diff != "" {
			t.Errorf("readable in %s (-want +got):\n%s", name, diff)
		}
	}
}
