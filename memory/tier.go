package memory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// tier says what of a scope is in memory. A scope goes down when it has more rows
// or bytes than fit, and up again when it has a quarter less; whatever it has in
// memory is dropped then, and the next search begins with what the new tier has.
type tier uint8

const (
	tierResident tier = iota // the vectors
	tierCoded                // the vectors' codes
	tierStreamed             // nothing: each search reads every row
)

// outgrow takes a scope one tier down, unless somebody else did. rows is how many
// did not fit.
func (r *resident) outgrow(from tier, rows int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tier != from {
		return
	}
	if from == tierResident {
		r.outgrown = max(1, rows)
	}
	r.reset()
	r.tier++
}

// shrink takes a scope up to a tier, unless somebody else moved it.
func (r *resident) shrink(from, to tier) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tier == from && to < from {
		r.reset()
		r.tier = to
	}
}

// outgrow takes the filler's scope one tier down.
func (f *filler) outgrow() {
	if f.coded {
		f.r.outgrow(tierCoded, 0)
		return
	}
	f.r.mu.RLock()
	rows := f.r.rows() + len(f.rows)
	f.r.mu.RUnlock()
	f.r.outgrow(tierResident, max(rows, f.tooMany))
}

// small reports whether a coded scope has come to fit into memory whole.
func (v *view) small() bool {
	v.r.mu.RLock()
	defer v.r.mu.RUnlock()
	return v.r.loaded && v.r.rows() < v.r.outgrown*3/4
}

// fits is the highest tier for a streamed scope that was seen to have so many rows,
// and bytes if its vectors were in memory.
func (s *Service) fits(r *resident, rows int, bytes int64, dim int) tier {
	r.mu.RLock()
	defer r.mu.RUnlock()
	switch coded := int64(rows) * int64(codedBytes(dim)); {
	case rows < min(r.outgrown, s.MaxScopeRows)*3/4 && bytes < s.MaxResidentBytes*3/4:
		return tierResident
	case rows < s.MaxCodedRows*3/4 && coded < s.MaxResidentBytes*3/4:
		return tierCoded
	}
	return tierStreamed
}

// state returns a scope's tier and whether it is in memory.
func (r *resident) state() (t tier, loaded bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.tier, r.loaded
}

// loading is one process's reading of a coded scope.
type loading struct{ done chan struct{} }

// patience is how long a search waits for somebody else who is loading its scope,
// before it reads every row itself: what is read for loading is a tenth of that.
const patience = 15 * time.Second

// A load reads one row after the other, in one statement: the limit for statements
// that somebody waits for is not for it.
const sqlLoadTimeout = `SELECT set_config('statement_timeout', '600000', true)`

// load has a coded scope in memory when it returns, unless nobody is known by its
// ref, it turned out to be too large, or somebody else is still reading it. Whoever
// comes first reads, to the end even if nobody waits for the answer any more: a
// scope that takes longer to load than its callers wait would never be.
func (s *Service) load(ctx context.Context, k *shred.Keys, t Tenant, v *view) error {
	r := v.r
	r.mu.Lock()
	if r.dead || r.loaded || r.tier != tierCoded {
		r.mu.Unlock()
		return nil
	}
	if l := r.loading; l != nil {
		r.mu.Unlock()
		timer := time.NewTimer(s.patience)
		defer timer.Stop()
		select {
		case <-l.done:
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		return nil
	}
	l := &loading{make(chan struct{})}
	r.loading = l
	r.mu.Unlock()
	s.loads.Add(1)
	defer func() {
		s.loads.Add(-1)
		r.mu.Lock()
		r.loading = nil
		r.mu.Unlock()
		close(l.done)
	}()
	return s.readCodes(context.WithoutCancel(ctx), k, t, v)
}

func (s *Service) readCodes(ctx context.Context, k *shred.Keys, t Tenant, v *view) error {
	f, ask := s.filler(v.r, v.key.ref, k, t.spaces())
	f.progress = &s.loadRows
	defer func() {
		s.loadRows.Add(-f.loaded)
		f.release()
	}()
	err := s.Pool.Look(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlLoadTimeout); err != nil {
			return fmt.Errorf("preparing to load a scope: %w", err)
		}
		return sync(ctx, tx, t.No, nil, []asked{ask}, []sink{f})
	})
	if errors.Is(err, errScopeTooBig) {
		f.outgrow()
		return nil
	}
	if err != nil {
		return err
	}
	f.apply()
	s.residents.resized(v.key, v.r)
	return nil
}

// Loading returns how many scopes are being read into memory, and how many rows
// of them are there so far.
func (s *Service) Loading() (scopes, rows int64) { return s.loads.Load(), s.loadRows.Load() }

// collect has the filler of a coded scope ready for rows.
func (f *filler) collect(owner memd.Number) error {
	if f.codes != nil {
		return nil
	}
	r, err := rotation(f.k, owner, f.dim)
	if err == nil {
		f.codes = newCodedRows(f.dim, r)
	}
	return err
}

// code adds a row's code to the filler's.
func (f *filler) code(m *fetched, s *shred.Sealer) error {
	if err := f.collect(m.owner); err != nil {
		return err
	}
	code, err := m.openCode(f.k, s, f.codes.rotation, &f.buffer)
	if err != nil {
		return err
	}
	return f.keep(m, code)
}

func (f *filler) keep(m *fetched, code []byte) error {
	defer clear(code)
	if err := f.codes.append(m, f.contributions, code); err != nil {
		return fmt.Errorf("%w: %w", memd.ErrCorrupt, err)
	}
	if f.progress != nil {
		f.loaded++
		f.progress.Add(1)
	}
	return nil
}

// putCodes adds or replaces what a filler has of a coded scope. Callers hold mu for
// writing.
func (r *resident) putCodes(f *filler) {
	switch {
	case f.codes == nil:
		return
	case r.coded == nil:
		r.edits++
		r.coded, f.codes = f.codes, nil
		return
	}
	for row := range f.codes.n {
		have, known := r.coded.version(f.codes.id(row))
		if known && have >= f.codes.versionAt(row) || r.hides(f.codes.group(row).contributions) {
			continue
		}
		r.edits++
		r.coded.take(f.codes, row)
	}
}

// sooner returns the earlier of two times of expiry, of which 0 is never.
func sooner(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
