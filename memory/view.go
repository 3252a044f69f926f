package memory

import (
	"context"
	"errors"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// view is one scope during one search.
type view struct {
	s       *Service
	key     residentKey
	r       *resident
	subject memd.Number // zero: nobody is known by this ref
	fenced  bool
	scanned bool // already: from the database, or ahead of its answer
	// ahead are the hits, opened while the database answered; nil if they are yet
	// to be.
	ahead []Hit
}

// refresh syncs all views with one statement. Whoever finds a scope empty
// fills it while the others wait. A scope that is in memory is scanned while the
// database answers whether anything has changed, and its hits are opened; what
// was found counts if not.
func (s *Service) refresh(ctx context.Context, k *shred.Keys, t Tenant, user memd.Scope, views []*view, query []float32, sel selection, top *topK, crowded bool) error {
	scopes, sinks := make([]asked, len(views)), make([]sink, len(views))
	fillers := make([]*filler, len(views))
	for i, v := range views {
		v.r = s.residents.get(v.key)
		v.r.mu.RLock()
		loaded, tooBig := v.r.loaded, v.r.tooBig
		v.r.mu.RUnlock()
		if !loaded && !tooBig && !crowded {
			v.r.load.Lock() // a user's scope comes before the shared one: no cycle
			defer v.r.load.Unlock()
		}
		fillers[i], scopes[i] = s.filler(v.r, v.key.ref, k, t.Dimension)
		v.r.mu.RLock()
		stream := v.r.tooBig || crowded && !v.r.loaded
		v.r.mu.RUnlock()
		if stream {
			fillers[i], scopes[i] = nil, asked{ref: v.key.ref}
			sinks[i] = &scanner{v: v, k: k, query: query, sel: sel, top: top, scope: i, now: s.Clock.Now()}
			continue
		}
		defer fillers[i].release()
		sinks[i] = fillers[i]
	}
	err := s.Pool.With(ctx, func(db pg.DB) error {
		if len(views) == 1 && scopes[0].known != 0 {
			ahead, done := *top, false
			var opened []Hit
			same, err := unchanged(ctx, db, t.No, t.Premise, scopes[0], fillers[0], func() {
				if done = views[0].scan(k, query, sel, s.Clock.Now(), &ahead, 0) == nil; done {
					opened = s.openKnown(k, user, &ahead)
				}
			})
			if same && done {
				*top, views[0].scanned, views[0].ahead = ahead, true, opened
			}
			if same || err != nil {
				return err
			}
		}
		return sync(ctx, db, t.No, t.Premise, scopes, sinks)
	})
	if errors.Is(err, errScopeTooBig) {
		for i, f := range fillers {
			if f != nil && f.outgrown() {
				views[i].r.outgrow()
				s.residents.resized(views[i].key, views[i].r)
			}
		}
		return memd.ErrStale // start over: the scope is scanned from the database
	}
	if err != nil {
		return err
	}
	for i, f := range fillers {
		if f == nil {
			if c := sinks[i].(*scanner); c.seen < s.MaxScopeRows*3/4 && c.bytes < s.MaxResidentBytes*3/4 {
				views[i].r.shrink()
			}
			continue
		}
		views[i].fenced, views[i].subject = f.h.fenced(), f.h.subject
		if f.h.epoch > k.Epoch() {
			return newerEpoch(f.h.epoch)
		}
		if !f.apply() {
			return errEvicted
		}
	}
	return nil
}

// filler is a sink for what the resident does not know yet, and what to ask.
func (s *Service) filler(r *resident, ref memd.Ref, k *shred.Keys, dim int) (*filler, asked) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	f := &filler{
		r: r, k: k, dim: dim, known: r.subject, resets: r.resets,
		room: s.MaxScopeRows - len(r.entries), budget: s.MaxResidentBytes - r.bytes(),
	}
	return f, asked{ref: ref, known: r.subject, since: r.snap.xmin}
}

// errScopeTooBig stops a filler that has read more rows than may be resident.
var errScopeTooBig = errors.New("scope has too many rows to be resident")
