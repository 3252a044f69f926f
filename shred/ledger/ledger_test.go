package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred/ledger"
)

// drivers are the kinds of ledger that keep the same promises. Each open gives
// an empty one.
var drivers = map[string]func(t *testing.T) ledger.Ledger{
	"folder": func(t *testing.T) ledger.Ledger { return openFolder(t, t.TempDir()+"/a/b") },
	"bucket": func(t *testing.T) ledger.Ledger { return openBucket(t) },
	"s3":     func(t *testing.T) ledger.Ledger { return openS3(t) },
	"gcs":    func(t *testing.T) ledger.Ledger { return openGCS(t) },
	"mirror": func(t *testing.T) ledger.Ledger {
		return ledger.Mirror([]ledger.Ledger{openBucket(t), openFolder(t, t.TempDir())})
	},
}

func openFolder(t testing.TB, dir string) *ledger.Folder {
	t.Helper()
	f, err := ledger.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func openBucket(t testing.TB) *ledger.Bucket {
	t.Helper()
	b, err := ledger.OpenBucket(context.Background(), "mem://")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func eachDriver(t *testing.T, test func(t *testing.T, l ledger.Ledger)) {
	for name, open := range drivers {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func TestLedger_WriteOnce(t *testing.T) {
	eachDriver(t, func(t *testing.T, l ledger.Ledger) {
		ctx := t.Context()
		if _, err := l.Get(ctx, "7/1"); !errors.Is(err, memd.ErrNotFound) {
			t.Errorf("get of nothing: %v", err)
		}
		if err := l.Put(ctx, "7/1", []byte("one")); err != nil {
			t.Fatal(err)
		}
		for _, data := range []string{"one", "two"} {
			if err := l.Put(ctx, "7/1", []byte(data)); !errors.Is(err, memd.ErrExists) {
				t.Errorf("put of %q again: %v", data, err)
			}
		}
		if err := ledger.PutSame(ctx, l, "7/1", []byte("one")); err != nil {
			t.Errorf("put of the same: %v", err)
		}
		if err := ledger.PutSame(ctx, l, "7/1", []byte("two")); !errors.Is(err, memd.ErrExists) {
			t.Errorf("put of another as the same: %v", err)
		}
		if err := ledger.PutSame(ctx, l, "7/2", []byte("two")); err != nil {
			t.Errorf("put of something new: %v", err)
		}
		if got, err := l.Get(ctx, "7/1"); err != nil || string(got) != "one" {
			t.Errorf("get: %q, %v", got, err)
		}
	})
}

func TestLedger_KeepsAnyBytes(t *testing.T) {
	eachDriver(t, func(t *testing.T, l ledger.Ledger) {
		for i, data := range [][]byte{{}, {0}, []byte("<html>"), bytes.Repeat([]byte{0xff, 0}, 4<<20)} {
			name := fmt.Sprintf("blobs/%d", i)
			if err := l.Put(t.Context(), name, data); err != nil {
				t.Fatal(err)
			}
			if got, err := l.Get(t.Context(), name); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes came back as %d: %v", len(data), len(got), err)
			}
		}
	})
}

func TestLedger_List(t *testing.T) {
	eachDriver(t, func(t *testing.T, l ledger.Ledger) {
		if got, err := l.List(t.Context(), ""); err != nil || len(got) != 0 {
			t.Errorf("an empty ledger lists %v: %v", got, err)
		}
		for _, name := range []string{"trees/7/2", "trees/7/1", "trees/70/1", "trees/8/1", "receipts/a", "top"} {
			if err := l.Put(t.Context(), name, []byte(name)); err != nil {
				t.Fatal(err)
			}
		}
		for prefix, want := range map[string][]string{
			"":           {"receipts/a", "top", "trees/7/1", "trees/7/2", "trees/70/1", "trees/8/1"},
			"trees/7/":   {"trees/7/1", "trees/7/2"},
			"trees/7":    {"trees/7/1", "trees/7/2", "trees/70/1"},
			"trees/7/1":  {"trees/7/1"},
			"t":          {"top", "trees/7/1", "trees/7/2", "trees/70/1", "trees/8/1"},
			"trees/9/":   {},
			"top/":       {},
			"receipts/b": {},
			"a.":         {},
		} {
			if got, err := l.List(t.Context(), prefix); err != nil || !cmp.Equal(got, want) {
				t.Errorf("%q lists %v, want %v: %v", prefix, got, want, err)
			}
		}
	})
}

func TestLedger_RefusesNames(t *testing.T) {
	eachDriver(t, func(t *testing.T, l ledger.Ledger) {
		for _, name := range []string{
			"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", "./a", "A", "a b", "a\x00b", "é", "~tmp/x", "~lock", `a\b`,
			strings.Repeat("a", ledger.MaxComponent+1), strings.Repeat("a/", ledger.MaxName/2) + "a",
		} {
			if err := l.Put(t.Context(), name, []byte("x")); !errors.Is(err, memd.ErrInvalid) {
				t.Errorf("put of %.40q: %v", name, err)
			}
			if _, err := l.Get(t.Context(), name); !errors.Is(err, memd.ErrInvalid) {
				t.Errorf("get of %.40q: %v", name, err)
			}
		}
		for _, prefix := range []string{"/", "../", "a/../", "~", "A", "a//"} {
			if _, err := l.List(t.Context(), prefix); !errors.Is(err, memd.ErrInvalid) {
				t.Errorf("list of %q: %v", prefix, err)
			}
		}
		longest := strings.Repeat("a", ledger.MaxComponent)
		if err := l.Put(t.Context(), longest, []byte("x")); err != nil {
			t.Errorf("the longest component: %v", err)
		}
	})
}

// Two processes won one name in gocloud's fileblob. Here exactly one of 16
// does, and what it wrote is what is there.
func TestLedger_OneWriterWins(t *testing.T) {
	eachDriver(t, func(t *testing.T, l ledger.Ledger) {
		const names, writers = 100, 16
		for n := range names {
			name := fmt.Sprintf("race/%d", n)
			won := make([]error, writers)
			var all sync.WaitGroup
			start := make(chan struct{})
			for w := range writers {
				all.Go(func() {
					<-start
					won[w] = l.Put(t.Context(), name, bytes.Repeat([]byte{byte(w)}, 3000))
				})
			}
			close(start)
			all.Wait()
			got, err := l.Get(t.Context(), name)
			if err != nil || len(got) != 3000 {
				t.Fatalf("%d bytes: %v", len(got), err)
			}
			for w, err := range won {
				switch {
				case err == nil && got[0] != byte(w):
					t.Errorf("%s: %d won, and %d's bytes are there", name, w, got[0])
				case err != nil && !errors.Is(err, memd.ErrExists):
					t.Errorf("%s: %v", name, err)
				case err != nil && got[0] == byte(w):
					t.Errorf("%s: %d lost, and its bytes are there", name, w)
				}
			}
		}
	})
}

func TestLedger_CancelledContext(t *testing.T) {
	eachDriver(t, func(t *testing.T, l ledger.Ledger) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := l.Put(ctx, "a", []byte("x")); !errors.Is(err, memd.ErrLedgerUnavailable) || !memd.Transient(err) {
			t.Errorf("put: %v", err)
		}
		if _, err := l.Get(t.Context(), "a"); !errors.Is(err, memd.ErrNotFound) {
			t.Errorf("a cancelled put took effect: %v", err)
		}
	})
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	for _, url := range []string{dir + "/x", "file://" + dir + "/x", "mem://"} {
		l, err := ledger.Open(t.Context(), url)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		if c, ok := l.(interface{ Close() error }); !ok || c.Close() != nil {
			t.Errorf("%s does not close", url)
		}
	}
	for _, url := range []string{"", "file://x", "http://x", "file.db://"} {
		if _, err := ledger.Open(t.Context(), url); !errors.Is(err, memd.ErrInvalid) {
			t.Errorf("%q: %v", url, err)
		}
	}
}
