package dev_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
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

// TestStart_IsQuietWithNothingToDo: what looks for work must not be woken by its own
// looking. A loop that is makes thousands of transactions a second; polling makes
// some tens, and a slow machine fewer.
func TestStart_IsQuietWithNothingToDo(t *testing.T) {
	const most, window = 400, 2 * time.Second
	ctx := t.Context()
	d, err := dev.Start(ctx, dev.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	conn, err := pgx.Connect(ctx, d.Cluster.URL(dev.Database, ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(ctx)) })
	count := func() (n int64) {
		if err := conn.QueryRow(ctx, `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	pass := func() { // nothing is waited for: how much is done in that time is what is asked
		if _, err := conn.Exec(ctx, `SELECT pg_sleep($1)`, window.Seconds()); err != nil {
			t.Fatal(err)
		}
	}
	pass() // what starting made is counted by then: sessions report once a second
	before := count()
	pass()
	if n := count() - before; n > most*int64(window/time.Second) {
		t.Errorf("%d transactions in %v of doing nothing, more than %d a second", n, window, most)
	}
}
