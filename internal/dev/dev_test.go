package dev_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"forgettable.dev/memd/internal/dev"
)

func TestStart_RefusesAnAddressThatOthersReach(t *testing.T) {
	for _, address := range []string{":8787", "0.0.0.0:0", "[::]:0", "192.0.2.1:8787"} {
		dir := filepath.Join(t.TempDir(), "memd")
		_, err := dev.Start(t.Context(), dev.Config{Dir: dir, Listen: address, Logger: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), "of this machine alone") {
			t.Errorf("%s: got %v", address, err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: the folder was made all the same", address)
		}
	}
}

// TestStart_SaysWhoHasTheFolder asks for the same port too, as whoever types the
// command twice does: the folder's is the better answer.
func TestStart_SaysWhoHasTheFolder(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "memd.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	// Nobody may listen on port 1, or somebody does: either would be told
	// instead if the port came first.
	_, err = dev.Start(t.Context(), dev.Config{Dir: dir, Listen: "127.0.0.1:1", Logger: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, dev.ErrRunning) || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v", err)
	}
}
