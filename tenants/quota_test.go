package tenants_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

// at is a clock that stands.
type at time.Time

func (a at) Now() time.Time { return time.Time(a) }

// TestMeter_LooksAtThoseWithAQuotaAndNotTooOften also sees that what it measures is
// no fact of the journal.
func TestMeter_LooksAtThoseWithAQuotaAndNotTooOften(t *testing.T) {
	b := setup(t)
	b.active("bounded")
	b.active("unbounded")
	b.mustCreate("new")
	for _, name := range []string{"bounded", "new"} {
		err := b.app.InTx(t.Context(), func(tx pgx.Tx) error {
			_, err := tenants.SetPolicy(t.Context(), tx, start, name, tenants.Change{MaxRows: new(int64(1))})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	owner := func(sql string) (n int64) {
		t.Helper()
		err := b.owner.With(t.Context(), func(db pg.DB) error { return db.QueryRow(t.Context(), sql).Scan(&n) })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	facts := owner(`SELECT count(*) FROM memd.ledger_outbox`)
	measured := func(name string) time.Time {
		t.Helper()
		var u tenants.Tenant
		err := b.worker.With(t.Context(), func(db pg.DB) (err error) {
			u, err = tenants.Get(t.Context(), db, name)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return u.Usage.MeasuredAt
	}
	for _, look := range []struct {
		after, last time.Duration
		took        int64 // what the look before is said to have taken, in milliseconds
	}{
		{after: 0, last: 0},
		{after: time.Second, last: 0},
		{after: tenants.MeasureInterval, last: tenants.MeasureInterval},
		{after: tenants.MeasureInterval + time.Minute, last: tenants.MeasureInterval, took: 10_000},
		{after: tenants.MeasureInterval + 200*time.Second, last: tenants.MeasureInterval + 200*time.Second, took: 10_000},
		// Clocks of two workers differ.
		{after: time.Minute, last: time.Minute},
	} {
		if look.took > 0 {
			owner(`UPDATE memd.tenants SET measured_ms = 10000 WHERE name = 'bounded' RETURNING 1`)
		}
		m := tenants.Meter{Pool: b.worker, Clock: at(start.Add(look.after)), Logger: slog.New(slog.DiscardHandler)}
		if err := m.Measure(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := measured("bounded"); !got.Equal(start.Add(look.last)) {
			t.Errorf("after %v: measured at %v, want %v", look.after, got.Sub(start), look.last)
		}
	}
	for _, name := range []string{"unbounded", "new"} {
		if got := measured(name); !got.IsZero() {
			t.Errorf("%s is measured", name)
		}
	}
	if n := owner(`SELECT count(*) FROM memd.ledger_outbox`); n != facts {
		t.Errorf("%d facts, and %d before", n, facts)
	}
}
