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
	return r.tooBig
}

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
	r.outgrow()
	r.shrink()
}
