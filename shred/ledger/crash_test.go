package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred/ledger"
)

// killAt makes the test binary a writer that dies at the point of that number.
const killAt = "MEMD_TEST_LEDGER_KILL_AT"

// line is what the writer writes, in order: a head that must only grow.
var line = []string{"trees/7/1", "trees/7/2"}

// writeAndDie puts the line into dir and acknowledges each name on standard
// output. Before and after each system call that changes the folder is a point;
// at the point-th it kills itself.
func writeAndDie(dir, point string) int {
	left, err := strconv.Atoi(point)
	if err != nil {
		return 2
	}
	count := func(string, string) {
		if left--; left == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // not one instruction more
		}
	}
	if err := writeLine(dir, count, func(name string) { fmt.Println(name) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func writeLine(dir string, each func(op, name string), acknowledge func(name string)) error {
	f, err := ledger.OpenWatched(dir, each, each)
	if err != nil {
		return err
	}
	for _, name := range line {
		if err := ledger.PutSame(context.Background(), f, name, []byte(name)); err != nil {
			return errors.Join(err, f.Close())
		}
		acknowledge(name)
	}
	return f.Close()
}

// TestFolder_KilledAtEverySystemCall kills a writer before and after each system
// call that changes the folder, for every one of them. Whatever it had
// acknowledged is there and whole; nothing is there in part; names came in order;
// and the next writer goes on from there and ends like one that nobody killed.
func TestFolder_KilledAtEverySystemCall(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(dir string, point int) (acknowledged []string, killed bool) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), writerDir+"="+dir, fmt.Sprintf("%s=%d", killAt, point))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		var exit *exec.ExitError
		if err != nil && (!errors.As(err, &exit) || exit.Exited()) {
			t.Fatalf("the writer ended by itself: %v: %s", err, stderr.String())
		}
		return strings.Fields(string(out)), err != nil
	}
	points := 0
	for point := 1; ; point++ {
		dir := filepath.Join(t.TempDir(), "a", "ledger")
		acknowledged, killed := run(dir, point)
		if !killed {
			break
		}
		points = point
		if _, err := os.Stat(dir); err == nil {
			before := contents(t, dir)
			if len(before) < len(acknowledged) || len(before) > len(acknowledged)+1 || !slices.Equal(before, line[:len(before)]) {
				t.Errorf("killed at %d: %v were acknowledged, and there are %v", point, acknowledged, before)
			}
		}
		if err := writeLine(dir, nil, func(string) {}); err != nil {
			t.Errorf("killed at %d: the next writer: %v", point, err)
		}
		if after := contents(t, dir); !slices.Equal(after, line) {
			t.Errorf("killed at %d: in the end there are %v", point, after)
		}
		if temps, err := os.ReadDir(filepath.Join(dir, "~tmp")); err != nil || len(temps) != 0 {
			t.Errorf("killed at %d: %d temporary files are left: %v", point, len(temps), err)
		}
	}
	t.Logf("%d points", points)
	if points < 30 {
		t.Errorf("only %d points: the test would be vacuous", points)
	}
}

// contents are the names in a folder, each of them read.
func contents(t *testing.T, dir string) []string {
	t.Helper()
	f, err := ledger.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	names, err := f.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if data, err := f.Get(t.Context(), name); err != nil || string(data) != name {
			t.Errorf("%s is not whole: %q, %v", name, data, err)
		}
	}
	return names
}

// A kill leaves what the kernel has, a power failure only what was synced. So the
// order counts as well: a file is synced before it gets its name, and every
// directory up to the root after that, and only then Put returns.
func TestFolder_SyncsBeforeItAcknowledges(t *testing.T) {
	dir, calls := t.TempDir(), []string{}
	f, err := ledger.OpenWatched(dir, nil, func(op, name string) { calls = append(calls, op+" "+name) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, c := range []struct {
		what string
		want []string
		err  error
	}{
		{"a new name", []string{
			"create ~tmp", "write ~tmp", "sync ~tmp", "mkdir trees/7", "link trees/7/1", "sync trees/7", "sync trees", "sync .", "remove ~tmp",
		}, nil},
		// Its writer may have died before it synced.
		{"one that is taken", []string{
			"create ~tmp", "write ~tmp", "sync ~tmp", "link trees/7/1", "sync trees/7", "remove ~tmp",
		}, memd.ErrExists},
	} {
		calls = nil
		if err := f.Put(t.Context(), "trees/7/1", []byte("x")); !errors.Is(err, c.err) {
			t.Errorf("%s: %v", c.what, err)
		}
		if diff := cmp.Diff(c.want, calls); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, diff)
		}
	}
}
