package demo_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd/internal/demo"
)

func TestConversations_AreFitForTheDemo(t *testing.T) {
	all, err := demo.Conversations()
	if err != nil {
		t.Fatal(err)
	}
	// A source time in the future is refused, and the file must be fit for any
	// machine's clock.
	limit := time.Date(2025, 12, 31, 0, 0, 0, 0, time.UTC)
	sessions, names := map[string]int{}, map[string]bool{}
	for tenant, talks := range all {
		for _, c := range talks {
			sessions[tenant+" "+c.User]++
			if names[c.Session] || len(c.Turns) == 0 || c.StartedAt.IsZero() || c.StartedAt.After(limit) {
				t.Errorf("session %s is double, empty or of no past time", c.Session)
			}
			names[c.Session] = true
			for i, turn := range c.Turns {
				if strings.TrimSpace(turn.Text) == "" || turn.Author != "user" && turn.Author != "agent" && turn.Author != "tool" {
					t.Errorf("session %s, turn %d: %+v", c.Session, i, turn)
				}
			}
		}
	}
	if len(sessions) != 8 {
		t.Errorf("there are %d users, want 4 of each tenant", len(sessions))
	}
	for user, n := range sessions {
		if n < 2 || n > 3 {
			t.Errorf("%s has %d sessions", user, n)
		}
	}
}

func TestBoard_NamesWhatFailed(t *testing.T) {
	var out bytes.Buffer
	b := demo.NewBoard(&out)
	b.Check(true, "one", "looked at %d", 1)
	b.Check(false, "two", "looked at %d", 2)
	var failed *demo.FailedError
	if err := b.Result(); !errors.As(err, &failed) || failed.Checks != 2 || !cmp.Equal(failed.Failed, []string{"two"}) {
		t.Errorf("result: %v", err)
	}
	want := "  ✓ one\n      looked at 1\n  ✗ two\n      looked at 2\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// The prices that others have published of the same designs, and ours by hand.
func TestPrice(t *testing.T) {
	for _, c := range []struct {
		tenants, users, months, operations int64
		delay                              time.Duration
		want                               []string
	}{
		{1_000, 100_000, 12, 20, 24 * time.Hour, []string{"2,001 $121.86", "12,000 $720.00", "1,200,000 $72,000.00"}},
		{1_000, 100_000, 1, 20, 30 * 24 * time.Hour, []string{"31,001 $1,861.86", "1,000 $60.00", "100,000 $6,000.00"}},
		{1, 1, 12, 0, 24 * time.Hour, []string{"3 $0.18", "12 $0.72", "12 $0.72"}},
	} {
		if diff := cmp.Diff(c.want, demo.Bill(c.tenants, c.users, c.months, c.operations, c.delay)); diff != "" {
			t.Error(diff)
		}
	}
}
