package export

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"forgettable.dev/memd"
)

// folder is a Store in a directory of a file system, the caller's alone. An object
// has the suffix of what is not whole until it is synced.
type folder struct{ root *os.Root }

const unfinished = ".part"

func openFolder(dir string) (Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, unavailable("finding the folder of exports", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, unavailable("making the folder of exports", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, unavailable("opening the folder of exports", err)
	}
	return &folder{root}, nil
}

// Write implements Store: a file, its sync, its name, the folder's sync.
func (f *folder) Write(ctx context.Context, name uuid.UUID, write func(io.Writer) error) error {
	temp := name.String() + unfinished
	file, err := f.root.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return unavailable("making an object", err)
	}
	err = write(file)
	if err == nil {
		err = wrap("syncing an object", file.Sync())
	}
	err = errors.Join(err, wrap("closing an object", file.Close()))
	if err == nil {
		err = wrap("naming an object", f.root.Rename(temp, name.String()))
	}
	if err == nil {
		err = f.sync()
	}
	if err != nil {
		_ = f.root.Remove(temp) // What stays is found by List.
	}
	return err
}

func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return unavailable(doing, err)
}

func (f *folder) sync() error {
	d, err := f.root.Open(".")
	if err != nil {
		return unavailable("opening the folder of exports", err)
	}
	return wrap("syncing the folder of exports", errors.Join(d.Sync(), d.Close()))
}

// Read implements Store.
func (f *folder) Read(_ context.Context, name uuid.UUID, offset, length int64) (io.ReadCloser, error) {
	file, err := f.root.Open(name.String())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading an object: %w", memd.ErrNotFound)
	}
	if err != nil {
		return nil, unavailable("opening an object", err)
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(file, offset, length), file}, nil
}

// Delete implements Store.
func (f *folder) Delete(_ context.Context, name uuid.UUID) error {
	for _, n := range []string{name.String(), name.String() + unfinished} {
		if err := f.root.Remove(n); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return unavailable("deleting an object", err)
		}
	}
	return f.sync()
}

// Exists implements Store.
func (f *folder) Exists(_ context.Context, name uuid.UUID) (bool, error) {
	for _, n := range []string{name.String(), name.String() + unfinished} {
		_, err := f.root.Lstat(n)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return false, unavailable("looking for an object", err)
		}
	}
	return false, nil
}

// List implements Store. What has another name is none of memd's.
func (f *folder) List(_ context.Context, fn func(uuid.UUID) error) error {
	entries, err := fs.ReadDir(f.root.FS(), ".")
	if err != nil {
		return unavailable("listing the folder of exports", err)
	}
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), unfinished)
		if id, err := uuid.Parse(name); err == nil && id.String() == name {
			if err := fn(id); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close implements Store.
func (f *folder) Close() error { return f.root.Close() }
