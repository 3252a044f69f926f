package ledger_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred/ledger"
)

// Whichever byte of a stored value changes, whichever is lost or added, and
// wherever a whole one is put: it is not read.
func TestFolder_RefusesEveryChangedByte(t *testing.T) {
	dir := t.TempDir()
	f := openFolder(t, dir)
	if err := f.Put(t.Context(), "trees/7/1", []byte("a sealed tree\n")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "trees", "7", "1")
	stored, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	refuses := func(what, name string, data []byte) {
		t.Helper()
		at := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.WriteFile(at, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := f.Get(t.Context(), name); !errors.Is(err, memd.ErrCorrupt) {
			t.Errorf("%s is read as %q: %v", what, got, err)
		}
		if err := ledger.PutSame(t.Context(), f, name, []byte("a sealed tree\n")); !errors.Is(err, memd.ErrCorrupt) {
			t.Errorf("%s counts as written: %v", what, err)
		}
	}
	for i := range stored {
		changed := append([]byte(nil), stored...)
		changed[i] ^= 0x20 // the other case of a letter, too
		refuses("a value with a changed byte", "trees/7/1", changed)
		refuses("a value that is cut off", "trees/7/1", stored[:i])
	}
	refuses("a value with a byte more", "trees/7/1", append(append([]byte(nil), stored...), 0))
	refuses("another's value", "trees/7/2", stored)
	if err := os.WriteFile(file, stored, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Get(t.Context(), "trees/7/1"); err != nil || string(got) != "a sealed tree\n" {
		t.Errorf("the value itself: %q, %v", got, err)
	}
}

// A location with a damaged copy does not cost the copy of another.
func TestMirrored_ReadsPastADamagedCopy(t *testing.T) {
	dir := t.TempDir()
	m := ledger.Mirror([]ledger.Ledger{openFolder(t, dir), openBucket(t)})
	if err := m.Put(t.Context(), "trees/7/1", []byte("a tree")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "trees", "7", "1"), []byte("a tree"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Get(t.Context(), "trees/7/1"); err != nil || string(got) != "a tree" {
		t.Errorf("%q, %v", got, err)
	}
	if err := ledger.PutSame(t.Context(), m, "trees/7/1", []byte("a tree")); !errors.Is(err, memd.ErrCorrupt) {
		t.Errorf("a copy that is damaged counts as written: %v", err)
	}
}
