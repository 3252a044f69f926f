package erasure

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// queueLogEvery is how often one kind of message of the job queue is told.
const queueLogEvery = time.Minute

// queueLog passes on what the job queue says went wrong, as warnings, because it
// tries all of it again by itself: each kind of message once a minute, with how
// often it came in between, and nothing that only says that this process ends. What
// goes right it does not pass on.
type queueLog struct {
	to   slog.Handler
	now  func() time.Time
	told *toldMessages
}

// toldMessages is shared by a handler and those derived from it.
type toldMessages struct {
	mu   sync.Mutex
	last map[string]time.Time
	held map[string]int
}

func newQueueLog(to slog.Handler, now func() time.Time) *queueLog {
	return &queueLog{to: to, now: now, told: &toldMessages{last: map[string]time.Time{}, held: map[string]int{}}}
}

// Enabled implements slog.Handler.
func (h *queueLog) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelError && h.to.Enabled(ctx, slog.LevelWarn)
}

// Handle implements slog.Handler.
func (h *queueLog) Handle(ctx context.Context, r slog.Record) error {
	ending := false
	r.Attrs(func(a slog.Attr) bool {
		ending = strings.Contains(a.Value.String(), context.Canceled.Error())
		return !ending
	})
	if ending {
		return nil
	}
	held, tell := h.told.tell(r.Message, h.now())
	if !tell {
		return nil
	}
	r = r.Clone()
	r.Level = slog.LevelWarn
	r.Message = "job queue: " + r.Message
	if held > 0 {
		r.AddAttrs(slog.Int("times_before", held))
	}
	return h.to.Handle(ctx, r)
}

// tell reports whether a message is to be told, and how often it was not since it was
// told last.
func (t *toldMessages) tell(message string, now time.Time) (held int, tell bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last, ok := t.last[message]; ok && now.Sub(last) < queueLogEvery {
		t.held[message]++
		return 0, false
	}
	held = t.held[message]
	t.last[message], t.held[message] = now, 0
	return held, true
}

// WithAttrs implements slog.Handler.
func (h *queueLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &queueLog{to: h.to.WithAttrs(attrs), now: h.now, told: h.told}
}

// WithGroup implements slog.Handler.
func (h *queueLog) WithGroup(name string) slog.Handler {
	return &queueLog{to: h.to.WithGroup(name), now: h.now, told: h.told}
}
