//go:build unix

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// stopOrphan ends the server of an earlier process that was killed, and clears
// away the pid file when it names a process that is no server of ours. The
// caller holds the folder's lock, so that whatever runs here is an orphan.
func stopOrphan(ctx context.Context, data string) error {
	file := filepath.Join(data, "postmaster.pid")
	content, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the server's pid file: %w", err)
	}
	line, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid <= 1 {
		return nil // Unfinished or empty: the server copes with it.
	}
	if !alive(pid) {
		return nil // Stale: the server sees that for itself, and recovers.
	}
	if !serves(pid, data) {
		// After a reboot the number is somebody else's, and the server would
		// refuse to start for as long as that process lives.
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("removing a stale pid file: %w", err)
		}
		return nil
	}
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGINT, stopTimeout}, {syscall.SIGQUIT, stopTimeout / 3}, {syscall.SIGKILL, stopTimeout / 3}} {
		if err := syscall.Kill(pid, step.signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stopping the server that was left running: %w", err)
		}
		limited, cancel := context.WithTimeout(ctx, step.wait)
		for alive(pid) && serves(pid, data) && pause(limited) == nil {
			continue
		}
		cancel()
		if !alive(pid) || !serves(pid, data) {
			return nil
		}
	}
	return fmt.Errorf("the server that was left running (process %d) does not end", pid)
}

func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
