package memory

import (
	"context"
	"errors"
	"slices"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/embed"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

// Query is what to search for.
type Query struct {
	Scope memd.Scope
	// Text, embedded by the tenant's embedder, or Vector, which wins.
	Text   string
	Vector []float32
	// TopK is the number of hits, 1 to memd.MaxTopK.
	TopK int
	// MinScore leaves out hits with a lower cosine; nil keeps all.
	MinScore *float32
	Filter   Filter
	// LexicalWeight, from 0 to 1, is how much the words of Text count beside the vector:
	// 0 not at all, 0.5 as much. See Result.Fused.
	LexicalWeight float32
	// IncludeShared also searches the app's shared scope.
	IncludeShared  bool
	IncludeVectors bool
}

// Hit is a memory and its cosine similarity with the query, from -1 to 1.
type Hit struct {
	Memory Memory
	Score  float32
}

// Result is the answer to a Search, best hit first; equal scores are ordered by
// id, so that every replica gives the same answer.
type Result struct {
	Hits []Hit
	// Fenced says that the user is being erased; there are no hits then.
	Fenced bool
	// Fused says that words counted too: the order is that of the ranks by vector and by
	// words together (fuse.go), and scores are cosines as ever, so they need not
	// fall from hit to hit. It is false when words were not asked for, and when one of
	// the scopes is too large for its words to be in memory.
	Fused bool
}

// Search returns the rows whose vectors are nearest the query's, from exactly what
// was committed when it began, on every replica, with their exact scores. In a
// scope that is searched by codes a few in a thousand of the nearest are missed,
// and the next ones are returned for them (codes.Tolerance); elsewhere none. Rows without a
// vector, expired rows and rows that somebody being erased contributed to are
// never among them. It writes nothing.
func (s *Service) Search(ctx context.Context, t Tenant, q Query) (Result, error) {
	if err := validateQuery(t, q); err != nil {
		return Result{}, err
	}
	vector, former, err := s.queryVectors(ctx, t, q)
	if err != nil {
		return Result{}, err
	}
	var out Result
	crowded, overtaken := false, 0
	err = s.again(ctx, t, func(k *shred.Keys) ([]memd.Ref, error) {
		sel, err := s.selection(ctx, k, q.Scope, q.Filter)
		if err != nil {
			return nil, err
		}
		scopes := []memd.Scope{q.Scope}
		if q.IncludeShared && !q.Scope.Shared() {
			scopes = append(scopes, memd.Scope{App: q.Scope.App})
		}
		top := &topK{k: q.TopK, min: q.MinScore, vectors: q.IncludeVectors}
		top.fused(q.Text, q.LexicalWeight)
		p := probe{k: k, first: scopes[0], query: vector, space: t.space(), former: former, sel: sel, top: top}
		if former != nil {
			top.former = &topK{k: top.k, min: q.MinScore, vectors: q.IncludeVectors}
		}
		out, err = s.search(ctx, t, scopes, p, crowded)
		switch {
		case errors.Is(err, errEvicted):
			crowded, err = true, memd.ErrStale
		case errors.Is(err, errOvertaken):
			overtaken++
			crowded, err = overtaken == attempts-1, memd.ErrStale
		}
		return []memd.Ref{provenance.RefOf(k, q.Scope)}, err
	})
	return out, err
}

// errEvicted says that a scope left memory between being brought up to date
// and being scanned, because others needed the room. The next try reads it
// from the database: trying to keep it again could go on for ever.
var errEvicted = errors.New("scope was evicted")

func validateQuery(t Tenant, q Query) error {
	if err := validateScope(q.Scope); err != nil {
		return err
	}
	switch {
	case q.Text == "" && q.Vector == nil:
		return invalid("text", "or vector is required")
	case len(q.Text) > memd.MaxTextBytes:
		return invalid("text", "is longer than %d bytes", memd.MaxTextBytes)
	case q.Vector != nil && len(q.Vector) != t.Dimension && len(q.Vector) != t.Former.Dimension:
		return invalid("vector", "has %d components; the tenant's policy says %d", len(q.Vector), t.Dimension)
	case q.Vector == nil && t.Embedder == embed.NameNone:
		return invalid("vector", "is required: the tenant's policy names no embedder")
	case !(q.LexicalWeight >= 0 && q.LexicalWeight <= 1):
		return invalid("lexical_weight", "must be from 0 to 1")
	case q.LexicalWeight > 0 && q.Text == "":
		return invalid("text", "is required with lexical_weight")
	case q.TopK < 1 || q.TopK > memd.MaxTopK:
		return invalid("top_k", "must be 1 to %d", memd.MaxTopK)
	}
	return validateFilter(q.Scope, q.Filter)
}

func validateFilter(scope memd.Scope, f Filter) error {
	if len(f.SessionIDs) > 0 && scope.Shared() {
		return invalid("filter.session_ids", "belongs to a user's scope")
	}
	if !f.From.IsZero() && !f.To.IsZero() && !f.From.Before(f.To) {
		return invalid("filter.source_time", "must begin before it ends")
	}
	return nil
}

// queryVectors returns the query in the tenant's space, and in the one that it is
// leaving, if it is. A vector is in the one whose dimension it has, a text in both.
func (s *Service) queryVectors(ctx context.Context, t Tenant, q Query) (vector []float32, former *formerly, err error) {
	if len(q.Vector) == 0 || len(q.Vector) == t.Dimension {
		if vector, err = s.queryVector(ctx, t, q); err != nil {
			return nil, nil, err
		}
	}
	from := t.Former
	if from.Number == 0 || vector != nil && q.Vector != nil || q.Vector == nil && from.Embedder == embed.NameNone {
		return vector, nil, nil
	}
	t.Embedder, t.Dimension = from.Embedder, from.Dimension
	old, err := s.queryVector(ctx, t, q)
	return vector, &formerly{old, from.Number}, err
}

func (s *Service) queryVector(ctx context.Context, t Tenant, q Query) ([]float32, error) {
	v := q.Vector
	if v == nil {
		if !visible(q.Text) {
			return nil, invalid("text", "has nothing to search for")
		}
		vs, err := s.embed(ctx, t, []string{q.Text})
		if err != nil {
			return nil, err
		}
		v = vs[0]
		if !slices.ContainsFunc(v, func(x float32) bool { return x != 0 }) {
			return nil, invalid("text", "has no feature that the embedder knows")
		}
	}
	unit, _, err := normalise(v)
	return unit, err
}

// search brings the scopes up to date in one statement and scans them. crowded
// has it scan from the database what is not in memory yet.
func (s *Service) search(ctx context.Context, t Tenant, scopes []memd.Scope, p probe, crowded bool) (Result, error) {
	k, sel, top := p.k, p.sel, p.top
	p.now = s.Clock.Now()
	var views []*view
	for _, scope := range scopes {
		views = append(views, &view{s: s, key: residentKey{t.No, provenance.RefOf(k, scope)}})
	}
	if err := s.refresh(ctx, t, views, p, crowded); err != nil {
		return Result{}, err
	}
	for i, v := range views {
		if v.scanned || v.fenced {
			if v.worded {
				s.residents.resized(v.key, v.r) // by the words that it learnt
			}
			continue
		}
		err := v.scan(p, i)
		s.residents.resized(v.key, v.r)
		if err != nil {
			return Result{}, err
		}
	}
	switch {
	case views[0].fenced:
		return Result{Fenced: true}, nil
	case sel.bySession && views[0].subject != sel.subject:
		return Result{}, memd.ErrStale // the sessions are those of an earlier life
	}
	fused := !slices.ContainsFunc(views, func(v *view) bool { return !v.worded })
	if len(views[0].ahead) > 0 {
		return Result{Hits: views[0].ahead, Fused: fused}, nil
	}
	if !fused {
		top.vectorsAlone()
	}
	hits := top.sorted()
	if len(hits) == 0 {
		return Result{Fused: fused}, nil
	}
	revealed, err := s.reveal(ctx, k, scopes, hits, top.vectors)
	return Result{Hits: revealed, Fused: fused}, err
}

func micro(t int64) time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.UnixMicro(t).UTC()
}
