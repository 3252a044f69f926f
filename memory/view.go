package memory

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// probe is a search's query as its scopes see it.
type probe struct {
	k     *shred.Keys
	first memd.Scope // of those that are searched
	query []float32
	space int16 // that the query is in
	// former is the same query in the space that the tenant is leaving, if it is.
	former *formerly
	sel    selection
	now    time.Time
	top    *topK // what was found so far, in all scopes
}

// formerly is a query in a former space.
type formerly struct {
	query []float32
	space int16
}

// in returns the query in a space, or nil if there is none, and where rows of the space
// are to be gathered.
func (p *probe) in(space int16) ([]float32, *topK) {
	switch {
	case space == p.space:
		return p.query, p.top
	case p.former != nil && space == p.former.space:
		return p.former.query, p.top.former
	}
	return nil, nil
}

// view is one scope during one search.
type view struct {
	s       *Service
	key     residentKey
	r       *resident
	subject memd.Number // zero: nobody is known by this ref
	fenced  bool
	scanned bool // already: from the database, or ahead of its answer
	worded  bool // its words were asked, too
	// ahead are the hits, opened while the database answered; nil if they are yet
	// to be.
	ahead []Hit
}

// refresh syncs all views with one statement. Whoever finds a scope empty
// fills it while the others wait. A scope that is in memory is searched there while
// the database answers whether anything has changed; what was found counts if not.
// A coded scope is ranked here, in the transaction of that statement.
func (s *Service) refresh(ctx context.Context, t Tenant, views []*view, p probe, crowded bool) error {
	scopes, sinks := make([]asked, len(views)), make([]sink, len(views))
	fillers := make([]*filler, len(views))
	scanners := make([]*scanner, len(views))
	within := s.Pool.With
	moving := t.Former.Number != 0 // between spaces, codes and sketches are of one of them
	for i, v := range views {
		v.r = s.residents.get(v.key)
		at, loaded := v.r.state()
		switch {
		case loaded || crowded, moving && at == tierCoded:
		case at == tierResident:
			v.r.load.Lock() // a user's scope comes before the shared one: no cycle
			defer v.r.load.Unlock()
		case at == tierCoded:
			if err := s.load(ctx, p.k, t, v); err != nil {
				return err
			}
		}
		at, loaded = v.r.state()
		if at == tierStreamed || moving && at == tierCoded || !loaded && (crowded || at == tierCoded) {
			scopes[i] = asked{ref: v.key.ref}
			scanners[i] = &scanner{v: v, probe: p, scope: i}
			sinks[i] = scanners[i]
			if at == tierStreamed && !t.Sealed && !moving {
				within = s.withinSnapshot
			}
			continue
		}
		fillers[i], scopes[i] = s.filler(v.r, v.key.ref, p.k, t.spaces())
		defer fillers[i].release()
		sinks[i] = fillers[i]
		if fillers[i].coded {
			within = s.withinSnapshot
		}
	}
	err := within(ctx, func(db pg.DB) error {
		if len(views) == 1 && scopes[0].known != 0 {
			same, err := views[0].searchAhead(ctx, db, t, scopes[0], fillers[0], p)
			if same || err != nil {
				return err
			}
		}
		for i, v := range views {
			if at, _ := v.r.state(); scanners[i] != nil && at == tierStreamed && !t.Sealed && !moving {
				if err := scanners[i].lookUp(ctx, db, t, &scopes[i]); err != nil {
					return err
				}
			}
		}
		if err := sync(ctx, db, t.No, t.Premise, scopes, sinks); err != nil {
			return err
		}
		for i, v := range views {
			switch f, c := fillers[i], scanners[i]; {
			case f != nil && f.coded:
				if err := v.rank(ctx, db, f, nil, p, i); err != nil {
					return err
				}
			case c != nil && c.sketched != nil && !v.fenced && v.subject != 0:
				if err := c.widen(ctx, db, t); err != nil {
					return err
				}
			}
		}
		return p.top.dress(ctx, db, t.No)
	})
	if errors.Is(err, errScopeTooBig) {
		for i, f := range fillers {
			if f != nil && f.outgrown() {
				f.outgrow()
				s.residents.resized(views[i].key, f.r)
			}
		}
		return memd.ErrStale // start over: the scope is one tier down
	}
	if err != nil {
		return err
	}
	for i, f := range fillers {
		switch v := views[i]; {
		case f == nil:
			from, _ := v.r.state()
			rows, bytes := scanners[i].size()
			to := s.fits(v.r, rows, bytes, t.Dimension)
			v.r.shrink(from, to)
			if from == tierStreamed && to == tierStreamed && v.subject != 0 && !t.Sealed && !moving {
				s.want(ctx, t, v.key, scanners[i].sketched != nil)
			}
		case f.coded:
			if v.small() {
				v.r.shrink(tierCoded, tierResident)
			}
		default:
			if err := v.settle(p.k, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// withinSnapshot is Pool.With for what must all read the same.
func (s *Service) withinSnapshot(ctx context.Context, f func(db pg.DB) error) error {
	o := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return s.Pool.Look(ctx, o, func(tx pgx.Tx) error { return f(tx) })
}

// settle brings what is in memory up to what the filler has read.
func (v *view) settle(k *shred.Keys, f *filler) error {
	v.fenced, v.subject = f.h.fenced(), f.h.subject
	switch {
	case f.h.epoch > k.Epoch():
		return newerEpoch(f.h.epoch)
	case !f.apply():
		return errEvicted
	}
	return nil
}

// searchAhead asks whether anything has changed in a scope that is in memory, and
// searches there meanwhile. The hits of a resident scope are opened as well.
func (v *view) searchAhead(ctx context.Context, db pg.DB, t Tenant, a asked, f *filler, p probe) (same bool, err error) {
	found, scanned := p.top.empty(), false
	var opened []Hit
	var n *narrowed
	same, err = unchanged(ctx, db, t.No, t.Premise, a, f, func() {
		if f.coded {
			n, _ = v.narrow(p) // again, if it did not work
			return
		}
		ahead := p
		ahead.top = &found
		if scanned = v.scan(ahead, 0) == nil; scanned {
			opened = v.s.openKnown(p.k, p.first, &found)
		}
	})
	switch {
	case !same || err != nil:
		return same, err
	case f.coded:
		if err := v.rank(ctx, db, f, n, p, 0); err != nil {
			return true, err
		}
		return true, p.top.dress(ctx, db, t.No)
	case scanned:
		*p.top, v.scanned, v.ahead = found, true, opened
	}
	return true, nil
}

// filler is a sink for what the resident does not know yet, and what to ask.
func (s *Service) filler(r *resident, ref memd.Ref, k *shred.Keys, in spaces) (*filler, asked) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	f := &filler{
		r: r, k: k, spaces: in, known: r.subject, resets: r.resets, coded: r.tier == tierCoded,
		room: s.MaxScopeRows - r.rows(), budget: s.MaxResidentBytes - r.bytes(),
	}
	if f.coded {
		f.room = s.MaxCodedRows - r.rows()
	}
	return f, asked{ref: ref, known: r.subject, since: r.snap.xmin, coded: f.coded, most: f.room}
}

// errScopeTooBig stops a filler that has read more rows than may be resident.
var errScopeTooBig = errors.New("scope has too many rows to be resident")
