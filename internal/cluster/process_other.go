//go:build unix && !linux

package cluster

import (
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent has no equivalent here: a server whose memd was killed runs on
// until the next Start stops it.
func dieWithParent(*syscall.SysProcAttr) {}

// serves reports whether the process is the server of this data, by its
// command line.
func serves(pid int, data string) bool {
	command, err := run("ps", "-p", strconv.Itoa(pid), "-o", "command=")
	return err == nil && strings.Contains(command, "postgres") && strings.HasSuffix(command, "-D "+data)
}
