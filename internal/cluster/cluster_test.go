//go:build unix

package cluster_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"forgettable.dev/memd/internal/cluster"
)

// The helper is this test program, started again: it runs a cluster in the
// folder that the variable names until it is killed.
const helperVariable = "MEMD_CLUSTER_TEST_HELPER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperVariable); dir != "" {
		c, err := cluster.Start(context.Background(), cluster.Config{Dir: dir, InsecureNoSync: true})
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println("ready", c.PID())
		_, _ = io.Copy(io.Discard, os.Stdin) // Until killed, or until the test is gone.
		_ = c.Close()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// folder is a cluster's folder, removed at the end with whatever it points to.
func folder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pg")
	t.Cleanup(func() {
		if err := cluster.Remove(dir); err != nil {
			t.Errorf("removing the cluster: %v", err)
		}
	})
	return dir
}

func start(t *testing.T, c cluster.Config) *cluster.Cluster {
	t.Helper()
	c.InsecureNoSync = true
	running, err := cluster.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := running.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return running
}

func ask(t *testing.T, url, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var answer string
	if err := conn.QueryRow(t.Context(), sql).Scan(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

func closeNow(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// waitGone waits for processes that the kernel or init ends, which send no
// signal to us.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	for ctx, tick := t.Context(), time.NewTicker(5*time.Millisecond); !gone(pid); {
		select {
		case <-ctx.Done():
			t.Fatalf("process %d still runs", pid)
		case <-tick.C:
		}
	}
}

func TestStart_KeepsDataAcrossRestarts(t *testing.T) {
	dir := folder(t)
	began := time.Now()
	c, err := cluster.Start(t.Context(), cluster.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("first start took %v", time.Since(began))
	for range 2 {
		if err := c.CreateDatabase(t.Context(), "memd"); err != nil {
			t.Fatal(err)
		}
	}
	ask(t, c.URL("memd", ""), `WITH x AS (SELECT set_config('a.b', 'c', false)) SELECT 'made' FROM x`)
	ask(t, c.URL("memd", ""), `SELECT pg_create_restore_point('here')::text`)
	settings := map[string]string{
		"listen_addresses": "", "fsync": "on", "server_encoding": "UTF8", "data_checksums": "on",
		"wal_level": "replica", "log_min_error_statement": "panic", "log_parameter_max_length_on_error": "0",
		"log_error_verbosity": "terse", "log_min_messages": "log", "max_connections": "100",
	}
	got := map[string]string{}
	for name := range settings {
		got[name] = ask(t, c.URL("memd", ""), "SHOW "+name)
	}
	if diff := cmp.Diff(settings, got); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	closeNow(t, c)

	began = time.Now()
	c = start(t, cluster.Config{Dir: dir})
	t.Logf("second start took %v", time.Since(began))
	if got := ask(t, c.URL("memd", ""), "SELECT current_database()::text"); got != "memd" {
		t.Errorf("connected to %q", got)
	}
}

func TestStart_RefusesASecondInstance(t *testing.T) {
	dir := folder(t)
	start(t, cluster.Config{Dir: dir})
	_, err := cluster.Start(t.Context(), cluster.Config{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "in use by another memd (process "+strconv.Itoa(os.Getpid())+")") {
		t.Fatalf("second start: %v", err)
	}
	if err := cluster.Remove(dir); err == nil {
		t.Fatal("a running cluster was removed")
	}
}

func TestClose_LeavesNothingRunning(t *testing.T) {
	c := start(t, cluster.Config{Dir: folder(t)})
	idle, err := pgx.Connect(t.Context(), c.URL("postgres", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = idle.Close(context.Background()) }()
	closeNow(t, c)
	closeNow(t, c)
	if !gone(c.PID()) {
		t.Error("the server still runs")
	}
	<-c.Done()
	if _, err := os.Stat(filepath.Join(c.DataDir(), "postmaster.pid")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pid file: %v", err)
	}
}

// helper starts a memd of its own and returns it and its server's process.
func helper(t *testing.T, dir string) (*exec.Cmd, int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperVariable+"="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscanf(line, "ready %d", &pid); err != nil {
		t.Fatalf("helper said %q", line)
	}
	return cmd, pid
}

func TestStart_AfterMemdWasKilled(t *testing.T) {
	dir := folder(t)
	memd, pid := helper(t, dir)
	if _, err := cluster.Start(t.Context(), cluster.Config{Dir: dir}); err == nil {
		t.Fatal("started beside a live memd")
	}
	if err := memd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = memd.Wait()
	if runtime.GOOS == "linux" {
		waitGone(t, pid) // The kernel asks it to stop.
	}
	c := start(t, cluster.Config{Dir: dir})
	if c.PID() == pid {
		t.Error("the old server still runs")
	}
}

func TestStart_RightAfterMemdWasKilled(t *testing.T) {
	dir := folder(t)
	memd, pid := helper(t, dir)
	if err := memd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = memd.Wait()
	start(t, cluster.Config{Dir: dir})
	waitGone(t, pid)
}

func TestStart_AfterTheServerWasKilled(t *testing.T) {
	dir := folder(t)
	c := start(t, cluster.Config{Dir: dir})
	if err := c.CreateDatabase(t.Context(), "kept"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(c.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	closeNow(t, c)
	c = start(t, cluster.Config{Dir: dir})
	ask(t, c.URL("kept", ""), "SELECT current_database()::text")
}

func TestStart_StopsAnOrphanedServer(t *testing.T) {
	dir := folder(t)
	c := start(t, cluster.Config{Dir: dir})
	data, programs := c.DataDir(), c.Programs()
	closeNow(t, c)

	// A server without a memd, as one is left where the kernel has no
	// parent-death signal.
	orphan := exec.Command(filepath.Join(programs, "postgres"), "-D", data)
	orphan.Dir = data
	if os.Geteuid() == 0 {
		info, err := os.Stat(data)
		if err != nil {
			t.Fatal(err)
		}
		owner := info.Sys().(*syscall.Stat_t)
		orphan.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
	}
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- orphan.Wait() }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if conn, err := pgx.Connect(t.Context(), c.URL("postgres", "")); err == nil {
			_ = conn.Close(t.Context())
			break
		}
		<-tick.C
	}
	start(t, cluster.Config{Dir: dir})
	<-ended
}

func TestStart_IgnoresAPidFileOfAnotherProcess(t *testing.T) {
	dir := folder(t)
	c := start(t, cluster.Config{Dir: dir})
	closeNow(t, c)
	// After a reboot the number may be anybody's: here it is this test's.
	pidFile := fmt.Sprintf("%d\n%s\n%d\n5432\n%s\n", os.Getpid(), c.DataDir(), time.Now().Unix(), filepath.Dir(c.DataDir()))
	if err := os.WriteFile(filepath.Join(c.DataDir(), "postmaster.pid"), []byte(pidFile), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, cluster.Config{Dir: dir})
}

func TestCluster_LogHoldsNoStatements(t *testing.T) {
	const canary = "zinnober-axolotl"
	c := start(t, cluster.Config{Dir: folder(t)})
	conn, err := pgx.Connect(t.Context(), c.URL("postgres", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for _, sql := range []string{
		`CREATE TABLE t (a text PRIMARY KEY, b int NOT NULL)`,
		`INSERT INTO t VALUES ('` + canary + `', 1)`,
		`INSERT INTO t VALUES ('` + canary + `', 1)`,     // The DETAIL names the key.
		`INSERT INTO t VALUES ('` + canary + `2', NULL)`, // The DETAIL shows the row.
		`SELECT '` + canary + `' FROM nowhere`,
		`SELECT '` + canary + `'::int`, // The message itself quotes it.
		`DO $$ BEGIN RAISE LOG 'a line of the log'; END $$`,
	} {
		_, _ = conn.Exec(t.Context(), sql) // Four are meant to fail.
	}
	log, err := os.ReadFile(c.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), "a line of the log") {
		t.Errorf("nothing is logged at all:\n%s", log)
	}
	if strings.Contains(string(log), canary) {
		t.Errorf("the log holds content:\n%s", log)
	}
}

// open gives the folders of the test above dir a mode.
func open(t *testing.T, dir string, mode os.FileMode) {
	t.Helper()
	for d := filepath.Dir(dir); d != filepath.Clean(os.TempDir()) && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, mode); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStart_AsRootReachesEveryFolder(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("not root: the server runs as this user, everywhere")
	}
	for _, mode := range []os.FileMode{0o700, 0o755} {
		t.Run(mode.String(), func(t *testing.T) {
			dir := folder(t)
			open(t, dir, mode)
			c := start(t, cluster.Config{Dir: dir})
			inside := strings.HasPrefix(c.DataDir(), dir+"/")
			if want := os.Geteuid() != 0 || mode == 0o755; inside != want {
				t.Errorf("data in %s", c.DataDir())
			}
			closeNow(t, c)
			if err := cluster.Remove(dir); err != nil {
				t.Fatal(err)
			}
			for _, d := range []string{dir, c.DataDir()} {
				if _, err := os.Stat(d); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s is still there", d)
				}
			}
		})
	}
}

func TestStart_InAFolderWithALongPath(t *testing.T) {
	short := folder(t)
	open(t, short, 0o755)
	dir := filepath.Join(short, strings.Repeat("long/", 30), "pg")
	t.Cleanup(func() { _ = cluster.Remove(dir) })
	c := start(t, cluster.Config{Dir: dir})
	socket := ask(t, c.URL("postgres", ""), "SHOW unix_socket_directories")
	if strings.HasPrefix(socket, dir) || len(socket) > 80 {
		t.Errorf("socket in %s", socket)
	}
	closeNow(t, c)
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there", socket)
	}
}

func TestFind_RefusesWhatItCannotUse(t *testing.T) {
	if _, err := cluster.Find(t.TempDir()); err == nil {
		t.Error("an empty folder was accepted")
	}
	old := t.TempDir()
	for _, name := range []string{"initdb", "postgres"} {
		script := "#!/bin/sh\necho 'postgres (PostgreSQL) 14.9'\n"
		if err := os.WriteFile(filepath.Join(old, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("MEMD_PG_BIN", old)
	if _, err := cluster.Find(""); err == nil || !strings.Contains(err.Error(), "15 or newer is needed") {
		t.Errorf("PostgreSQL 14: %v", err)
	}
	t.Setenv("MEMD_PG_BIN", "")
	p, err := cluster.Find("")
	if err != nil {
		t.Fatal(err)
	}
	if p.Major < 15 || !p.Vector {
		t.Errorf("found %+v", p)
	}
}
