//go:build unix

package pgtest

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Files of the shared cluster's folder. Each test process holds a shared lock
// on usersFile for as long as it lives; the process that runs the cluster goes
// when it gets that lock for itself. startFile lets one process at a time look
// whether the cluster runs and start it.
const (
	usersFile = "users"
	startFile = "start"
	urlFile   = "url"
)

// membership is this process's share of a server. The lease is never closed:
// its lock lasts as long as the process.
type membership struct {
	url   url.URL
	lease *os.File
}

var (
	serverMu sync.Mutex
	joined   *membership
)

// server returns the URL of a maintenance database on the server for tests.
func server() (url.URL, error) {
	serverMu.Lock()
	defer serverMu.Unlock()
	if joined != nil {
		return joined.url, nil
	}
	m := &membership{}
	raw := os.Getenv("MEMD_TEST_DATABASE_URL")
	if raw == "" {
		var err error
		if raw, m.lease, err = joinShared(); err != nil {
			return url.URL{}, err
		}
	}
	u, err := url.Parse(raw)
	if err != nil || u.User == nil || !strings.HasPrefix(u.Scheme, "postgres") {
		return url.URL{}, errors.New("MEMD_TEST_DATABASE_URL is not of the form postgres://user@host/database")
	}
	m.url = *u
	joined = m
	return *u, nil
}

// joinShared takes a lease on the shared cluster and starts it when it is not
// running.
func joinShared() (url string, lease *os.File, err error) {
	dir, err := sharedDir()
	if err != nil {
		return "", nil, err
	}
	users, err := lockUsers(dir)
	if err != nil {
		return "", nil, err
	}
	start, err := openLocked(filepath.Join(dir, startFile), syscall.LOCK_EX)
	if err != nil {
		return "", nil, errors.Join(err, users.Close())
	}
	defer func() { _ = start.Close() }()
	raw, err := os.ReadFile(filepath.Join(dir, urlFile))
	if err != nil || !answers(string(raw)) {
		if raw, err = spawnKeeper(dir); err != nil {
			return "", nil, errors.Join(err, users.Close())
		}
	}
	return string(raw), users, nil
}

// sharedDir is this user's and this checkout's: two checkouts may have
// different migrations and different binaries.
func sharedDir() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(root))
	return filepath.Join(os.TempDir(), fmt.Sprintf("memd-test-%d-%s", os.Geteuid(), hex.EncodeToString(sum[:5]))), nil
}

// moduleRoot is found from the working folder, which go test sets to the
// package's.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("the test does not run inside its module")
		}
		dir = parent
	}
	return "", err
}

// lockUsers makes the folder where needed and takes the lease. The last user's
// keeper removes the folder while it holds the lock alone, so that a lock on a
// file that is gone counts for nothing and is taken again.
func lockUsers(dir string) (*os.File, error) {
	path := filepath.Join(dir, usersFile)
	for {
		if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		info, err := os.Lstat(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || !info.IsDir() || stat.Uid != uint32(os.Geteuid()) || info.Mode().Perm()&0o022 != 0 {
			return nil, fmt.Errorf("%s exists and is not this user's folder", dir)
		}
		f, err := openLocked(path, syscall.LOCK_SH)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		mine, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if current, err := os.Stat(path); err == nil && os.SameFile(mine, current) {
			return f, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// openLocked waits for the lock.
func openLocked(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
	}
	return f, nil
}

func answers(url string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return false
	}
	return conn.Close(ctx) == nil
}

// spawnKeeper starts this test program again as the keeper of the cluster (see
// keeper.go) and waits until the cluster answers.
func spawnKeeper(dir string) ([]byte, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = read.Close() }()
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), keeperVariable+"="+dir)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{write}
	// Neither go test's output, which it would keep open, nor its Ctrl-C.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := errors.Join(cmd.Start(), write.Close()); err != nil {
		return nil, err
	}
	if err := cmd.Process.Release(); err != nil { // Nobody waits for it: it outlives this process.
		return nil, err
	}
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the cluster's process ended: %w", err)
	}
	word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	if word != "ready" {
		return nil, fmt.Errorf("starting the cluster: %s", rest)
	}
	return []byte(rest), nil
}
