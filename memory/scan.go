package memory

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	gosync "sync"

	"github.com/google/uuid"
	"github.com/viterin/vek/vek32"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

// selection is a Filter with its ids resolved to numbers.
type selection struct {
	kinds     uint8 // bit per Kind; 0: all
	bySession bool  // only rows of sessions, of which there may be none
	sessions  []memd.Contribution
	subject   memd.Number // whose sessions they are
	from, to  int64       // microseconds
	hashes    []uint64
}

// selection resolves a filter. Sessions that were never seen, or forgotten,
// match nothing.
func (s *Service) selection(ctx context.Context, k *shred.Keys, scope memd.Scope, f Filter) (selection, error) {
	sel := selection{from: math.MinInt64, to: math.MaxInt64, hashes: hashes(f.Metadata)}
	for _, kind := range f.Kinds {
		sel.kinds |= 1 << kind
	}
	if !f.From.IsZero() {
		sel.from = f.From.UnixMicro()
	}
	if !f.To.IsZero() {
		sel.to = f.To.UnixMicro()
	}
	if len(f.SessionIDs) == 0 {
		return sel, nil
	}
	wants := []provenance.Want{{Scope: scope}}
	for _, id := range f.SessionIDs {
		wants = append(wants, provenance.Want{Scope: scope, Session: id})
	}
	err := s.Pool.With(ctx, func(db pg.DB) error {
		found, err := s.Directory.Find(ctx, db, k, wants)
		if err != nil {
			return err
		}
		sel.bySession, sel.subject = true, found[0].Subject
		for _, c := range found[1:] {
			if c.Subject.Valid() && c.Session.Valid() {
				sel.sessions = append(sel.sessions, c)
			}
		}
		return nil
	})
	return sel, err
}

// narrows reports whether there are rows that do not pass, metadata aside.
func (sel *selection) narrows() bool {
	return sel.kinds != 0 || sel.bySession || sel.from != math.MinInt64 || sel.to != math.MaxInt64
}

// matches reports whether a row passes.
func (sel *selection) matches(e *entry) bool {
	if !sel.within(e.spoken) || !sel.passes(e.kind, e.contributions) {
		return false
	}
	return sel.has(e.hashes)
}

// has reports whether a row's metadata passes.
func (sel *selection) has(hashes []uint64) bool {
	for _, h := range sel.hashes {
		if !slices.Contains(hashes, h) {
			return false
		}
	}
	return true
}

// within reports whether a row's time passes.
func (sel *selection) within(spoken int64) bool { return spoken >= sel.from && spoken < sel.to }

// passes reports whether rows of a kind and of contributors pass.
func (sel *selection) passes(kind Kind, cs []memd.Contribution) bool {
	if sel.kinds != 0 && sel.kinds&(1<<kind) == 0 {
		return false
	}
	return !sel.bySession || slices.ContainsFunc(cs, func(c memd.Contribution) bool {
		return slices.Contains(sel.sessions, c)
	})
}

// scan scores every row of a resident scope. It returns errEvicted when the
// resident was evicted meanwhile.
func (v *view) scan(p probe, scope int) error {
	r, sel, top := v.r, p.sel, p.top
	at := p.now.UnixMicro()
	r.mu.RLock()
	for !r.dead {
		var prepare func(*shred.Keys) error
		switch {
		case len(sel.hashes) > 0 && !r.hashed:
			prepare = r.hash
		case top.fusion != nil && !r.lexicon.made:
			prepare = r.learn
		}
		if prepare == nil {
			break
		}
		r.mu.RUnlock()
		if err := prepare(p.k); err != nil {
			return err
		}
		r.mu.RLock()
	}
	if r.dead {
		r.mu.RUnlock()
		return errEvicted
	}
	var words asking
	if top.fusion != nil {
		words = r.lexicon.ask(top.fusion.query)
	}
	part := func(p probe, from, to int) (expired bool) {
		for i := from; i < to; i++ {
			e := &r.entries[i]
			query, nearest := p.in(e.space)
			if query == nil || len(e.vector) != len(query) {
				continue
			}
			if e.expired(at) {
				expired = true
				continue
			}
			if !sel.matches(e) {
				continue
			}
			score := vek32.Dot(query, e.vector)
			if nearest.wants(score) {
				nearest.offer(r.candidate(e, scope, score, top))
			}
			if f := top.fusion; f != nil && (top.min == nil || score >= *top.min) {
				if byWords := words.score(e.wording); byWords > 0 && f.best.wants(byWords) {
					c := r.candidate(e, scope, byWords, top)
					c.cosine = score
					f.best.offer(c)
				}
			}
		}
		return expired
	}
	n := len(r.entries)
	half := 0
	if n >= alone && top.fusion == nil && p.former == nil && runtime.GOMAXPROCS(0) > 1 {
		half = n / 2
	}
	other, otherExpired := p, false
	other.top = &topK{k: top.k, min: top.min, vectors: top.vectors}
	var group gosync.WaitGroup
	if half > 0 {
		group.Go(func() { otherExpired = part(other, 0, half) })
	}
	expired := part(p, half, n)
	group.Wait()
	for _, c := range other.top.heap {
		top.offer(c)
	}
	r.mu.RUnlock()
	if expired || otherExpired {
		r.removeExpired(p.now)
	}
	v.worded = top.fusion != nil
	return nil
}

// candidate is a row with what is wanted of it.
func (r *resident) candidate(e *entry, scope int, score float32, top *topK) candidate {
	c := candidate{scope: scope, owner: r.subject, score: score, entry: *e}
	c.entry.vector, c.entry.wording = top.keep(e.vector), nil
	return c
}

// alone is how many rows a scan reads without help of another core: waking one takes
// as long as some hundred.
const alone = 4096

// scanner is the sink that scores the rows of a scope that is too big to be
// resident, one after the other, and keeps none but the best.
type scanner struct {
	probe
	v     *view
	scope int

	hides  []memd.Contribution
	buffer []float32
	opened []byte
	seen   int
	bytes  int64

	// Of a scope that has sketches.
	sketched *sketched
}

func (c *scanner) begin(h header, hides []memd.Contribution, _ []uuid.UUID) (bool, error) {
	c.hides = append(c.hides, hides...)
	c.v.worded = false
	c.v.scanned, c.v.fenced, c.v.subject = true, h.fenced(), h.subject
	if h.epoch > c.k.Epoch() {
		return false, newerEpoch(h.epoch)
	}
	return !h.fenced() && h.subject != 0, nil
}

func (c *scanner) row(m *fetched) error {
	c.seen++
	c.bytes += bytesOf(m, len(c.query))
	if c.sketched != nil && c.sketched.met(m.id) {
		return nil
	}
	for _, h := range c.hides {
		if hidesRow(h, m.contributions, m.owner) {
			return nil
		}
	}
	query, top := c.in(m.space)
	if query == nil || m.dimension != len(query) || !m.expiresAt.IsZero() && !m.expiresAt.After(c.now) {
		return nil
	}
	e := entryOf(m)
	s, err := c.k.Row(m.month, m.contributions)
	if errors.Is(err, memd.ErrMonthExpired) {
		return nil // It is yet to be deleted.
	}
	if err != nil {
		return err
	}
	if len(c.sel.hashes) > 0 && m.metadata != nil {
		if e.hashes, err = m.hashMetadata(c.k, s); err != nil {
			return err
		}
	}
	if !c.sel.matches(&e) {
		return nil
	}
	if c.buffer, e.norm, err = m.openVector(c.k, s, c.buffer[:0], &c.opened); err != nil {
		return err
	}
	score := vek32.Dot(query, c.buffer)
	if c.sketched != nil {
		c.sketched.scored(m.id, score)
	}
	if top.wants(score) {
		e.text, e.metadata = m.kept()
		e.contributions = slices.Clone(e.contributions)
		e.vector = top.keep(c.buffer)
		top.offer(candidate{scope: c.scope, owner: m.owner, score: score, entry: e, bare: c.sketched != nil && c.sketched.bare})
	}
	return nil
}

// entryOf is the entry of a row as it was read, without its vector and norm and
// its metadata's hashes.
func entryOf(m *fetched) entry {
	e := entry{
		id: m.id, version: m.version, kind: m.kind, month: m.month, format: m.format,
		contributions: m.contributions, space: m.space, text: m.text, metadata: m.metadata,
	}
	e.time(m)
	return e
}

// time gives an entry the times of its row.
func (e *entry) time(m *fetched) {
	e.spoken, e.sourced = m.spoken().UnixMicro(), !m.sourceTime.IsZero()
	e.created, e.updated = m.createdAt.UnixMicro(), m.updatedAt.UnixMicro()
	if !m.expiresAt.IsZero() {
		e.expires = m.expiresAt.UnixMicro()
	}
}
