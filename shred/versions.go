package shred

import (
	"errors"
	"strconv"
	"strings"

	"forgettable.dev/memd"
)

// versionNumber returns the number that the KMS gave a version of key. Numbers
// grow from 1 and are never used twice, so they tell which version is older.
func versionNumber(key, version string) (int64, error) {
	number, ok := strings.CutPrefix(version, key+versionPart)
	if !ok {
		return 0, corrupt("version belongs to another key")
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != number {
		return 0, corrupt("version has no number")
	}
	return n, nil
}

// doomedVersion reports whether err says that the version is destroyed or
// waits to be. A disabled version is memd.ErrShredded too, and is not doomed:
// somebody may enable it again.
func doomedVersion(err error) bool {
	if !errors.Is(err, memd.ErrShredded) {
		return false
	}
	var state *VersionStateError
	return !errors.As(err, &state) || state.State.Doomed()
}
