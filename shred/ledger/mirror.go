package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"forgettable.dev/memd"
)

// Mirrored is several locations that hold the same. Production has two, neither
// on the database's volume.
type Mirrored struct {
	all []Ledger
}

var _ Ledger = (*Mirrored)(nil)

// Mirror joins locations. All processes must name the first one first: it
// decides who wins a name.
func Mirror(all []Ledger) *Mirrored { return &Mirrored{all: slices.Clone(all)} }

// Each returns the single locations, for who must ask every one of them.
func (m *Mirrored) Each() []Ledger { return slices.Clone(m.all) }

// Put implements Ledger: nil only when every location holds data durably. The
// first location decides; after its success an error of another leaves the name
// taken and incomplete, which PutSame with the same data completes.
func (m *Mirrored) Put(ctx context.Context, name string, data []byte) error {
	if len(m.all) == 0 {
		return errNoLocation
	}
	if err := m.all[0].Put(ctx, name, data); err != nil {
		return fmt.Errorf("first location: %w", err)
	}
	return m.putRest(ctx, name, data)
}

func (m *Mirrored) putSame(ctx context.Context, name string, data []byte) error {
	if len(m.all) == 0 {
		return errNoLocation
	}
	if err := PutSame(ctx, m.all[0], name, data); err != nil {
		return fmt.Errorf("first location: %w", err)
	}
	return m.putRest(ctx, name, data)
}

// putRest writes to every other location, also past one that is away: each
// copy more is worth having.
func (m *Mirrored) putRest(ctx context.Context, name string, data []byte) error {
	var errs []error
	for i, l := range m.all[1:] {
		if err := PutSame(ctx, l, name, data); err != nil {
			errs = append(errs, fmt.Errorf("location %d: %w", i+2, err))
		}
	}
	return errors.Join(errs...)
}

// Get implements Ledger: the answer of the first location that has the name, and
// whole.
// memd.ErrNotFound means that every location was asked and none has it.
func (m *Mirrored) Get(ctx context.Context, name string) ([]byte, error) {
	if len(m.all) == 0 {
		return nil, errNoLocation
	}
	var away []error
	for i, l := range m.all {
		data, err := l.Get(ctx, name)
		switch {
		case err == nil:
			return data, nil
		case !errors.Is(err, memd.ErrNotFound):
			away = append(away, fmt.Errorf("location %d: %w", i+1, err))
		}
	}
	if len(away) > 0 {
		return nil, errors.Join(away...)
	}
	return nil, fmt.Errorf("every location: %w", memd.ErrNotFound)
}

// List implements Ledger: the names that any location has. A location that
// could not be asked is an error, because a list that misses names looks
// complete.
func (m *Mirrored) List(ctx context.Context, prefix string) ([]string, error) {
	if len(m.all) == 0 {
		return nil, errNoLocation
	}
	names := []string{}
	for i, l := range m.all {
		some, err := l.List(ctx, prefix)
		if err != nil {
			return nil, fmt.Errorf("location %d: %w", i+1, err)
		}
		names = append(names, some...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Close closes every location that can be closed.
func (m *Mirrored) Close() error {
	var errs []error
	for _, l := range m.all {
		if c, ok := l.(interface{ Close() error }); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

var errNoLocation = &memd.InvalidError{Field: "ledger", Problem: "has no location"}
