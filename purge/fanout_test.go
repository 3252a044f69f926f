package purge_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/eraser"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/purge"
)

// One order class of a round: a target that is down keeps no other from erasing,
// only one that is required keeps the erasure from going on, what was done is not
// done again, and a second round does it all once more.
func TestEraseAll(t *testing.T) {
	b := setup(t, func(c *purge.Config) { c.Tries = 1 }).database()
	ctx := t.Context()
	stores := map[string]*store{}
	for name, n := range map[string]purge.New{
		"a-down":   {Kind: purge.KindConnect},
		"b-effort": {Kind: purge.KindConnect, BestEffort: true},
		"c-good":   {Kind: purge.KindWebhook},
		"d-early":  {Kind: purge.KindConnect, Order: purge.BeforeSessions},
	} {
		late := &handover{}
		n.Name, n.URL, n.AllowPrivate, n.Timeout = name, serve(t, late).URL, true, 5*time.Second
		_, secret := b.add(n)
		option := eraser.WithToken(secret)
		if n.Kind == purge.KindWebhook {
			option = eraser.WithKey(secret)
		}
		stores[name] = newStore()
		h, err := eraser.Handler(stores[name], option, eraser.WithClock(b.clock.Now))
		if err != nil {
			t.Fatal(err)
		}
		late.h.Store(&h)
	}
	stores["a-down"].failing, stores["b-effort"].failing = 100, 100
	r := request()
	acks, err := b.caller.EraseAll(ctx, b.worker, tenant, purge.AfterMemory, r)
	if !errors.Is(err, memd.ErrTargetUnavailable) {
		t.Errorf("with one down: %v", err)
	}
	nobody(t, "error", fmt.Sprint(err))
	if stores["c-good"].has(alice) != 0 || stores["d-early"].has(alice) != 3 {
		t.Errorf("good has %d, another class %d", stores["c-good"].has(alice), stores["d-early"].has(alice))
	}
	// a: count and erase failed; b: the same; c: all three.
	if len(acks) != 7 {
		t.Errorf("%+v", acks)
	}
	stores["a-down"].failing = 0
	seen := len(stores["c-good"].seen)
	if _, err = b.caller.EraseAll(ctx, b.worker, tenant, purge.AfterMemory, r); err != nil {
		t.Errorf("with best effort alone down: %v", err)
	}
	if len(stores["c-good"].seen) != seen || stores["a-down"].has(alice) != 0 {
		t.Errorf("good was called again (%d, %d), down has %d", seen, len(stores["c-good"].seen), stores["a-down"].has(alice))
	}
	r.Round = 2
	if acks, err = b.caller.EraseAll(ctx, b.worker, tenant, purge.AfterMemory, r); err != nil || len(stores["c-good"].seen) == seen {
		t.Errorf("second round: %v, good was called %d times", err, len(stores["c-good"].seen))
	}
	for _, a := range acks {
		if a.Round != 2 || a.Order != purge.AfterMemory || a.Acknowledged != (a.Name != "b-effort") {
			t.Errorf("%+v", a)
		}
	}
	// The journal names nobody, and neither does anything else of ours.
	var dump string
	err = b.db.Pool("").With(ctx, func(db pg.DB) error {
		return db.QueryRow(ctx, `SELECT (SELECT string_agg(a::text, ' ') FROM memd.purge_acks a) || (SELECT string_agg(t::text, ' ') FROM memd.purge_targets t)`).Scan(&dump)
	})
	if err != nil || dump == "" {
		t.Fatal(err)
	}
	nobody(t, "tables", dump)
}
