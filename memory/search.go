package memory

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/embed"
	"forgettable.dev/memd/internal/pg"
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
}

// Search returns the rows whose vectors are nearest the query's: exactly, from
// exactly what was committed when it began, on every replica. Rows without a
// vector, expired rows and rows that somebody being erased contributed to are
// never among them. It writes nothing.
func (s *Service) Search(ctx context.Context, t Tenant, q Query) (Result, error) {
	if err := validateQuery(t, q); err != nil {
		return Result{}, err
	}
	vector, err := s.queryVector(ctx, t, q)
	if err != nil {
		return Result{}, err
	}
	var out Result
	crowded := false
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
		out, err = s.search(ctx, k, t, scopes, vector, sel, top, crowded)
		if errors.Is(err, errEvicted) {
			crowded, err = true, memd.ErrStale
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
	case q.Vector != nil && len(q.Vector) != t.Dimension:
		return invalid("vector", "has %d components; the tenant's policy says %d", len(q.Vector), t.Dimension)
	case q.Vector == nil && t.Embedder == embed.NameNone:
		return invalid("vector", "is required: the tenant's policy names no embedder")
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
func (s *Service) search(ctx context.Context, k *shred.Keys, t Tenant, scopes []memd.Scope, query []float32, sel selection, top *topK, crowded bool) (Result, error) {
	var views []*view
	for _, scope := range scopes {
		views = append(views, &view{s: s, key: residentKey{t.No, provenance.RefOf(k, scope)}})
	}
	if err := s.refresh(ctx, k, t, views, query, sel, top, crowded); err != nil {
		return Result{}, err
	}
	now := s.Clock.Now()
	for i, v := range views {
		if v.scanned || v.fenced {
			continue
		}
		ok := v.scan(query, sel, now, top, i)
		s.residents.resized(v.key, v.r)
		if !ok {
			return Result{}, errEvicted
		}
	}
	switch {
	case views[0].fenced:
		return Result{Fenced: true}, nil
	case sel.bySession && views[0].subject != sel.subject:
		return Result{}, memd.ErrStale // the sessions are those of an earlier life
	}
	hits := top.sorted()
	if len(hits) == 0 {
		return Result{}, nil
	}
	var out Result
	err := s.Pool.With(ctx, func(db pg.DB) error {
		var err error
		out.Hits, err = s.reveal(ctx, db, k, scopes, hits, top.vectors)
		return err
	})
	return out, err
}

// view is one scope during one search.
type view struct {
	s       *Service
	key     residentKey
	r       *resident
	subject memd.Number // zero: nobody is known by this ref
	fenced  bool
	scanned bool // straight from the database: the scope is too big
}

// refresh syncs all views with one statement. Whoever finds a scope empty
// fills it while the others wait.
func (s *Service) refresh(ctx context.Context, k *shred.Keys, t Tenant, views []*view, query []float32, sel selection, top *topK, crowded bool) error {
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
		sinks[i] = fillers[i]
	}
	err := s.Pool.With(ctx, func(db pg.DB) error { return sync(ctx, db, t.No, scopes, sinks) })
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
			return memd.ErrStale // keys that are newer exist: use them
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

// candidate is a hit whose columns are still sealed.
type candidate struct {
	scope  int
	owner  memd.Number
	score  float32
	entry  entry
	vector []float32 // a copy; nil unless wanted
}

// topK keeps the best candidates seen so far, the worst of them on top.
type topK struct {
	k       int
	min     *float32
	vectors bool // candidates keep their vectors
	heap    []candidate
}

// worse orders candidates: a lower score, or the same and a larger id.
func worse(a, b *candidate) int {
	if c := cmp.Compare(a.score, b.score); c != 0 {
		return c
	}
	return -compareIDs(a.entry.id, b.entry.id)
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

// wants reports whether a score could get in.
func (t *topK) wants(score float32) bool {
	if t.min != nil && score < *t.min {
		return false
	}
	return len(t.heap) < t.k || score >= t.heap[0].score
}

func (t *topK) offer(c candidate) {
	if len(t.heap) < t.k {
		t.heap = append(t.heap, c)
		for i := len(t.heap) - 1; i > 0; {
			up := (i - 1) / 2
			if worse(&t.heap[i], &t.heap[up]) >= 0 {
				break
			}
			t.heap[i], t.heap[up] = t.heap[up], t.heap[i]
			i = up
		}
		return
	}
	if worse(&c, &t.heap[0]) <= 0 {
		return
	}
	t.heap[0] = c
	for i := 0; ; {
		low := i
		for _, child := range []int{2*i + 1, 2*i + 2} {
			if child < len(t.heap) && worse(&t.heap[child], &t.heap[low]) < 0 {
				low = child
			}
		}
		if low == i {
			return
		}
		t.heap[i], t.heap[low] = t.heap[low], t.heap[i]
		i = low
	}
}

// keep copies a vector if candidates keep theirs.
func (t *topK) keep(unit []float32) []float32 {
	if !t.vectors {
		return nil
	}
	return slices.Clone(unit)
}

// sorted returns the candidates, best first.
func (t *topK) sorted() []candidate {
	out := slices.Clone(t.heap)
	slices.SortFunc(out, func(a, b candidate) int { return -worse(&a, &b) })
	return out
}

func micro(t int64) time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.UnixMicro(t).UTC()
}
