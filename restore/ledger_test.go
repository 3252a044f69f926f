package restore_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"forgettable.dev/memd/shred/ledger"
)

func emptyLedger(t *testing.T) ledger.Ledger {
	t.Helper()
	folder, err := ledger.OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = folder.Close() })
	return folder
}

// removeNewest makes a ledger older by its last record.
func removeNewest(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "journal", "*"))
	if err != nil {
		return err
	}
	slices.Sort(names)
	return os.Remove(names[len(names)-1])
}
