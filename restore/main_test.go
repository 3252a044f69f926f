package restore_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// binaries is a folder for what tests build.
var binaries string

// TestMain has all tests run beside each other: most of what they do is to wait.
func TestMain(m *testing.M) {
	var err error
	if binaries, err = os.MkdirTemp("", "memd-restore-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(binaries)
		os.Exit(code)
	}))
}
