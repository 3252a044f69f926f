package purge

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"forgettable.dev/memd/shred"
)

const (
	// maxLine is the longest line that is looked at.
	maxLine = 8 << 20
	// maxFiles is how many files one pattern may mean.
	maxFiles = 1024
	// settled is for how long nobody must have written to a file whose last line
	// has no end, before that line counts as whole.
	settled = time.Minute
	// A batch of lines is overwritten at a time.
	batchLines = 1024
	batchBytes = 4 << 20
)

// logFile counts or overwrites the subject's lines in all files of a target. A
// tenant's erasure goes by the digests in Request.Refs alone, which are empty for a
// tenant that never had a user, and nil where nobody looked.
func (c *Caller) logFile(ctx context.Context, t Target, op Op, r Request) (outcome, error) {
	if r.Mode == ModeTenant && r.Refs == nil {
		return outcome{}, failed(CodeUnimplemented)
	}
	var m *matcher
	err := c.c.Keys(ctx, t.Tenant, func(k *shred.Keys) error {
		m = newMatcher(k, t, r)
		return nil
	})
	if err != nil {
		return outcome{}, fmt.Errorf("making the digests for a log file: %w", err)
	}
	out := outcome{counted: true}
	err = c.eachFile(t, func(root *os.Root, name string, before fs.FileInfo) error {
		n, err := c.oneFile(ctx, root, name, before, op, m)
		out.n += n
		return err
	})
	if err != nil {
		return outcome{}, err
	}
	return out, nil
}

// eachFile calls f with every file that the target's path means, by its name
// below an allowed folder.
func (c *Caller) eachFile(t Target, f func(root *os.Root, name string, info fs.FileInfo) error) error {
	dir, rest, ok := c.allowedDir(t.Path)
	if !ok {
		return failed(CodePath)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return failed(CodeLogMissing)
	}
	defer root.Close()
	folder, pattern := path.Split(rest)
	folder = path.Clean(folder)
	if err := noLinks(root, folder); err != nil {
		return err
	}
	// Rotation moves files from a shorter name to a longer one: log, log.1, log.2
	// and so on. In this order one that moves meanwhile is seen twice, and never
	// not at all; the second listing finds what moved to a name that was new.
	seen := map[string]bool{}
	for range 2 {
		names, err := list(root, folder, pattern)
		if err != nil {
			return err
		}
		slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) })
		for _, name := range names {
			if seen[name] {
				continue
			}
			seen[name] = true
			if err := look(root, path.Join(folder, name), f); err != nil {
				return err
			}
		}
	}
	if len(seen) == 0 {
		return failed(CodeLogMissing)
	}
	return nil
}

// look calls f with one file.
func look(root *os.Root, name string, f func(*os.Root, string, fs.FileInfo) error) error {
	info, err := root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return failed(CodeLogMissing)
	case err != nil:
		return failed(CodeLogFailed)
	case !info.Mode().IsRegular():
		return failed(CodePath)
	}
	return f(root, name, info)
}

// allowedDir returns the allowed folder that the path is below, and the rest.
func (c *Caller) allowedDir(p string) (dir, rest string, ok bool) {
	for _, dir := range c.c.LogDirs {
		rest, err := filepath.Rel(dir, p)
		if err == nil && filepath.IsLocal(rest) && rest != "." {
			return dir, filepath.ToSlash(rest), true
		}
	}
	return "", "", false
}

// noLinks refuses symbolic links among the folders below an allowed one, also
// those that stay inside.
func noLinks(root *os.Root, folder string) error {
	if folder == "." {
		return nil
	}
	var at string
	for _, part := range strings.Split(folder, "/") {
		at = path.Join(at, part)
		info, err := root.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return failed(CodeLogMissing)
		case err != nil || !info.IsDir():
			return failed(CodePath)
		}
	}
	return nil
}

// list returns the names in a folder that match; a name without a pattern is
// itself, whether or not it is there.
func list(root *os.Root, folder, pattern string) ([]string, error) {
	if !strings.ContainsAny(pattern, `*?[\`) {
		return []string{pattern}, nil
	}
	d, err := root.Open(folder)
	if err != nil {
		return nil, failed(CodeLogFailed)
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return nil, failed(CodeLogFailed)
	}
	var names []string
	for _, e := range entries {
		if ok, err := path.Match(pattern, e.Name()); err == nil && ok {
			names = append(names, e.Name())
		}
	}
	if len(names) > maxFiles {
		return nil, failed(CodePath)
	}
	return names, nil
}

// oneFile opens a file that was looked at as info, and nothing else.
func (c *Caller) oneFile(ctx context.Context, root *os.Root, name string, info fs.FileInfo, op Op, m *matcher) (int64, error) {
	flags := os.O_RDONLY
	if op == OpErase {
		flags = os.O_RDWR
	}
	f, err := root.OpenFile(name, flags|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return 0, failed(CodeLogFailed)
	}
	defer f.Close()
	now, err := f.Stat()
	switch {
	case err != nil:
		return 0, failed(CodeLogFailed)
	case !os.SameFile(info, now):
		return 0, failed(CodeLogBusy)
	case !now.Mode().IsRegular() || linked(now):
		return 0, failed(CodePath)
	}
	return c.scan(ctx, f, now, op, m)
}

// linked reports whether the file has a second name, which may be in a folder
// that is not allowed.
func linked(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && s.Nlink > 1
}

// hit is a line of the subject: where it stands, what it says, and what it was
// found by.
type hit struct {
	at    int64
	line  []byte
	spans []span
}

// scan reads a file from its beginning to its end of now, and counts, or
// overwrites as it goes.
func (c *Caller) scan(ctx context.Context, f *os.File, info fs.FileInfo, op Op, m *matcher) (int64, error) {
	var n, at int64
	var hits []hit
	var size int
	flush := func() error {
		err := c.overwrite(f, hits)
		hits, size = hits[:0], 0
		return err
	}
	r := bufio.NewReaderSize(io.NewSectionReader(f, 0, 1<<62), 256<<10)
	if head, _ := r.Peek(4); compressed(head) {
		return 0, failed(CodeLogFormat)
	}
	for {
		if ctx.Err() != nil {
			return n, fmt.Errorf("reading a log file: %w", ctx.Err())
		}
		line, ended, err := readLine(r)
		if err != nil {
			return n, err
		}
		if len(line) == 0 && !ended {
			break
		}
		if spans := m.match(line); spans != nil {
			n++
			if op == OpErase {
				if !ended && c.c.Clock.Now().Sub(info.ModTime()) < settled {
					// The rest of it would stay, and could not be found.
					return n, errors.Join(failed(CodeLogBusy), flush())
				}
				hits = append(hits, hit{at, bytes.Clone(line), spans})
				size += len(line)
			}
		}
		at += int64(len(line))
		if !ended {
			break
		}
		at++
		if len(hits) >= batchLines || size >= batchBytes {
			if err := flush(); err != nil {
				return n, err
			}
		}
	}
	return n, flush()
}

// readLine returns the next line without its newline, and whether it has one.
// The line is the reader's until the next call, unless it was too long for it.
func readLine(r *bufio.Reader) (line []byte, ended bool, err error) {
	line, err = r.ReadSlice('\n')
	for errors.Is(err, bufio.ErrBufferFull) {
		line = bytes.Clone(line)
		var more []byte
		more, err = r.ReadSlice('\n')
		line = append(line, more...)
		if len(line) > maxLine {
			return nil, false, failed(CodeLogFormat)
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, failed(CodeLogFailed)
	}
	if err == nil {
		return line[:len(line)-1], true, nil
	}
	return line, false, nil
}

// compressed knows the beginnings of gzip, zstd, xz and bzip2.
func compressed(head []byte) bool {
	for _, magic := range []string{"\x1f\x8b", "\x28\xb5\x2f\xfd", "\xfd7zX", "BZh"} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return true
		}
	}
	return false
}
