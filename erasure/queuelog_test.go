package erasure_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd/erasure"
)

// What the queue repeats is told once a minute, derived loggers included, what goes
// right and what only says that the process ends is not.
func TestQueueLog(t *testing.T) {
	var out bytes.Buffer
	now := time.Date(2026, 3, 5, 12, 0, 0, 0, time.UTC)
	text := slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	log := slog.New(erasure.NewQueueLog(text, func() time.Time { return now }))
	log.Info("a job was done")
	log.Warn("a job was put off")
	log.Error("Elector: not elected", "err", errors.New("no database"))
	log.With("client", 1).Error("Elector: not elected", "err", errors.New("no database"))
	log.WithGroup("g").Error("Elector: not elected", "err", errors.New("no database"))
	log.Error("Notifier: no connection", "err", context.Canceled)
	now = now.Add(time.Minute)
	log.Error("Elector: not elected", "err", errors.New("no database"))
	want := []string{
		`level=WARN msg="job queue: Elector: not elected" err="no database"`,
		`level=WARN msg="job queue: Elector: not elected" err="no database" times_before=2`,
	}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(out.String()), "\n")); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}
