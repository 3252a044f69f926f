package ledger_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred/ledger"
)

// away is a location that can be switched off.
type away struct {
	ledger.Ledger
	off bool
}

func (a *away) Put(ctx context.Context, name string, data []byte) error {
	if a.off {
		return memd.ErrLedgerUnavailable
	}
	return a.Ledger.Put(ctx, name, data)
}

func (a *away) Get(ctx context.Context, name string) ([]byte, error) {
	if a.off {
		return nil, memd.ErrLedgerUnavailable
	}
	return a.Ledger.Get(ctx, name)
}

func (a *away) List(ctx context.Context, prefix string) ([]string, error) {
	if a.off {
		return nil, memd.ErrLedgerUnavailable
	}
	return a.Ledger.List(ctx, prefix)
}

func TestMirrored_OneLocationAway(t *testing.T) {
	first, second := &away{Ledger: openBucket(t)}, &away{Ledger: openBucket(t)}
	m := ledger.Mirror([]ledger.Ledger{first, second})
	if len(m.Each()) != 2 {
		t.Fatalf("%d locations", len(m.Each()))
	}
	ctx := t.Context()

	second.off = true
	if err := m.Put(ctx, "7/1", []byte("one")); !errors.Is(err, memd.ErrLedgerUnavailable) {
		t.Errorf("put with a location away is claimed: %v", err)
	}
	if got, err := m.Get(ctx, "7/1"); err != nil || string(got) != "one" {
		t.Errorf("get from the one that has it: %q, %v", got, err)
	}
	if _, err := m.Get(ctx, "7/2"); !errors.Is(err, memd.ErrLedgerUnavailable) {
		t.Errorf("not found is claimed with a location away: %v", err)
	}
	if _, err := m.List(ctx, ""); !errors.Is(err, memd.ErrLedgerUnavailable) {
		t.Errorf("a list is claimed with a location away: %v", err)
	}

	second.off = false
	if err := ledger.PutSame(ctx, m, "7/1", []byte("one")); err != nil {
		t.Errorf("completing: %v", err)
	}
	if got, err := second.Get(ctx, "7/1"); err != nil || string(got) != "one" {
		t.Errorf("the second location was not completed: %q, %v", got, err)
	}
	first.off = true
	if got, err := m.Get(ctx, "7/1"); err != nil || string(got) != "one" {
		t.Errorf("get with the first location away: %q, %v", got, err)
	}
	if err := m.Put(ctx, "7/3", []byte("x")); !errors.Is(err, memd.ErrLedgerUnavailable) {
		t.Errorf("put with the first location away: %v", err)
	}
	if _, err := second.Get(ctx, "7/3"); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("a later location was written before the first decided: %v", err)
	}
}

func TestMirrored_LocationsThatDiffer(t *testing.T) {
	first, second := openBucket(t), openBucket(t)
	m, ctx := ledger.Mirror([]ledger.Ledger{first, second}), t.Context()
	if err := second.Put(ctx, "7/1", []byte("other")); err != nil {
		t.Fatal(err)
	}
	if err := m.Put(ctx, "7/1", []byte("one")); !errors.Is(err, memd.ErrExists) {
		t.Errorf("put over another: %v", err)
	}
	if err := ledger.PutSame(ctx, m, "7/1", []byte("one")); !errors.Is(err, memd.ErrExists) {
		t.Errorf("put of the same over another: %v", err)
	}
	if err := second.Put(ctx, "7/9", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got, err := m.List(ctx, ""); err != nil || !cmp.Equal(got, []string{"7/1", "7/9"}) {
		t.Errorf("list: %v, %v", got, err)
	}
	none := ledger.Mirror(nil)
	if err := none.Put(ctx, "a", nil); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("a mirror of nothing keeps something: %v", err)
	}
	if _, err := none.Get(ctx, "a"); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("a mirror of nothing knows something: %v", err)
	}
}
