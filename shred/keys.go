package shred

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"forgettable.dev/memd"
)

// Bounds of the caches of one tenant's Keys, in entries. A Sealer takes about
// a kilobyte, a leaf some 200 bytes: at most 6 MB for a tenant in full use.
const (
	// RowCacheSize is the number of derived Sealers.
	RowCacheSize = 4096
	// LeafCacheSize is the number of leaf keys, which derived rows and event ids
	// share.
	LeafCacheSize = 8192
)

// Every use of a key, listed so that two uses never share a string. The
// purpose of a Sealer is followed by infoSeal or infoDigest.
const (
	purposeRow     = "memd/row/v1"
	purposeSubject = "memd/subject/v1"
	purposeSession = "memd/session/v1"
	purposeJob     = "memd/job/v1"
	infoSeal       = "/seal"
	infoDigest     = "/digest"
	infoEventID    = "memd/event-id/v1"
	infoRotation   = "memd/rotation/v1"

	labelDigest     = "memd/digest/v1"
	labelUserRef    = "memd/ref/user/v1"
	labelSharedRef  = "memd/ref/shared/v1"
	labelSessionRef = "memd/ref/session/v1"
	labelEventID    = "memd/event/v1"
)

// Keys gives the keys of one tenant at one epoch. It is safe for concurrent
// use.
//
// Errors: memd.ErrShredded when a leaf that the key needs was punctured, which is
// also a memd.ErrMonthExpired when it is a month's; memd.ErrStale after Drop, memd.ErrInvalid for numbers that are none.
type Keys struct {
	tenant memd.TenantNo
	epoch  int64
	// index outlives Drop: the references under it must stay right for a call in
	// flight, and the next epoch has the same index key. A cleanup zeroes it
	// when nobody holds the Keys any more.
	index *Key

	// mu holds Drop back while a key is being derived. cacheMu is its own,
	// because derivations may run side by side and the caches may not; it is
	// taken inside mu.
	mu      sync.RWMutex
	dropped atomic.Bool
	tree    *Tree
	cacheMu sync.Mutex
	sealers *simplelru.LRU[sealerID, *Sealer]
	leaves  *simplelru.LRU[leafID, *Key]
}

// sealerID names a Sealer in the cache. A row with more than one contribution
// is named by the digest of its closure.
type sealerID struct {
	purpose string
	month   memd.Month
	subject memd.Number
	session memd.Number
	closure [32]byte
}

// leafID names a leaf by what its path is made of, which is quicker to compare
// than the path.
type leafID struct {
	branch  leafBranch
	month   memd.Month
	subject memd.Number
	session memd.Number
}

// leafBranch says which constructor builds the path. It is explicit, and not
// told from the fields that are set, so that a session number left out can
// never turn a subject's leaf into a job's.
type leafBranch uint8

const (
	leafUnknown leafBranch = iota
	leafMonth
	leafSession
	leafJob
	leafContent      // as leafSession, of class content
	leafContentMonth // as leafMonth, of class content
)

// NewKeys takes over t, which Drop zeroes: nobody else may use it afterwards.
func NewKeys(t *Tree) *Keys {
	index := new(Key)
	*index = t.index
	k := &Keys{tenant: t.tenant, epoch: t.epoch, index: index, tree: t}
	runtime.AddCleanup(k, func(index *Key) { *index = Key{} }, index)
	var err error
	if k.sealers, err = simplelru.NewLRU[sealerID, *Sealer](RowCacheSize, nil); err != nil {
		panic(fmt.Sprintf("shred: sealer cache: %v", err)) // constant size
	}
	zero := func(_ leafID, key *Key) { *key = Key{} }
	if k.leaves, err = simplelru.NewLRU(LeafCacheSize, zero); err != nil {
		panic(fmt.Sprintf("shred: leaf cache: %v", err)) // constant size
	}
	return k
}

// Epoch returns the epoch whose keys these are, also after Drop.
func (k *Keys) Epoch() int64 { return k.epoch }

// Tenant returns the tenant whose keys these are, also after Drop.
func (k *Keys) Tenant() memd.TenantNo { return k.tenant }

// UserRef returns the keyed digest that stands for a user of an app. It is the
// same in every epoch, and goes on being right after Drop.
func (k *Keys) UserRef(app, userID string) memd.Ref {
	return memd.Ref(mac(k.index, labelUserRef, []byte(app), []byte(userID)))
}

// SharedRef returns the keyed digest that stands for an app's shared scope. No
// user's can be equal to it.
func (k *Keys) SharedRef(app string) memd.Ref {
	return memd.Ref(mac(k.index, labelSharedRef, []byte(app)))
}

// SessionRef returns the keyed digest that stands for a session of a user or
// of a shared scope.
func (k *Keys) SessionRef(user memd.Ref, sessionID string) memd.Ref {
	return memd.Ref(mac(k.index, labelSessionRef, user[:], []byte(sessionID)))
}

// Row returns the Sealer of a row: its key needs the month's and every
// contributor's, so that erasing any one of them makes the row unreadable.
// Order and repetition of cs do not matter. It returns
// memd.ErrTooManyContributions above memd.MaxContributions.
func (k *Keys) Row(m memd.Month, cs []memd.Contribution) (*Sealer, error) {
	switch {
	case m < 1:
		return nil, &memd.InvalidError{Field: "month", Problem: "must be given"}
	case len(cs) == 0:
		return nil, &memd.InvalidError{Field: "contributions", Problem: "must not be empty"}
	case len(cs) > 1:
		cs = slices.Clone(cs)
		slices.SortFunc(cs, memd.Contribution.Compare)
		cs = slices.Compact(cs)
	}
	if len(cs) > memd.MaxContributions {
		return nil, memd.ErrTooManyContributions
	}
	id := sealerID{purpose: purposeRow, month: m}
	if len(cs) == 1 {
		id.subject, id.session = cs[0].Subject, cs[0].Session
	} else {
		id.closure = closureDigest(cs)
	}
	return k.sealer(id, func() ([]byte, error) {
		secret := make([]byte, 0, (1+len(cs))*len(Key{}))
		month, err := k.leaf(leafID{branch: leafMonth, month: m})
		if err != nil {
			return nil, err
		}
		secret = append(secret, month[:]...)
		for _, c := range cs {
			key, err := k.leaf(leafID{branch: leafSession, subject: c.Subject, session: c.Session})
			if err != nil {
				clear(secret)
				return nil, err
			}
			secret = append(secret, key[:]...)
		}
		return secret, nil
	})
}

// Expired reports whether a month's key is gone: with it whatever is of the month,
// whoever's it is.
func (k *Keys) Expired(c memd.Class, m memd.Month) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	id := leafID{branch: leafMonth, month: m}
	if c == memd.ClassContent {
		id.branch = leafContentMonth
	}
	_, err := k.leaf(id)
	return errors.Is(err, memd.ErrMonthExpired)
}

// Subject returns the Sealer of a subject's directory columns. It needs the
// subject's own scope and no month: the directory outlives every month.
func (k *Keys) Subject(s memd.Number) (*Sealer, error) {
	return k.single(leafSession, sealerID{purpose: purposeSubject, subject: s, session: memd.OwnScope})
}

// Session returns the Sealer of a session's own columns, its id above all.
func (k *Keys) Session(s, session memd.Number) (*Sealer, error) {
	return k.single(leafSession, sealerID{purpose: purposeSession, subject: s, session: session})
}

// Job returns the Sealer of what an erasure job remembers while it runs.
func (k *Keys) Job(job memd.Number) (*Sealer, error) {
	return k.single(leafJob, sealerID{purpose: purposeJob, subject: job})
}

// EventID returns the row id of an event of a session: always the same, so that
// adding the event again finds the row, and not to be tested once the session's
// memory leaf is gone. Two sessions' ids of one event have nothing in common.
func (k *Keys) EventID(s, session memd.Number, event string) (uuid.UUID, error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	leaf, err := k.leaf(leafID{branch: leafSession, subject: s, session: session})
	if err != nil {
		return uuid.Nil, err
	}
	key, err := hkdf.Key(sha256.New, leaf[:], nil, infoEventID, len(Key{}))
	if err != nil {
		return uuid.Nil, fmt.Errorf("deriving the event id key: %w", err)
	}
	defer clear(key)
	sum := mac((*Key)(key), labelEventID, []byte(event))
	id := uuid.UUID(sum[:16])
	id[6] = id[6]&0x0f | 0x80 // version 8: of our own making
	id[8] = id[8]&0x3f | 0x80 // variant of RFC 9562
	return id, nil
}

// Rotation returns the seed of a subject's secret rotation, under which the
// vectors of its scope are coded: always the same, and gone with the subject's own
// scope.
func (k *Keys) Rotation(s memd.Number) (Key, error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	leaf, err := k.leaf(leafID{branch: leafSession, subject: s, session: memd.OwnScope})
	if err != nil {
		return Key{}, err
	}
	key, err := hkdf.Key(sha256.New, leaf[:], nil, infoRotation, len(Key{}))
	clear(leaf[:])
	if err != nil {
		return Key{}, fmt.Errorf("deriving a rotation: %w", err)
	}
	defer clear(key)
	return Key(key), nil
}

// Drop zeroes the tree and every cached leaf and empties the caches. Every
// method that gives a key, and every Sealer given out, returns memd.ErrStale
// from then on. It waits for derivations in flight, which take microseconds,
// and is safe to repeat. Best effort: what Go copied to stacks, and ciphers
// that callers still hold, go when they do.
func (k *Keys) Drop() {
	k.dropped.Store(true)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tree.Zero()
	k.cacheMu.Lock()
	defer k.cacheMu.Unlock()
	k.sealers.Purge()
	k.leaves.Purge()
}

// single is the Sealer under one leaf.
func (k *Keys) single(branch leafBranch, id sealerID) (*Sealer, error) {
	return k.sealer(id, func() ([]byte, error) {
		key, err := k.leaf(leafID{branch: branch, subject: id.subject, session: id.session})
		if err != nil {
			return nil, err
		}
		return key[:], nil
	})
}

// sealer returns the cached Sealer or makes it from the secret. Two callers
// that miss at once both make it: they come out equal, and waiting for each
// other would cost more.
func (k *Keys) sealer(id sealerID, secret func() ([]byte, error)) (*Sealer, error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.dropped.Load() {
		return nil, memd.ErrStale
	}
	k.cacheMu.Lock()
	s, ok := k.sealers.Get(id)
	k.cacheMu.Unlock()
	if ok {
		return s, nil
	}
	key, err := secret()
	if err != nil {
		return nil, err
	}
	defer clear(key)
	if s, err = newSealer(key, id.purpose, &k.dropped); err != nil {
		return nil, err
	}
	k.cacheMu.Lock()
	k.sealers.Add(id, s)
	k.cacheMu.Unlock()
	return s, nil
}

// leaf returns a copy of a leaf's key. The caller holds mu.
func (k *Keys) leaf(id leafID) (Key, error) {
	if k.dropped.Load() {
		return Key{}, memd.ErrStale
	}
	k.cacheMu.Lock()
	if cached, ok := k.leaves.Get(id); ok {
		key := *cached
		k.cacheMu.Unlock()
		return key, nil
	}
	k.cacheMu.Unlock()
	key, err := k.tree.Derive(id.path())
	if err != nil {
		if (id.branch == leafMonth || id.branch == leafContentMonth) && errors.Is(err, memd.ErrShredded) {
			err = fmt.Errorf("%w: %w", memd.ErrMonthExpired, err)
		}
		return Key{}, err
	}
	cached := key
	k.cacheMu.Lock()
	// Replacing an entry would drop the older copy without zeroing it.
	if !k.leaves.Contains(id) {
		k.leaves.Add(id, &cached)
	}
	k.cacheMu.Unlock()
	return key, nil
}

// path is the leaf's path, of class memory where the branch has classes and
// does not say otherwise.
func (id leafID) path() Path {
	switch id.branch {
	case leafMonth:
		return MonthPath(memd.ClassMemory, id.month)
	case leafSession:
		return SessionPath(id.subject, memd.ClassMemory, id.session)
	case leafJob:
		return JobPath(id.subject)
	case leafContent:
		return SessionPath(id.subject, memd.ClassContent, id.session)
	case leafContentMonth:
		return MonthPath(memd.ClassContent, id.month)
	default:
		return ""
	}
}

func closureDigest(cs []memd.Contribution) [32]byte {
	b := make([]byte, 0, 16*len(cs))
	for _, c := range cs {
		b = binary.BigEndian.AppendUint64(b, uint64(c.Subject))
		b = binary.BigEndian.AppendUint64(b, uint64(c.Session))
	}
	return sha256.Sum256(b)
}
