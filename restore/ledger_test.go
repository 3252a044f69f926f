package restore_test

import (
	"os"
	"path/filepath"
	"slices"
)

// removeNewest makes a ledger older by its last record.
func removeNewest(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "journal", "*"))
	if err != nil {
		return err
	}
	slices.Sort(names)
	return os.Remove(names[len(names)-1])
}
