//go:build unix

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"forgettable.dev/memd/internal/cluster"
)

const (
	keeperVariable = "MEMD_PGTEST_KEEPER"
	// keeperGrace is how long the cluster outlives its last user: go test runs
	// packages one after another, with compilation between them.
	keeperGrace = 3 * time.Second
	keeperPoll  = 100 * time.Millisecond
)

// init turns the process into the keeper when spawnKeeper started it. It has
// to be here, because only the importing test's program is certain to exist,
// and its TestMain belongs to the test.
func init() {
	if dir := os.Getenv(keeperVariable); dir != "" {
		os.Exit(keep(dir))
	}
}

// keep runs the cluster until nobody has used it for a while, then removes it.
// It tells its parent over file 3 how the start went.
func keep(dir string) int {
	report := os.NewFile(3, "report")
	c, err := cluster.Start(context.Background(), cluster.Config{
		Dir: filepath.Join(dir, "cluster"), MaxConnections: 300, InsecureNoSync: true,
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, urlFile), []byte(c.URL("postgres", "")), 0o600)
	}
	if err != nil {
		_, _ = fmt.Fprintln(report, "error", strings.ReplaceAll(err.Error(), "\n", " "))
		return 1
	}
	_, err = fmt.Fprintln(report, "ready", c.URL("postgres", ""))
	if err = errors.Join(err, report.Close()); err != nil {
		return 1
	}
	users, err := os.OpenFile(filepath.Join(dir, usersFile), os.O_RDWR, 0o600)
	if err != nil {
		return 1
	}
	if !waitIdle(users, c.Done()) {
		return 1 // The server died; the next user starts another keeper.
	}
	// Newcomers wait for the lock that this process now holds alone, and find
	// the folder gone. The data is removed by its own path as well, in case
	// somebody deleted the folder that points to it.
	err = errors.Join(c.Close(), os.RemoveAll(filepath.Dir(c.DataDir())), os.RemoveAll(dir))
	if err != nil {
		return 1
	}
	return 0
}

// waitIdle returns true with the lock held alone when no process had a lease
// for keeperGrace.
func waitIdle(users *os.File, died <-chan struct{}) bool {
	ticker := time.NewTicker(keeperPoll)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-died:
			return false
		case <-ticker.C:
		}
		if err := syscall.Flock(int(users.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			last = time.Now()
			continue
		}
		if time.Since(last) >= keeperGrace {
			return true
		}
		if err := syscall.Flock(int(users.Fd()), syscall.LOCK_UN); err != nil {
			return false
		}
	}
}
