package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"forgettable.dev/memd"
)

const (
	// tempDir holds files that are being written. '~' is in no ledger name, so
	// nothing in here is ever listed or read.
	tempDir  = "~tmp"
	lockFile = "~lock"

	// Whoever may read the folder may copy every sealed tree, and whoever may
	// write it may fill the names of epochs to come.
	folderMode = 0o700
	fileMode   = 0o600
)

// Folder is a Ledger in a directory of a local file system that has hard links
// and flock: not for FAT, nor for network shares without locking.
//
// Put writes a temporary file, syncs it, links it to its name and syncs the
// directories. link(2) refuses a taken name and shows the file whole, which
// neither rename (replaces) nor O_EXCL on the name itself (shows half a file
// after a crash) does.
type Folder struct {
	dir  string
	root *os.Root // refuses to follow links out of the folder
	lock *os.File
	disk disk
	// settled are the directories whose own names are known to outlive a crash.
	settled sync.Map
}

var _ Ledger = (*Folder)(nil)

// disk does what changes a folder, one system call after another. A test looks
// on, and dies where it likes.
type disk struct {
	before, after func(op, name string) // nil: nobody looks
}

func (d disk) do(op, name string, call func() error) error {
	if d.before != nil {
		d.before(op, name)
	}
	err := call()
	if d.after != nil {
		d.after(op, name)
	}
	return err
}

// OpenFolder opens the ledger in dir and creates it when missing, for the
// caller alone (0700). Files that a crash left half-written are removed when no
// other process has the folder open; they do no harm until then.
func OpenFolder(dir string) (*Folder, error) { return openFolder(dir, disk{}) }

func openFolder(dir string, d disk) (*Folder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, unavailable("finding the ledger folder", err)
	}
	if err := d.makeDurable(dir); err != nil {
		return nil, unavailable("making the ledger folder", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, unavailable("opening the ledger folder", err)
	}
	f := &Folder{dir: dir, root: root, disk: d}
	if err := f.prepare(); err != nil {
		return nil, errors.Join(unavailable("preparing the ledger folder", err), f.Close())
	}
	return f, nil
}

// makeDurable makes dir and what is missing above it, and syncs each directory
// that got a new entry.
func (d disk) makeDurable(dir string) error {
	parent := filepath.Dir(dir)
	if _, err := os.Stat(dir); err == nil || parent == dir {
		return err
	}
	if err := d.makeDurable(parent); err != nil {
		return err
	}
	err := d.do("mkdir", dir, func() error { return os.Mkdir(dir, folderMode) })
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return d.syncDir(os.Open, parent)
}

// prepare takes the shared lock that says "somebody may be writing", and
// cleans up first when it can have the exclusive one.
func (f *Folder) prepare() error {
	err := f.disk.do("mkdir", tempDir, func() error { return f.root.Mkdir(tempDir, folderMode) })
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	err = f.disk.do("create", lockFile, func() (err error) {
		f.lock, err = f.root.OpenFile(lockFile, os.O_CREATE|os.O_RDWR, fileMode)
		return err
	})
	if err != nil {
		return err
	}
	fd := int(f.lock.Fd())
	if flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		entries, err := fs.ReadDir(f.root.FS(), tempDir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := f.remove(path.Join(tempDir, e.Name())); err != nil {
				return err
			}
		}
	}
	return flock(fd, syscall.LOCK_SH)
}

// flock repeats what a signal interrupted.
func flock(fd, how int) error {
	for {
		if err := syscall.Flock(fd, how); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// String names the location for an operator.
func (f *Folder) String() string { return "folder " + f.dir }

// Close releases the folder. Nothing that was Put depends on it.
func (f *Folder) Close() error {
	var err error
	if f.lock != nil {
		err = f.lock.Close()
	}
	return errors.Join(err, f.root.Close())
}

// Put implements Ledger.
func (f *Folder) Put(ctx context.Context, name string, data []byte) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return unavailable("writing to the ledger", err)
	}
	temp := path.Join(tempDir, rand.Text())
	defer func() { _ = f.remove(temp) }() // what stays is cleaned up at a later opening
	if err := f.writeTemp(temp, stamp(name, data)); err != nil {
		return unavailable("writing to the ledger", err)
	}
	dir := path.Dir(name)
	_, settled := f.settled.Load(dir)
	if settled {
		_, err := f.root.Stat(dir)
		settled = err == nil
	}
	if !settled {
		if err := f.disk.do("mkdir", dir, func() error { return f.root.MkdirAll(dir, folderMode) }); err != nil {
			if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTDIR) {
				return errFileAndFolder
			}
			return unavailable("making a ledger folder", err)
		}
	}
	linkErr := f.disk.do("link", name, func() error { return f.root.Link(temp, name) })
	if linkErr != nil && !errors.Is(linkErr, fs.ErrExist) {
		return unavailable("naming a ledger file", linkErr)
	}
	// Also for a taken name: its writer may have died before it came this far,
	// and who learns that the name is taken will count on it. At first all
	// directories up to the root, because another process may have made one and
	// not synced it.
	for at := dir; ; at = path.Dir(at) {
		if err := f.disk.syncDir(f.root.Open, at); err != nil {
			return unavailable("syncing the ledger folder", err)
		}
		if settled || at == "." {
			break
		}
	}
	f.settled.Store(dir, nil)
	if linkErr == nil {
		return nil
	}
	if info, err := f.root.Stat(name); err == nil && info.IsDir() {
		return errFileAndFolder
	}
	return fmt.Errorf("writing to the ledger: %w", memd.ErrExists)
}

// errFileAndFolder: a bucket can have the names a and a/b, a folder cannot.
var errFileAndFolder = &memd.InvalidError{Field: "name", Problem: "is both a file and a folder of the ledger"}

func (f *Folder) writeTemp(temp string, data []byte) error {
	var file *os.File
	err := f.disk.do("create", tempDir, func() (err error) {
		file, err = f.root.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
		return err
	})
	if err != nil {
		return err
	}
	err = f.disk.do("write", tempDir, func() error { _, err := file.Write(data); return err })
	if err == nil {
		err = f.disk.do("sync", tempDir, file.Sync)
	}
	return errors.Join(err, file.Close())
}

func (f *Folder) remove(temp string) error {
	return f.disk.do("remove", tempDir, func() error { return f.root.Remove(temp) })
}

func (d disk) syncDir(open func(string) (*os.File, error), dir string) error {
	file, err := open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.do("sync", dir, file.Sync), file.Close())
}

// Get implements Ledger.
func (f *Folder) Get(ctx context.Context, name string) ([]byte, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, unavailable("reading from the ledger", err)
	}
	stored, err := f.root.ReadFile(name)
	switch {
	case err == nil:
		return unstamp(name, stored)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR):
		return nil, fmt.Errorf("reading from the ledger: %w", memd.ErrNotFound)
	default:
		return nil, unavailable("reading from the ledger", err)
	}
}

// List implements Ledger.
func (f *Folder) List(ctx context.Context, prefix string) ([]string, error) {
	if err := checkPrefix(prefix); err != nil {
		return nil, err
	}
	// Only the folder that holds the prefix is walked.
	start := "."
	if i := strings.LastIndexByte(prefix, '/'); i > 0 {
		start = prefix[:i]
	}
	names := []string{}
	err := fs.WalkDir(f.root.FS(), start, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			if name == start && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) {
				return nil
			}
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case e.IsDir():
			if name != "." && checkName(name) != nil {
				return fs.SkipDir
			}
		case e.Type().IsRegular() && checkName(name) == nil && strings.HasPrefix(name, prefix):
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		return nil, unavailable("listing the ledger", err)
	}
	slices.Sort(names)
	return names, nil
}
