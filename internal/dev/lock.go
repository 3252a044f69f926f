package dev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrRunning: another memd runs on the folder.
var ErrRunning = errors.New("another memd dev runs on that folder")

const lockFile = "memd.lock"

// lock keeps the folder for this process until it calls what it gets, or dies.
// The file stays: removing it would let two processes lock two files of one
// name.
func lock(dir string) (release func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the folder: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, errors.Join(fmt.Errorf("%w: %s", ErrRunning, dir), f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("locking the folder: %w", err), f.Close())
	}
	return f.Close, nil
}
