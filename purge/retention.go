package purge

import (
	"io/fs"
	"os"
	"syscall"
	"time"
)

// retention erases nothing: what the store holds goes by itself, within a time
// that is short. Where the store is files, none may be older than that, because
// then it does not go.
func (c *Caller) retention(t Target) (outcome, error) {
	if t.Retention <= 0 || t.Retention > MaxShortRetention {
		return outcome{}, failed(CodeRetention)
	}
	if t.Path == "" {
		return outcome{residual: true}, nil
	}
	now := c.c.Clock.Now()
	err := c.eachFile(t, func(root *os.Root, name string, info fs.FileInfo) error {
		f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err != nil {
			return failed(CodeLogFailed)
		}
		defer f.Close()
		if now.Sub(oldest(f, info)) > t.Retention {
			return failed(CodeRetention)
		}
		return nil
	})
	if err != nil {
		return outcome{}, err
	}
	return outcome{residual: true}, nil
}

// oldest is since when something may be in a file: since it was made, where the
// file system keeps that, because a file that is always appended to looks young
// and has old lines; else since it was last written to.
func oldest(f *os.File, info fs.FileInfo) time.Time {
	if born, ok := birth(f); ok && born.Before(info.ModTime()) {
		return born
	}
	return info.ModTime()
}
