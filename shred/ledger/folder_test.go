package ledger_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred/ledger"
)

// writerDir makes the test binary a writer that is killed, see
// TestFolder_KilledWriters.
const writerDir = "MEMD_TEST_LEDGER_WRITER"

func TestMain(m *testing.M) {
	if dir, point := os.Getenv(writerDir), os.Getenv(killAt); dir != "" && point != "" {
		os.Exit(writeAndDie(dir, point))
	} else if dir != "" {
		os.Exit(writeUntilKilled(dir, os.Args[1]))
	}
	os.Exit(m.Run())
}

// writeUntilKilled puts one name after another and acknowledges each on
// standard output once Put returned.
func writeUntilKilled(dir, who string) int {
	f, err := ledger.OpenFolder(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s/%d/%d", who, i%3, i)
		if err := f.Put(context.Background(), name, contentOf(name)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(name)
	}
}

// contentOf is what the writers put under a name: from 0 to 1 MiB: a kill lands inside a large
// write more often than between two small ones.
func contentOf(name string) []byte {
	sum := sha256.Sum256([]byte(name))
	return bytes.Repeat(sum[:], int(sum[0])*128)
}

func TestFolder_KilledWriters(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	acknowledged, left := map[string]bool{}, 0
	for round := range 20 {
		cmd := exec.Command(self, fmt.Sprintf("w%d", round))
		cmd.Env = append(os.Environ(), writerDir+"="+dir)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The kill comes at a random moment after a random number of names.
		lines := bufio.NewScanner(out)
		for range 1 + r.IntN(5) {
			if !lines.Scan() {
				t.Fatalf("writer ended by itself: %s", stderr.String())
			}
			acknowledged[lines.Text()] = true
		}
		moment := time.Now().Add(time.Duration(r.IntN(2000)) * time.Microsecond)
		for time.Now().Before(moment) {
			continue // a timer is too coarse to hit the middle of a write
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() {
			acknowledged[lines.Text()] = true
		}
		_ = cmd.Wait() // killed: that is its error

		temps, err := os.ReadDir(filepath.Join(dir, "~tmp"))
		if err != nil {
			t.Fatal(err)
		}
		left += len(temps)
		f, err := ledger.OpenFolder(dir)
		if err != nil {
			t.Fatal(err)
		}
		if temps, err := os.ReadDir(filepath.Join(dir, "~tmp")); err != nil || len(temps) != 0 {
			t.Fatalf("%d temporary files survive an opening: %v", len(temps), err)
		}
		names, err := f.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		listed := map[string]bool{}
		for _, name := range names {
			listed[name] = true
			if got, err := f.Get(t.Context(), name); err != nil || !bytes.Equal(got, contentOf(name)) {
				t.Fatalf("%s is not whole: %d bytes, %v", name, len(got), err)
			}
		}
		for name := range acknowledged {
			if !listed[name] {
				t.Fatalf("%s was acknowledged and is lost", name)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d names acknowledged, %d temporary files left by the killed and cleaned up", len(acknowledged), left)
}

func TestFolder_LeavesTempsOfTheLiving(t *testing.T) {
	dir := t.TempDir()
	first := openFolder(t, dir)
	temp := filepath.Join(dir, "~tmp", "being-written")
	if err := os.WriteFile(temp, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := ledger.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(temp); err != nil {
		t.Errorf("a file of a process that lives was removed: %v", err)
	}
	if names, err := second.List(t.Context(), ""); err != nil || len(names) != 0 {
		t.Errorf("temporary files are listed: %v, %v", names, err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if err := first.Put(t.Context(), "a", nil); err != nil {
		t.Errorf("the first was closed with the second: %v", err)
	}
}

func TestFolder_IsForItsOwnerAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "ledger")
	if err := openFolder(t, dir).Put(t.Context(), "7/1", []byte("x")); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(filepath.Dir(dir), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFolder_FollowsNoLinkOut(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	f := openFolder(t, dir)
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Get(t.Context(), "out/secret"); err == nil {
		t.Errorf("read %q outside the folder", got)
	}
	if err := f.Put(t.Context(), "out/new", []byte("x")); err == nil {
		t.Error("wrote outside the folder")
	}
	if _, err := os.Stat(filepath.Join(outside, "new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("wrote outside the folder: %v", err)
	}
}

func TestFolder_NameThatIsAFolder(t *testing.T) {
	f := openFolder(t, t.TempDir())
	if err := f.Put(t.Context(), "a/b", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := f.Put(t.Context(), "a", []byte("x")); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("file over a folder: %v", err)
	}
	if err := f.Put(t.Context(), "a/b/c", []byte("x")); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("folder over a file: %v", err)
	}
	for _, name := range []string{"a", "a/b/c"} {
		if _, err := f.Get(t.Context(), name); !errors.Is(err, memd.ErrNotFound) {
			t.Errorf("get %s: %v", name, err)
		}
	}
}

func TestFolder_SaysWhatIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ledger.OpenFolder(file); !errors.Is(err, memd.ErrLedgerUnavailable) || !strings.Contains(err.Error(), "directory") {
		t.Errorf("a file as a folder: %v", err)
	}
}
