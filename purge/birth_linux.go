package purge

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// birth is when a file was made, where the file system knows.
func birth(f *os.File) (time.Time, bool) {
	var s unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &s)
	if err != nil || s.Mask&unix.STATX_BTIME == 0 {
		return time.Time{}, false
	}
	return time.Unix(s.Btime.Sec, int64(s.Btime.Nsec)), true
}
