package memory

import (
	"context"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory/codes"
	"forgettable.dev/memd/shred"
)

// Vectors returns the vectors of a scope in memory, as they are: a test that
// holds them sees what a reset does to them.
func (s *Service) Vectors(tenant memd.TenantNo, ref memd.Ref) (vectors [][]float32) {
	r := s.residents.get(residentKey{tenant, ref})
	r.mu.RLock()
	defer r.mu.RUnlock()
	for i := range r.entries {
		vectors = append(vectors, r.entries[i].vector)
	}
	return vectors
}

// Streamed reports whether a scope is scanned from the database.
func (s *Service) Streamed(tenant memd.TenantNo, ref memd.Ref) bool {
	r := s.residents.get(residentKey{tenant, ref})
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.tier == tierStreamed
}

// Coded reports whether a scope is searched by its codes, which are in memory.
func (s *Service) Coded(tenant memd.TenantNo, ref memd.Ref) bool {
	t, loaded := s.residents.get(residentKey{tenant, ref}).state()
	return t == tierCoded && loaded
}

// Exhaust has every row of a coded scope be a candidate, so that its answers are
// exact with few rows of few components, which the codes tell little of.
func (s *Service) Exhaust() { s.exhaustive = true }

// Evict drops a scope from memory.
func (s *Service) Evict(tenant memd.TenantNo, ref memd.Ref) {
	s.residents.drop(residentKey{tenant, ref})
}

// Fill reads what changed in a scope, has between run and then brings the scope
// in memory up to date, unless that is refused.
func (s *Service) Fill(ctx context.Context, k *shred.Keys, t Tenant, ref memd.Ref, between func()) (applied bool, err error) {
	f, ask := s.filler(s.residents.get(residentKey{t.No, ref}), ref, k, t.spaces())
	err = s.Pool.With(ctx, func(db pg.DB) error { return sync(ctx, db, t.No, nil, []asked{ask}, []sink{f}) })
	if err != nil {
		return false, err
	}
	between()
	return f.apply(), nil
}

// Empty empties a scope in memory as if it had outgrown it and shrunk again.
func (s *Service) Empty(tenant memd.TenantNo, ref memd.Ref) {
	r := s.residents.get(residentKey{tenant, ref})
	r.outgrow(tierResident, 1)
	r.shrink(tierCoded, tierResident)
}

// Impatient has searches read every row themselves instead of waiting for somebody
// else who is loading their scope.
func (s *Service) Impatient() { s.patience = 0 }

// RankLate ranks a coded scope in a snapshot from before between.
func (s *Service) RankLate(ctx context.Context, k *shred.Keys, t Tenant, ref memd.Ref, query []float32, between func()) error {
	v := &view{s: s, key: residentKey{t.No, ref}, r: s.residents.get(residentKey{t.No, ref})}
	f, ask := s.filler(v.r, ref, k, t.spaces())
	defer f.release()
	return s.withinSnapshot(ctx, func(db pg.DB) error {
		if err := sync(ctx, db, t.No, nil, []asked{ask}, []sink{f}); err != nil {
			return err
		}
		between()
		return v.rank(ctx, db, f, nil, probe{k: k, query: query, space: t.space(), now: s.Clock.Now(), top: &topK{k: 10}}, 0)
	})
}

// ErrOvertaken is what RankLate returns when memory has gone on.
var ErrOvertaken = errOvertaken

// Forget empties what is in memory of a scope, which stays what it is.
func (s *Service) Forget(tenant memd.TenantNo, ref memd.Ref) {
	r := s.residents.get(residentKey{tenant, ref})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reset()
}

// CodedRows is the rows of a coded scope, for a test of their own.
type CodedRows struct {
	c, new *codedRows
	code   []byte
}

// NewCodedRows returns none yet.
func NewCodedRows() CodedRows {
	code := codes.NewRotation(64, [32]byte{1}).Encode([]float32{0: 1, 63: 0})
	return CodedRows{newCodedRows(64, nil), newCodedRows(64, nil), code}
}

// Put adds or replaces a row, as a filler's is taken over.
func (r CodedRows) Put(id uuid.UUID, version int64, expires time.Time) error {
	m := &fetched{stored: stored{id: id, kind: KindRaw, month: 1}, version: version, expiresAt: expires}
	cs := []memd.Contribution{{Subject: 1, Session: memd.Number(version % 3)}}
	if err := r.new.append(m, cs, r.code); err != nil {
		return err
	}
	r.c.take(r.new, 0)
	r.new.remove(0)
	return nil
}

// Remove takes a row out, if it is there.
func (r CodedRows) Remove(id uuid.UUID) {
	if row, ok := r.c.find(id); ok {
		r.c.remove(row)
	}
}

// Row returns what is kept of a row.
func (r CodedRows) Row(id uuid.UUID) (version, session, expires int64, ok bool) {
	row, ok := r.c.find(id)
	if !ok {
		return 0, 0, 0, false
	}
	return r.c.versionAt(row), int64(r.c.group(row).contributions[0].Session), r.c.expires(row), true
}

// Len returns the number of rows, and Bytes what they take.
func (r CodedRows) Len() int     { return r.c.n }
func (r CodedRows) Bytes() int64 { return r.c.bytes() }

// Worded returns how many rows of a scope have their words in memory, how many words
// the scope knows, and how to find out later whether they were wiped where they were.
func (s *Service) Worded(tenant memd.TenantNo, ref memd.Ref) (rows, words int, wiped func() bool) {
	r := s.residents.get(residentKey{tenant, ref})
	r.mu.RLock()
	defer r.mu.RUnlock()
	var lists [][]occurrence
	for i := range r.entries {
		if w := r.entries[i].wording; w != nil {
			lists = append(lists, w.words)
		}
	}
	return len(lists), len(r.lexicon.rows), func() bool {
		for _, l := range lists {
			for _, o := range l {
				if o != (occurrence{}) {
					return false
				}
			}
		}
		return true
	}
}
