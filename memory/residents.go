package memory

import (
	gosync "sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"forgettable.dev/memd"
)

// residents is the least-recently-used set of resident scopes, bounded by the
// bytes that they take together.
type residents struct {
	max int64

	mu    gosync.Mutex
	lru   *simplelru.LRU[residentKey, *resident]
	sizes map[residentKey]int64
	total int64
}

type residentKey struct {
	tenant memd.TenantNo
	ref    memd.Ref
}

// maxResidents bounds the number of scopes, most of which are small.
const maxResidents = 1 << 20

func newResidents(max int64) *residents {
	s := &residents{max: max, sizes: map[residentKey]int64{}}
	lru, err := simplelru.NewLRU[residentKey, *resident](maxResidents, nil)
	if err != nil {
		panic(err) // the size is a positive constant
	}
	s.lru = lru
	return s
}

// get returns the scope's resident, a new and empty one if there was none.
func (s *residents) get(k residentKey) *resident {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.lru.Get(k); ok {
		return r
	}
	if s.lru.Len() >= maxResidents {
		defer s.removeOldest().evict()
	}
	r := newResident()
	s.lru.Add(k, r)
	return r
}

// removeOldest takes out the scope that was used least recently. Callers hold
// mu, and evict it when they may.
func (s *residents) removeOldest() *resident {
	k, r, _ := s.lru.RemoveOldest()
	s.total -= s.sizes[k]
	delete(s.sizes, k)
	return r
}

// resized books what a resident takes now and evicts others until all fit. The
// one that was just used is evicted only if it is too large alone.
func (s *residents) resized(k residentKey, r *resident) {
	r.mu.RLock()
	size := r.bytes()
	r.mu.RUnlock()
	var evicted []*resident
	s.mu.Lock()
	if have, ok := s.lru.Peek(k); ok && have == r {
		s.total += size - s.sizes[k]
		s.sizes[k] = size
	}
	for s.total > s.max && s.lru.Len() > 0 {
		evicted = append(evicted, s.removeOldest())
	}
	s.mu.Unlock()
	for _, e := range evicted {
		e.evict()
	}
}

// drop evicts one scope.
func (s *residents) drop(k residentKey) {
	s.mu.Lock()
	r, ok := s.lru.Peek(k)
	if ok {
		s.lru.Remove(k)
		s.total -= s.sizes[k]
		delete(s.sizes, k)
	}
	s.mu.Unlock()
	if ok {
		r.evict()
	}
}

// of returns the scopes of a tenant that are in memory.
func (s *residents) of(tenant memd.TenantNo) map[residentKey]*resident {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[residentKey]*resident{}
	for _, k := range s.lru.Keys() {
		if k.tenant == tenant {
			if r, ok := s.lru.Peek(k); ok {
				out[k] = r
			}
		}
	}
	return out
}

// size returns how many scopes and bytes are resident.
func (s *residents) size() (scopes int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lru.Len(), s.total
}

// evict wipes the resident; who still holds it starts over.
func (r *resident) evict() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reset()
	r.dead = true
}

// Resident returns how many scopes are in memory and the bytes that they take.
func (s *Service) Resident() (scopes int, bytes int64) { return s.residents.size() }
