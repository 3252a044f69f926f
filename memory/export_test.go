package memory

import "forgettable.dev/memd"

// Vectors returns the block of vectors of a scope in memory, as it is: a test
// that holds it sees what a reset does to it. Nil when there is none.
func (s *Service) Vectors(tenant memd.TenantNo, ref memd.Ref) []float32 {
	r := s.residents.get(residentKey{tenant, ref})
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.vectors[:cap(r.vectors)]
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
