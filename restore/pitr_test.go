package restore_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/cluster"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
	"forgettable.dev/memd/restore"
)

// machine is a PostgreSQL of the test's own, with an archive of its WAL, that can
// be taken back to a point in time under whoever is connected.
type machine struct {
	t       *testing.T
	dir     string
	archive string
	c       *cluster.Cluster
	uid     int
	gid     int
}

func startMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, dir: filepath.Join(t.TempDir(), "cluster")}
	var err error
	if m.archive, err = os.MkdirTemp("/tmp", "memd-wal-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(m.archive) })
	if err := os.Chmod(m.archive, 0o777); err != nil { // The server's user writes there.
		t.Fatal(err)
	}
	m.start(nil)
	t.Cleanup(func() {
		if err := m.c.Close(); err != nil {
			t.Errorf("stopping PostgreSQL: %v", err)
		}
		if err := cluster.Remove(m.dir); err != nil {
			t.Errorf("removing the cluster: %v", err)
		}
	})
	info, err := os.Stat(m.c.DataDir())
	if err != nil {
		t.Fatal(err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	m.uid, m.gid = int(stat.Uid), int(stat.Gid)
	if err := m.c.CreateDatabase(t.Context(), "memd"); err != nil {
		t.Fatal(err)
	}
	if err := pg.Migrate(t.Context(), m.c.URL("memd", "")); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *machine) start(more map[string]string) {
	m.t.Helper()
	settings := map[string]string{"archive_mode": "on", "archive_command": "cp %p " + m.archive + "/%f"}
	for k, v := range more {
		settings[k] = v
	}
	c, err := cluster.Start(context.WithoutCancel(m.t.Context()), cluster.Config{Dir: m.dir, Settings: settings})
	if err != nil {
		m.t.Fatal(err)
	}
	m.c = c
}

func (m *machine) sql(sql string) string {
	m.t.Helper()
	conn, err := pgx.Connect(m.t.Context(), m.c.URL("postgres", ""))
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = conn.Close(m.t.Context()) }()
	var out string
	if err := conn.QueryRow(m.t.Context(), sql).Scan(&out); err != nil {
		m.t.Fatalf("%s: %v", sql, err)
	}
	return out
}

// baseBackup takes one, and returns its folder.
func (m *machine) baseBackup() string {
	m.t.Helper()
	dir := filepath.Join(filepath.Dir(m.c.DataDir()), "base")
	cmd := exec.CommandContext(m.t.Context(), filepath.Join(m.c.Programs(), "pg_basebackup"),
		"--pgdata="+dir, "--checkpoint=fast", "--wal-method=none", "--no-sync", "--dbname="+m.c.URL("postgres", ""))
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	if out, err := cmd.CombinedOutput(); err != nil {
		m.t.Fatalf("pg_basebackup: %v\n%s", err, out)
	}
	return dir
}

// now is a point in time, as a position in the log, which is archived.
func (m *machine) now() string {
	m.t.Helper()
	lsn := m.sql(`SELECT pg_current_wal_insert_lsn()::text`)
	m.sql(`SELECT pg_switch_wal()::text`)
	return lsn
}

// recover takes the server back to a point in time, with the socket that it had.
func (m *machine) recover(base, lsn string) {
	m.t.Helper()
	m.now() // So that the archive has everything.
	data := m.c.DataDir()
	if err := m.c.Close(); err != nil {
		m.t.Fatal(err)
	}
	for _, err := range []error{
		os.RemoveAll(data),
		os.CopyFS(data, os.DirFS(base)),
		os.WriteFile(filepath.Join(data, "recovery.signal"), nil, 0o600),
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
			return os.Lchown(path, m.uid, m.gid)
		}),
	} {
		if err != nil {
			m.t.Fatal(err)
		}
	}
	m.start(map[string]string{
		"restore_command": "cp " + m.archive + "/%f %p", "recovery_target_lsn": lsn, "recovery_target_action": "promote",
	})
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); m.sql(`SELECT pg_is_in_recovery()::text`) == "true"; <-tick.C {
		if time.Since(began) > waitLimit {
			m.t.Fatal("recovery does not end")
		}
	}
}

func (m *machine) world() *world {
	m.t.Helper()
	return newWorld(m.t, memdtest.WithDatabase(pgtest.At(m.t, m.c.URL("postgres", ""), "memd")))
}

// Base backup, and WAL to a time before an erasure, under a running server and
// worker; neither backup nor log holds a word in clear.
func TestDrill_PointInTimeBeforeAnErasure(t *testing.T) {
	t.Parallel()
	m := startMachine(t)
	w := m.world()
	w.add(said("alice", "s1", "xylophone of alice"), said("bob", "b1", "bob lives"))
	base := m.baseBackup()
	w.add(said("alice", "s1", "alice after the base backup"))
	w.flush()
	point := m.now()
	w.ForgetUser(w.srv, w.tenant, app, "alice")
	w.flush()

	m.recover(base, point)
	w.closed()
	report, err := restore.Run(t.Context(), w.config())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", report)
	if report.Erasures != 1 || report.Rows != 1 {
		t.Errorf("%+v", report)
	}
	w.reopened()
	w.wants(user("alice"))
	w.wants(user("bob"), "bob lives")
	if _, err := restore.Release(t.Context(), w.DB.Pool("")); err != nil {
		t.Fatal(err)
	}
	w.owner = w.DB.Pool("")
	w.within("the erasure done again", func() bool {
		return w.number(`SELECT count(*) FROM memd.erasures WHERE state >= 3`) == 1
	})
	w.wants(user("bob"), "bob lives")
	nothingInClear(t, m.archive, "xylophone")
	nothingInClear(t, base, "xylophone")
	nothingInClear(t, w.Ledger, "xylophone")
}

// A point in time that crossed no erasure: everything opens by itself, and new
// users get numbers that nobody had. And so does a plain restart.
func TestDrill_PointInTimeThatCrossedNothing(t *testing.T) {
	t.Parallel()
	m := startMachine(t)
	w := m.world()
	w.add(said("bob", "b1", "bob lives"))
	w.flush()
	base := m.baseBackup()
	point := m.now()
	w.add(said("dave", "d1", "dave is lost with the time"))
	lost := w.number(`SELECT max(subject_no) FROM memd.subjects`)
	m.recover(base, point)
	opens := func() {
		t.Helper()
		w.within("the gate open", func() bool {
			_, err := w.search(user("bob"))
			return err == nil
		})
		w.wants(user("bob"), "bob lives")
	}
	opens()
	w.admits("erin")
	w.owner = w.DB.Pool("")
	if n := w.number(`SELECT max(subject_no) FROM memd.subjects`); n <= lost {
		t.Errorf("number %d was given out again: %d was before", n, lost)
	}
	if err := m.c.Close(); err != nil {
		t.Fatal(err)
	}
	m.start(nil)
	opens()
}

// nothingInClear searches every byte of a folder.
func nothingInClear(t *testing.T, dir, word string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		data, err := os.ReadFile(path)
		if err == nil && bytes.Contains(bytes.ToLower(data), []byte(word)) {
			err = fmt.Errorf("%s has a word in clear", strings.TrimPrefix(path, dir))
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("%d files: %v", files, err)
	}
}
