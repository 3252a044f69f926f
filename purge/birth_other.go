//go:build !linux

package purge

import (
	"os"
	"time"
)

// birth is when a file was made; here nobody is asked.
func birth(*os.File) (time.Time, bool) { return time.Time{}, false }
