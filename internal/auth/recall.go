package auth

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"forgettable.dev/memd/internal/pg"
)

const (
	// RecallFor is how long what an authentication found is recalled. It bounds
	// nothing that matters for security, because what is recalled is compared
	// with the database before it counts: only how long it is worth keeping.
	RecallFor = time.Minute
	// maxRecalled bounds how many keys are recalled.
	maxRecalled = 4096
)

// recalled is what an authentication found.
type recalled struct {
	principal Principal
	revision  []uint32
	at        time.Time
}

// recollections are the keys that were authenticated, by the hashes of their secrets.
type recollections struct {
	mu  sync.Mutex
	lru *simplelru.LRU[[32]byte, recalled]
}

func newRecollections() *recollections {
	lru, err := simplelru.NewLRU[[32]byte, recalled](maxRecalled, nil)
	if err != nil {
		panic(err) // the size is a positive constant
	}
	return &recollections{lru: lru}
}

func (m *recollections) put(hash []byte, r recalled) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lru.Add([32]byte(hash), r)
}

func (m *recollections) get(hash []byte) (recalled, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lru.Get([32]byte(hash))
}

// Recall returns who held the secret at its last Authenticate in this process,
// if that was lately and the key is a tenant's. By itself it means nothing: the
// key may have been revoked, the tenant suspended, its policy changed. The
// caller answers only when a statement of the call found that the premise holds,
// and calls Confirmed then; otherwise it authenticates before it answers.
func (a *Authenticator) Recall(secret string) (Principal, *pg.Premise, bool) {
	hash, err := hashSecret(secret)
	if err != nil {
		return Principal{}, nil, false
	}
	r, ok := a.recalls.get(hash)
	if age := a.config.Clock.Now().Sub(r.at); !ok || age < 0 || age > RecallFor {
		return Principal{}, nil, false
	}
	return r.principal, &pg.Premise{Of: hash, Revision: r.revision}, true
}

// Confirmed books the use of a key whose premise held.
func (a *Authenticator) Confirmed(p Principal) { a.mark(p.Key) }

// remember keeps what an authentication found for Recall.
func (a *Authenticator) remember(hash []byte, p Principal, revision []*uint32) {
	r := recalled{principal: p, at: a.config.Clock.Now()}
	for _, x := range revision {
		if x == nil {
			return // a key of the installation, which has no tenant
		}
		r.revision = append(r.revision, *x)
	}
	a.recalls.put(hash, r)
}
