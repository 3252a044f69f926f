package shred

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Defaults of a KeyringConfig.
const (
	DefaultMaxTenants  = 1024
	DefaultLoadTimeout = 10 * time.Second
	DefaultRecheck     = 5 * time.Second
)

// KeyringConfig says where a Keyring finds keys.
type KeyringConfig struct {
	// Pool reaches the primary database. Required.
	Pool *pg.Pool
	// KMS is the identity that unwraps; it needs Decrypt only. What it answers
	// about this process's own credentials, rights and key names never reaches a
	// caller as memd.ErrUnauthenticated and the like; see Keys. Required.
	KMS KMS
	// Instance is this process's registration; its lease bounds how long keys
	// are used without the database. Required.
	Instance *Instance
	// Exists tells a tenant that is being set up (memd.ErrTenantInactive) from
	// one that is not there (memd.ErrNotFound). Without it a tenant without keys
	// is not found.
	Exists func(ctx context.Context, db pg.DB, tenant memd.TenantNo) (bool, error)
	// OnDrop, if set, is called after a tenant's keys were dropped because a newer
	// epoch exists, and before the database is told so: what else this process
	// remembers of whom the new epoch forgot goes now, and the rotation waits
	// for it. It may ask the keyring for the newer keys.
	OnDrop func(ctx context.Context, tenant memd.TenantNo)
	// MaxTenants bounds the trees in memory. Zero means DefaultMaxTenants.
	MaxTenants int
	// LoadTimeout bounds one load. Zero means DefaultLoadTimeout.
	LoadTimeout time.Duration
	// Recheck is how often the cached epochs are compared with the database's,
	// for notifications that were lost. Zero means DefaultRecheck.
	Recheck time.Duration
	// Logger is told what goes on behind the callers' backs. Required.
	Logger *slog.Logger
}

func (c *KeyringConfig) validate() error {
	switch {
	case c.Pool == nil:
		return errors.New("shred.KeyringConfig: Pool is not set")
	case c.KMS == nil:
		return errors.New("shred.KeyringConfig: KMS is not set")
	case c.Instance == nil:
		return errors.New("shred.KeyringConfig: Instance is not set")
	case c.Logger == nil:
		return errors.New("shred.KeyringConfig: Logger is not set")
	case c.MaxTenants < 0 || c.LoadTimeout < 0 || c.Recheck < 0:
		return errors.New("shred.KeyringConfig: MaxTenants, LoadTimeout or Recheck is negative")
	}
	if c.MaxTenants == 0 {
		c.MaxTenants = DefaultMaxTenants
	}
	if c.LoadTimeout == 0 {
		c.LoadTimeout = DefaultLoadTimeout
	}
	if c.Recheck == 0 {
		c.Recheck = DefaultRecheck
	}
	return nil
}

// Keyring holds the keys of the tenants that a process works for: one KMS call
// for each tenant and epoch, however many ask at once.
//
// Keys go, zeroed, as soon as the process learns of a later epoch: from the
// minEpoch of a call, from a notification, or from comparing epochs after the
// notifications were interrupted. Before a key of an epoch is used, the
// database knows that this process holds it, so a rotation can wait until
// nobody does.
//
// When the KMS is away, tenants that are in memory go on being served; others
// get memd.ErrKeyUnavailable. When the database is away nothing is dropped until
// the instance's lease ends; then everything is, and every call returns
// memd.ErrDatabaseUnavailable until the lease is back.
//
// It is safe for concurrent use.
type Keyring struct {
	c      KeyringConfig
	base   context.Context // of the loads, which outlive the callers they serve
	cancel context.CancelFunc
	loads  sync.WaitGroup

	// mu guards everything below. Only memory is touched while it is held.
	mu      sync.Mutex
	closed  bool
	cached  *simplelru.LRU[memd.TenantNo, *Keys]
	flights map[memd.TenantNo]*flight
	// dropped are the epochs to be reported: nothing older is held any more.
	dropped map[memd.TenantNo]int64

	report  chan struct{} // capacity 1: dropped has entries
	recheck chan struct{} // capacity 1: notifications may have been missed
}

// NewKeyring makes an empty keyring. The caller runs Run, and calls Close
// before it closes the Instance and the pool.
func NewKeyring(c KeyringConfig) (*Keyring, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	r := &Keyring{
		c:       c,
		flights: make(map[memd.TenantNo]*flight),
		dropped: make(map[memd.TenantNo]int64),
		report:  make(chan struct{}, 1),
		recheck: make(chan struct{}, 1),
	}
	var err error
	r.cached, err = simplelru.NewLRU(c.MaxTenants, func(_ memd.TenantNo, k *Keys) { k.Drop() })
	if err != nil {
		return nil, fmt.Errorf("making the keyring: %w", err)
	}
	r.base, r.cancel = context.WithCancel(context.Background())
	c.Instance.OnLapse(r.dropAll)
	return r, nil
}

// Keys returns the tenant's keys at its current epoch, or at minEpoch or later
// when the caller knows that much: older ones in memory are dropped at once.
//
// The keys may be dropped while they are in use; then their methods return
// memd.ErrStale, and the caller asks again, as Do does. Errors are
//
//   - memd.ErrNotFound, memd.ErrTenantInactive: as the database says of the
//     tenant (see KeyringConfig.Exists).
//   - memd.ErrKeyUnavailable: the KMS did not unwrap, whatever its reason. The
//     text says which; that this process was refused is nothing of which the
//     caller may conclude that it was.
//   - memd.ErrShredded: the tenant's own key was destroyed.
//   - memd.ErrCorrupt.
//   - memd.ErrStale: the database does not know minEpoch.
//   - memd.ErrDatabaseUnavailable, also while the instance's lease has ended,
//     and the database's others.
func (r *Keyring) Keys(ctx context.Context, tenant memd.TenantNo, minEpoch int64) (*Keys, error) {
	if err := r.usable(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	if k, ok := r.cached.Get(tenant); ok {
		if k.Epoch() >= minEpoch {
			r.mu.Unlock()
			return k, nil
		}
		r.cached.Remove(tenant)
	}
	if r.closed {
		r.mu.Unlock()
		return nil, errKeyringClosed
	}
	f, ok := r.flights[tenant]
	if !ok {
		f = &flight{tenant: tenant, done: make(chan struct{})}
		r.flights[tenant] = f
		r.loads.Go(func() { r.load(f) })
	}
	f.floor = max(f.floor, minEpoch)
	r.mu.Unlock()

	select {
	case <-f.done:
		return f.keys, f.err
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for the tenant's keys: %w", ctx.Err())
	}
}

// Do runs f with the tenant's keys, and once more with fresh ones when the
// first were dropped under it. f must be safe to repeat.
func (r *Keyring) Do(ctx context.Context, tenant memd.TenantNo, minEpoch int64, f func(*Keys) error) error {
	for attempt := 1; ; attempt++ {
		k, err := r.Keys(ctx, tenant, minEpoch)
		if err == nil {
			err = f(k)
		}
		if attempt == 2 || !errors.Is(err, memd.ErrStale) {
			return err
		}
	}
}

// attempts bounds how often Again starts over.
const attempts = 5

// Again is Do for who looks up numbers that this process remembers: it repeats f
// whenever they, or the keys, turn out to be out of date, which can happen more
// than once while others are erased. forget is called in between, with the keys
// that f had, and forgets the numbers.
//
// A key that is gone (memd.ErrShredded) is that of a number from an earlier life
// of its user, unless it is gone for the numbers of now as well.
func (r *Keyring) Again(ctx context.Context, tenant memd.TenantNo, minEpoch int64, f func(*Keys) error, forget func(*Keys)) error {
	var err error
	for range attempts {
		var k *Keys
		if k, err = r.Keys(ctx, tenant, minEpoch); err != nil {
			return err
		}
		err = f(k)
		if !errors.Is(err, memd.ErrStale) && !errors.Is(err, memd.ErrShredded) || ctx.Err() != nil {
			return err
		}
		forget(k)
	}
	return err
}

// Cached returns the number of tenants in memory.
func (r *Keyring) Cached() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cached.Len()
}

// Close drops every key and waits for loads in flight, which fail. Safe to
// repeat.
func (r *Keyring) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.dropAll()
	r.loads.Wait()
}

var (
	errKeyringClosed = fmt.Errorf("keyring is closed: %w", memd.ErrKeyUnavailable)
	// errLapsed: the lease lives in the database, so what is amiss is there.
	errLapsed = fmt.Errorf("this process's lease in the database has ended: %w", memd.ErrDatabaseUnavailable)
)

// usable refuses when the lease has ended. The keys are dropped here as well,
// because the timer that should have done it may be late.
func (r *Keyring) usable() error {
	if !r.c.Instance.Lapsed() {
		return nil
	}
	r.dropAll()
	return errLapsed
}

// dropAll drops every key, and those being loaded when they arrive.
func (r *Keyring) dropAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cached.Purge()
	for _, f := range r.flights {
		f.doomed = true
	}
}

// supersede drops what is older than epoch, keeps a load in flight from
// bringing it back, and sees to it that the database learns of it.
func (r *Keyring) supersede(tenant memd.TenantNo, epoch int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k, ok := r.cached.Peek(tenant); ok && k.Epoch() < epoch {
		r.cached.Remove(tenant)
	}
	if f, ok := r.flights[tenant]; ok {
		f.floor = max(f.floor, epoch)
	}
	r.dropped[tenant] = max(r.dropped[tenant], epoch)
	signal(r.report)
}

// signal wakes whoever waits on c, or leaves one wake-up for later.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
