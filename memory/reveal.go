package memory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// reveal opens the candidates of a search. The database is asked only for the
// names of sessions that this process has not met yet.
func (s *Service) reveal(ctx context.Context, k *shred.Keys, scopes []memd.Scope, hits []candidate, vectors bool) ([]Hit, error) {
	all := sessionsOf(hits)
	names, complete := s.Directory.KnownSessionIDs(k, all)
	if !complete {
		err := s.Pool.With(ctx, func(db pg.DB) (err error) {
			names, err = s.Directory.SessionIDs(ctx, db, k, all)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return openHits(k, scopes, hits, names, vectors)
}

// openKnown opens the hits of one scope without asking the database, or returns
// nil when that is needed, or they do not open: reveal says why.
func (s *Service) openKnown(k *shred.Keys, scope memd.Scope, top *topK) []Hit {
	top.heap = top.sorted()
	names, complete := s.Directory.KnownSessionIDs(k, sessionsOf(top.heap))
	if !complete {
		return nil
	}
	out, err := openHits(k, []memd.Scope{scope}, top.heap, names, top.vectors)
	if err != nil {
		return nil
	}
	return out
}

func sessionsOf(hits []candidate) (all []memd.Contribution) {
	for i := range hits {
		all = append(all, firstSessions(hits[i].entry.contributions)...)
	}
	return all
}

func openHits(k *shred.Keys, scopes []memd.Scope, hits []candidate, names map[memd.Contribution]string, vectors bool) ([]Hit, error) {
	out := make([]Hit, 0, len(hits))
	for i := range hits {
		c := &hits[i]
		e := &c.entry
		st := stored{
			id: e.id, owner: c.owner, kind: e.kind, month: e.month, contributions: e.contributions,
			format: e.format, sealed: sealed{text: e.text, metadata: e.metadata},
		}
		opened, err := st.open(k, false)
		if errors.Is(err, memd.ErrMonthExpired) {
			continue // Its month expired since it was taken into memory.
		}
		if err != nil {
			return nil, fmt.Errorf("opening a hit: %w", err)
		}
		m := Memory{
			ID: e.id, Scope: scopes[c.scope], Kind: e.kind, Text: opened.text, Metadata: opened.metadata,
			CreatedAt: micro(e.created), UpdatedAt: micro(e.updated), ExpiresAt: micro(e.expires), Version: e.version,
		}
		if e.sourced {
			m.SourceTime = micro(e.spoken)
		}
		m.attribute(e.contributions, names)
		if vectors {
			m.Vector = scaled(e.vector, e.norm)
		}
		out = append(out, Hit{Memory: m, Score: max(-1, min(1, c.score))})
	}
	return out, nil
}

// firstSessions returns the contributions whose sessions are named in a
// Memory: the first MaxSessionIDs that are sessions.
func firstSessions(cs []memd.Contribution) []memd.Contribution {
	var out []memd.Contribution
	for _, c := range cs {
		if c.Session != memd.OwnScope && len(out) < MaxSessionIDs {
			out = append(out, c)
		}
	}
	return out
}

// attribute fills in who contributed.
func (m *Memory) attribute(cs []memd.Contribution, names map[memd.Contribution]string) {
	m.Contributions = len(cs)
	for _, c := range firstSessions(cs) {
		if id, ok := names[c]; ok {
			m.SessionIDs = append(m.SessionIDs, id)
		}
	}
}

// opened turns a row that was read from the database into a Memory.
func (s *Service) opened(k *shred.Keys, scope memd.Scope, f *fetched, names map[memd.Contribution]string, vector bool) (Memory, error) {
	c, err := f.open(k, vector)
	if err != nil {
		return Memory{}, fmt.Errorf("opening a memory: %w", err)
	}
	m := Memory{
		ID: f.id, Scope: scope, Kind: f.kind, Text: c.text, Metadata: c.metadata, Version: f.version,
		CreatedAt: f.createdAt.UTC(), UpdatedAt: f.updatedAt.UTC(), SourceTime: f.sourceTime, ExpiresAt: f.expiresAt,
	}
	if c.unit != nil {
		m.Vector = scaled(c.unit, c.norm)
	}
	m.attribute(f.contributions, names)
	return m, nil
}

func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
