package provenance

import (
	"sync"
	"sync/atomic"

	lru "github.com/hashicorp/golang-lru/v2"

	"forgettable.dev/memd"
)

// Keys is what the directory needs of a tenant's keys. shred.Keys provides it.
type Keys interface {
	Tenant() memd.TenantNo
	Epoch() int64
	UserRef(app, userID string) memd.Ref
	SharedRef(app string) memd.Ref
	SessionRef(user memd.Ref, sessionID string) memd.Ref
	SealUserID(subject memd.Number, userID string) ([]byte, error)
	OpenUserID(subject memd.Number, sealed []byte) (string, error)
	SealSessionID(subject, session memd.Number, sessionID string) ([]byte, error)
	OpenSessionID(subject, session memd.Number, sealed []byte) (string, error)
}

// RefOf returns the keyed digest by which a scope is looked up.
func RefOf(k Keys, s memd.Scope) memd.Ref {
	if s.Shared() {
		return k.SharedRef(s.App)
	}
	return k.UserRef(s.App, s.UserID)
}

// maxCached bounds each of the directory's caches, in entries of some 100 bytes.
const maxCached = 100_000

type subjectKey struct {
	tenant memd.TenantNo
	ref    memd.Ref
}

type sessionKey struct {
	tenant  memd.TenantNo
	subject memd.Number
	ref     memd.Ref
}

type nameKey struct {
	tenant  memd.TenantNo
	subject memd.Number
	session memd.Number // 0 for the subject's own name
}

// Directory resolves ids to numbers and back, with a cache in front of the
// tables. A cached number can be out of date only in one way, that its subject
// or session was forgotten, and then the database refuses the write (ErrStale,
// ErrSessionForgotten); the caller evicts and asks again. Safe for concurrent
// use.
type Directory struct {
	clock    memd.Clock
	subjects *lru.Cache[subjectKey, memd.Number]
	sessions *lru.Cache[sessionKey, memd.Number]

	mu    sync.Mutex // names are dropped by tenant, which the cache alone cannot do
	names *lru.Cache[nameKey, name]
	drops atomic.Uint64 // how often Drop was called; written under mu

	// admission keeps the goroutines of this process from admitting the same
	// subject, or its sessions, at once: all but one number would be lost.
	admission [admissionLocks]sync.Mutex
}

const admissionLocks = 64

// admitting returns the lock of a subject, by its ref. It is held for a round
// trip or two of somebody who has a connection already.
func (d *Directory) admitting(ref memd.Ref) *sync.Mutex { return &d.admission[ref[0]%admissionLocks] }

type name struct {
	app, id string
}

// New returns an empty directory cache.
func New(clock memd.Clock) *Directory {
	subjects, err := lru.New[subjectKey, memd.Number](maxCached)
	if err != nil {
		panic(err) // the size is a positive constant
	}
	sessions, err := lru.New[sessionKey, memd.Number](maxCached)
	if err != nil {
		panic(err)
	}
	names, err := lru.New[nameKey, name](maxCached)
	if err != nil {
		panic(err)
	}
	return &Directory{clock: clock, subjects: subjects, sessions: sessions, names: names}
}

// Cached returns the numbers of a user's session, if both are cached. It asks
// nobody, and what it returns can be out of date as is said above.
func (d *Directory) Cached(tenant memd.TenantNo, user, session memd.Ref) (c memd.Contribution, ok bool) {
	if c.Subject, ok = d.subjects.Get(subjectKey{tenant, user}); !ok {
		return c, false
	}
	c.Session, ok = d.sessions.Get(sessionKey{tenant, c.Subject, session})
	return c, ok
}

// Evict forgets what is cached of a subject's number, after a write with it
// was refused.
func (d *Directory) Evict(tenant memd.TenantNo, ref memd.Ref) {
	k := subjectKey{tenant, ref}
	if no, ok := d.subjects.Peek(k); ok {
		d.subjects.Remove(k)
		for _, s := range d.sessions.Keys() {
			if s.tenant == tenant && s.subject == no {
				d.sessions.Remove(s)
			}
		}
	}
}

// Drop forgets everything cached of a tenant: numbers, and the names that were
// opened. It is called when the tenant's key tree changes, since that is when
// somebody was forgotten.
func (d *Directory) Drop(tenant memd.TenantNo) {
	for _, k := range d.subjects.Keys() {
		if k.tenant == tenant {
			d.subjects.Remove(k)
		}
	}
	for _, k := range d.sessions.Keys() {
		if k.tenant == tenant {
			d.sessions.Remove(k)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drops.Add(1)
	for _, k := range d.names.Keys() {
		if k.tenant == tenant {
			d.names.Remove(k)
		}
	}
}
