package memory

import (
	"context"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
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
	f, ask := s.filler(s.residents.get(residentKey{t.No, ref}), ref, k, t.Dimension)
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
	f, ask := s.filler(v.r, ref, k, t.Dimension)
	defer f.release()
	return s.withinSnapshot(ctx, func(db pg.DB) error {
		if err := sync(ctx, db, t.No, nil, []asked{ask}, []sink{f}); err != nil {
			return err
		}
		between()
		return v.rank(ctx, db, f, nil, probe{k: k, query: query, now: s.Clock.Now(), top: &topK{k: 10}}, 0)
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
