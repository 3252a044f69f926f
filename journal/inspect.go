package journal

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred/ledger"
)

// Location is what one ledger holds.
type Location struct {
	// Names counts everything in it; Records and Generations the journal's.
	Names, Records, Generations int
	// First and Last are the numbers of its first and last record.
	First, Last int64
	// Missing counts names that another location has.
	Missing int
}

// Inspection is what Verify found.
type Inspection struct {
	Installation uuid.UUID
	Generation   int64
	Last         int64
	Locations    []Location
	// Problems say what is wrong, in words for an operator. None: every location
	// has the same, whole.
	Problems []string
}

// Verify reads everything in every location: checksums, the chain of the
// journal, and that all locations have the same. It changes nothing. Its error is
// one of asking; what is wrong is in the Inspection.
func Verify(ctx context.Context, ledgers []ledger.Ledger) (Inspection, error) {
	in := Inspection{Locations: make([]Location, len(ledgers))}
	names, has, err := listAll(ctx, ledgers)
	if err != nil {
		return in, err
	}
	chain := &chain{in: &in}
	for _, name := range names {
		var reference []byte
		from := 0
		for i, l := range ledgers {
			if !has[i][name] {
				in.Locations[i].Missing++
				in.problem("ledger %d lacks %s", i+1, name)
				continue
			}
			data, err := l.Get(ctx, name)
			if err != nil && !errors.Is(err, memd.ErrCorrupt) {
				return in, fmt.Errorf("ledger %d: reading %s: %w", i+1, name, err)
			}
			in.Locations[i].count(name)
			if err == nil {
				err = damaged(name, data)
			}
			switch {
			case err != nil:
				in.problem("ledger %d: %s: %v", i+1, name, err)
			case reference == nil:
				reference, from = data, i
			case !bytes.Equal(reference, data):
				in.problem("ledgers %d and %d have different things under %s", from+1, i+1, name)
			}
		}
		if reference != nil {
			chain.check(name, reference)
		}
	}
	return in, nil
}

// damaged says what is wrong with a record that is whole and cannot be read.
func damaged(name string, data []byte) error {
	if !strings.HasPrefix(name, RecordPrefix) {
		return nil
	}
	_, err := ParseRecord(data)
	return err
}

func (in *Inspection) problem(format string, args ...any) {
	in.Problems = append(in.Problems, fmt.Sprintf(format, args...))
}

func (l *Location) count(name string) {
	l.Names++
	switch {
	case strings.HasPrefix(name, RecordPrefix):
		l.Records++
		if n, err := strconv.ParseInt(strings.TrimPrefix(name, RecordPrefix), 10, 64); err == nil {
			if l.First == 0 {
				l.First = n
			}
			l.Last = n
		}
	case strings.HasPrefix(name, GenerationPrefix):
		l.Generations++
	}
}

// chain follows the journal from record to record.
type chain struct {
	in     *Inspection
	digest []byte
}

func (c *chain) check(name string, data []byte) {
	if !strings.HasPrefix(name, RecordPrefix) {
		if n, found := strings.CutPrefix(name, GenerationPrefix); found {
			if g, err := strconv.ParseInt(n, 10, 64); err == nil {
				c.in.Generation = max(c.in.Generation, g)
			}
		}
		return
	}
	r, err := ParseRecord(data)
	switch {
	case err != nil:
		return // Told already.
	case RecordName(r.Seq) != name:
		c.in.problem("%s holds record %d", name, r.Seq)
	case c.in.Last == 0 && r.Seq != 1 && !r.Rebuilt:
		c.in.problem("the journal begins with record %d, and the ones before are missing", r.Seq)
	case c.in.Last != 0 && r.Seq != c.in.Last+1:
		c.in.problem("records %d to %d are missing", c.in.Last+1, r.Seq-1)
	case c.in.Last != 0 && r.Previous != hex.EncodeToString(c.digest) && !r.Rebuilt:
		c.in.problem("record %d does not follow record %d", r.Seq, c.in.Last)
	case c.in.Last != 0 && r.Installation != c.in.Installation:
		c.in.problem("record %d is another installation's", r.Seq)
	}
	c.in.Last, c.in.Installation, c.digest = r.Seq, r.Installation, r.Digest[:]
}

// listAll returns the names that any location has, and which has which.
func listAll(ctx context.Context, ledgers []ledger.Ledger) (names []string, has []map[string]bool, err error) {
	for i, l := range ledgers {
		list, err := l.List(ctx, "")
		if err != nil {
			return nil, nil, fmt.Errorf("ledger %d: %w", i+1, err)
		}
		own := make(map[string]bool, len(list))
		for _, n := range list {
			own[n] = true
		}
		has = append(has, own)
		names = append(names, list...)
	}
	slices.Sort(names)
	return slices.Compact(names), has, nil
}

// Repair copies to every location what it lacks and another has, and returns how
// many copies it made. What two locations have differently is left alone, and is
// memd.ErrCorrupt. Safe to repeat, and beside running processes.
func Repair(ctx context.Context, ledgers []ledger.Ledger) (copied int, err error) {
	names, has, err := listAll(ctx, ledgers)
	if err != nil {
		return 0, err
	}
	var differ []error
	for _, name := range names {
		data, err := first(ctx, ledgers, name)
		if err != nil {
			return copied, fmt.Errorf("reading %s: %w", name, err)
		}
		for i, l := range ledgers {
			if has[i][name] {
				continue
			}
			err := ledger.PutSame(ctx, l, name, data)
			if errors.Is(err, memd.ErrExists) {
				differ = append(differ, fmt.Errorf("ledger %d has another %s: %w", i+1, name, memd.ErrCorrupt))
				continue
			}
			if err != nil {
				return copied, fmt.Errorf("ledger %d: writing %s: %w", i+1, name, err)
			}
			copied++
		}
	}
	return copied, errors.Join(differ...)
}

// Status is what can be said without reading everything.
func Status(ctx context.Context, ledgers []ledger.Ledger) (Inspection, error) {
	in := Inspection{Locations: make([]Location, len(ledgers))}
	names, has, err := listAll(ctx, ledgers)
	if err != nil {
		return in, err
	}
	for _, name := range names {
		for i := range ledgers {
			if has[i][name] {
				in.Locations[i].count(name)
			} else {
				in.Locations[i].Missing++
			}
		}
	}
	for _, l := range in.Locations {
		in.Last = max(in.Last, l.Last)
		in.Generation = max(in.Generation, int64(l.Generations))
	}
	if in.Last > 0 {
		data, err := first(ctx, ledgers, RecordName(in.Last))
		if err != nil {
			return in, err
		}
		r, err := ParseRecord(data)
		if err != nil {
			return in, err
		}
		in.Installation, in.Generation = r.Installation, max(in.Generation, r.Generation)
	}
	return in, nil
}
