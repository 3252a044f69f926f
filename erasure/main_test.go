package erasure_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// built is the folder of the binary that tests built, if any did.
var built string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(built) // In the system's folder for such.
		os.Exit(code)
	}))
}
