package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// dieWithParent makes the kernel ask the server for a fast shutdown when this
// process is gone, however it went.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGINT }

// serves reports whether the process is the server of this data: a server's
// working folder is its data folder.
func serves(pid int, data string) bool {
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		return false // Gone, or another user's: then it is not ours.
	}
	want, err := filepath.EvalSymlinks(data)
	return err == nil && cwd == want
}
