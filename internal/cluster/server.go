//go:build unix

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// server is the child process.
type server struct {
	programs Programs
	cmd      *exec.Cmd
	done     chan struct{}
	exit     error // valid once done is closed
}

// launch starts the server and waits until it answers. Processes of a server
// that was killed hold its shared memory for a moment longer; until they have
// noticed, the start is tried again.
func launch(ctx context.Context, programs Programs, p place) (*server, error) {
	for {
		offset := logSize(p.log)
		s, err := spawn(programs, p)
		if err != nil {
			return nil, err
		}
		err = s.waitReady(ctx, p)
		if err == nil {
			return s, nil
		}
		err = errors.Join(err, s.stop())
		said := logSince(p.log, offset)
		if ctx.Err() == nil && strings.Contains(said, "pre-existing shared memory block") {
			if pause(ctx) == nil {
				continue
			}
		}
		return nil, fmt.Errorf("starting PostgreSQL: %w\n%s", err, said)
	}
}

// spawn starts the process from a thread that stays until the process ends:
// Linux sends the parent-death signal when the starting thread ends.
func spawn(programs Programs, p place) (*server, error) {
	logFile, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the server's log: %w", err)
	}
	cmd := exec.Command(filepath.Join(programs.Dir, "postgres"), "-D", p.data)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = p.data, environment(), p.account.attributes()
	cmd.Stdout, cmd.Stderr = logFile, logFile
	dieWithParent(cmd.SysProcAttr)

	s := &server{programs: programs, cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // Never unlocked: the thread ends with this goroutine.
		err := cmd.Start()
		started <- err
		if err == nil {
			s.exit = cmd.Wait()
			close(s.done)
		}
	}()
	if err := errors.Join(<-started, logFile.Close()); err != nil {
		return nil, fmt.Errorf("starting PostgreSQL: %w", err)
	}
	return s, nil
}

func (s *server) waitReady(ctx context.Context, p place) error {
	for {
		conn, err := pgx.Connect(ctx, p.url("postgres", ""))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.done:
			return fmt.Errorf("the server ended at once: %v", s.exit)
		default:
		}
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for the server: %w", ctx.Err())
		}
		_ = pause(ctx) // The next round sees that ctx has ended.
	}
}

// stop ends the server: a fast shutdown, then an immediate one, then for good.
func (s *server) stop() error {
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGINT, stopTimeout}, {syscall.SIGQUIT, stopTimeout / 3}, {syscall.SIGKILL, stopTimeout / 3}} {
		if err := s.cmd.Process.Signal(step.signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stopping PostgreSQL: %w", err)
		}
		timer := time.NewTimer(step.wait)
		select {
		case <-s.done:
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
	return errors.New("stopping PostgreSQL: it does not end")
}

func pause(ctx context.Context) error {
	timer := time.NewTimer(readyPoll)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func logSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// logSince returns what the server said from offset on, a few lines at most.
func logSince(path string, offset int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	said, _ := io.ReadAll(io.LimitReader(io.NewSectionReader(f, offset, 1<<20), 4096))
	return strings.TrimSpace(string(said))
}
