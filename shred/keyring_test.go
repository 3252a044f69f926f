package shred_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// process is one memd process as far as keys go: an instance and a keyring, as
// the application's role and KMS identity.
type process struct {
	instance *shred.Instance
	keyring  *shred.Keyring
	kms      *fuse
	lapsed   chan struct{}
	// kill ends the process's loops without dropping or removing anything, as
	// when it hangs.
	kill func()
}

type processConfig struct {
	pool       *pg.Pool     // the application's if nil
	log        *slog.Logger // none if nil
	kms        shred.KMS    // the application's, behind a fuse, if nil
	lease      time.Duration
	renew      time.Duration
	maxTenants int
	deaf       bool // does not run the keyring's loop
	exists     func(context.Context, pg.DB, memd.TenantNo) (bool, error)
}

func (w *world) process(c processConfig) *process {
	w.t.Helper()
	if c.pool == nil {
		c.pool = w.appPool
	}
	if c.log == nil {
		c.log = w.log
	}
	p := &process{kms: new(fuse), lapsed: make(chan struct{})}
	if c.kms == nil {
		c.kms = fusedKMS{p.kms, w.app}
	}
	var err error
	p.instance, err = shred.Register(w.t.Context(), shred.InstanceConfig{
		Pool: c.pool, Kind: "serve", Lease: c.lease, Renew: c.renew, Logger: c.log,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	p.keyring, err = shred.NewKeyring(shred.KeyringConfig{
		Pool: c.pool, KMS: c.kms, Instance: p.instance, Exists: c.exists,
		MaxTenants: c.maxTenants, Logger: c.log,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	var once sync.Once
	p.instance.OnLapse(func() { once.Do(func() { close(p.lapsed) }) })
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	loops.Go(func() {
		if err := p.instance.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
	if !c.deaf {
		loops.Go(func() {
			if err := p.keyring.Run(ctx); err != nil {
				w.t.Error(err)
			}
		})
	}
	p.kill = func() { cancel(); loops.Wait() }
	w.t.Cleanup(func() {
		p.kill()
		p.keyring.Close()
		if err := p.instance.Close(context.Background()); err != nil {
			w.t.Error(err)
		}
	})
	return p
}

// gatedKMS lets a test stop before the unwrapping of a tree.
type gatedKMS struct {
	shred.KMS
	entered chan struct{}
	open    chan struct{}
}

func (k gatedKMS) Decrypt(ctx context.Context, key string, sealed, aad []byte) ([]byte, error) {
	k.entered <- struct{}{}
	<-k.open
	return k.KMS.Decrypt(ctx, key, sealed, aad)
}

// refusingKMS unwraps nothing.
type refusingKMS struct {
	shred.KMS
	err error
}

func (k refusingKMS) Decrypt(context.Context, string, []byte, []byte) ([]byte, error) {
	return nil, k.err
}

func (p *process) keys(t *testing.T, tenant memd.TenantNo, minEpoch int64) *shred.Keys {
	t.Helper()
	k, err := p.keyring.Keys(t.Context(), tenant, minEpoch)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func wantDropped(t *testing.T, k *shred.Keys) {
	t.Helper()
	if _, err := k.Subject(number(t, 1, 1)); !errors.Is(err, memd.ErrStale) {
		t.Errorf("old keys give %v, want ErrStale", err)
	}
}

func TestKeyring_Keys(t *testing.T) {
	w := newWorld(t)

	t.Run("64 callers at once cost one call of the KMS", func(t *testing.T) {
		w := w.in(t)
		tenant, p := w.tenant(), w.process(processConfig{})
		var g sync.WaitGroup
		start := make(chan struct{})
		for range 64 {
			g.Go(func() {
				<-start
				k, err := p.keyring.Keys(t.Context(), tenant, 1)
				if err != nil || k.Epoch() != 1 || k.Tenant() != tenant {
					t.Errorf("Keys gives %v, %v", k, err)
				}
			})
		}
		close(start)
		g.Wait()
		p.keys(t, tenant, 0)
		if n := p.kms.reached(); n != 1 {
			t.Errorf("the KMS was called %d times", n)
		}
	})

	t.Run("a later epoch drops the old keys in every process before the rotation ends", func(t *testing.T) {
		w := w.in(t)
		tenant, one, two := w.tenant(), w.process(processConfig{}), w.process(processConfig{})
		old := []*shred.Keys{one.keys(t, tenant, 1), two.keys(t, tenant, 1)}
		w.puncture(tenant, subject(t, 7))
		w.rotate(w.rotator(), tenant)
		for _, k := range old {
			wantDropped(t, k)
		}
		for _, p := range []*process{one, two} {
			k := p.keys(t, tenant, 2)
			if _, err := k.Subject(number(t, 1, 7)); !errors.Is(err, memd.ErrShredded) {
				t.Errorf("erased subject gives %v", err)
			}
			if _, err := k.Subject(number(t, 1, 8)); err != nil {
				t.Errorf("neighbour gives %v", err)
			}
			if n := p.kms.reached(); n != 2 {
				t.Errorf("the KMS was called %d times for two epochs", n)
			}
		}
	})

	t.Run("a call that names a later epoch drops the old keys itself", func(t *testing.T) {
		w := w.in(t)
		tenant, deaf := w.tenant(), w.process(processConfig{deaf: true})
		old := deaf.keys(t, tenant, 1)
		w.puncture(tenant, subject(t, 7))
		impatient := w.rotator(func(c *shred.RotatorConfig) { c.InstanceWait = 10 * time.Millisecond })
		if _, err := impatient.Rotate(t.Context(), tenant); !memd.Transient(err) {
			t.Fatalf("rotation that a process holds up gives %v", err)
		}
		if k := deaf.keys(t, tenant, 2); k.Epoch() != 2 {
			t.Errorf("epoch is %d", k.Epoch())
		}
		wantDropped(t, old)
		done := w.rotate(impatient, tenant)
		if done.State != shred.RotationFinished || done.Epoch != 2 {
			t.Errorf("rotation is %+v", done)
		}
	})

	t.Run("a load in flight holds a rotation up, and does not bring old keys back", func(t *testing.T) {
		w := w.in(t)
		tenant := w.tenant()
		gate := gatedKMS{KMS: w.app, entered: make(chan struct{}), open: make(chan struct{})}
		p := w.process(processConfig{kms: gate})
		loaded := make(chan int64, 1)
		go func() {
			k, err := p.keyring.Keys(t.Context(), tenant, 1)
			if err != nil {
				t.Error(err)
				loaded <- 0
				return
			}
			loaded <- k.Epoch()
		}()
		<-gate.entered // The head was read and is about to be unwrapped.
		w.puncture(tenant, subject(t, 7))
		impatient := w.rotator(func(c *shred.RotatorConfig) { c.InstanceWait = 100 * time.Millisecond })
		if done, err := impatient.Rotate(t.Context(), tenant); !errors.Is(err, memd.ErrErasureUnfinished) {
			t.Errorf("rotation past a load gives %+v, %v", done, err)
		}
		close(gate.open)
		go func() {
			for range gate.entered { // Later loads pass the gate.
			}
		}()
		if epoch := <-loaded; epoch != 2 {
			t.Errorf("load ends with epoch %d", epoch)
		}
		w.rotate(w.rotator(), tenant)
		p.kill()
		p.keyring.Close()
		close(gate.entered)
	})

	t.Run("Do tries again with fresh keys", func(t *testing.T) {
		w := w.in(t)
		tenant, p := w.tenant(), w.process(processConfig{})
		var seen []int64
		err := p.keyring.Do(t.Context(), tenant, 0, func(k *shred.Keys) error {
			seen = append(seen, k.Epoch())
			if len(seen) == 1 {
				if _, err := w.rotator().ForceRotate(t.Context(), tenant); err != nil {
					t.Fatal(err)
				}
			}
			_, err := k.Subject(number(t, 1, 1))
			return err
		})
		if err != nil || len(seen) != 2 || seen[1] != 2 {
			t.Errorf("Do gives %v after epochs %v", err, seen)
		}
	})

	t.Run("bounds the tenants in memory and zeroes the evicted", func(t *testing.T) {
		w := w.in(t)
		p := w.process(processConfig{maxTenants: 2})
		first := w.tenant()
		k := p.keys(t, first, 1)
		p.keys(t, w.tenant(), 1)
		p.keys(t, w.tenant(), 1)
		wantDropped(t, k)
		if n := p.keyring.Cached(); n != 2 {
			t.Errorf("%d tenants are cached", n)
		}
		// Evicted, but reported: a rotation must not wait for this process.
		w.puncture(first, subject(t, 7))
		w.rotate(w.rotator(), first)
	})

	t.Run("goes on without the KMS for what is in memory", func(t *testing.T) {
		w := w.in(t)
		tenant, other, p := w.tenant(), w.tenant(), w.process(processConfig{})
		p.keys(t, tenant, 1)
		p.kms.arm(1, false)
		p.keys(t, tenant, 1)
		if _, err := p.keyring.Keys(t.Context(), other, 1); !errors.Is(err, memd.ErrKeyUnavailable) {
			t.Errorf("a tenant that is not in memory gives %v", err)
		}
		p.kms.arm(0, false)
		p.keys(t, other, 1)
	})

	t.Run("never blames the caller for what the KMS says of this process", func(t *testing.T) {
		w := w.in(t)
		tenant := w.tenant()
		ours := []error{memd.ErrUnauthenticated, memd.ErrPermissionDenied, memd.ErrNotFound, memd.ErrExists, memd.ErrInvalid}
		for _, c := range []struct{ says, want error }{
			{memd.ErrUnauthenticated, memd.ErrKeyUnavailable},
			{memd.ErrPermissionDenied, memd.ErrKeyUnavailable},
			{memd.ErrNotFound, memd.ErrKeyUnavailable},
			{memd.ErrInvalid, memd.ErrKeyUnavailable},
			{errors.New("something new"), memd.ErrKeyUnavailable},
			{memd.ErrShredded, memd.ErrShredded},
			{memd.ErrCorrupt, memd.ErrCorrupt},
		} {
			p := w.process(processConfig{kms: refusingKMS{w.app, fmt.Errorf("KMS Decrypt: %w", c.says)}})
			_, err := p.keyring.Keys(t.Context(), tenant, 1)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), "KMS Decrypt: "+c.says.Error()) {
				t.Errorf("%q gives %v", c.says, err)
			}
			for _, other := range ours {
				if errors.Is(err, other) {
					t.Errorf("%q gives %v, which a caller would take for %q", c.says, err, other)
				}
			}
			if c.want != memd.ErrKeyUnavailable && errors.Is(err, memd.ErrKeyUnavailable) {
				t.Errorf("%q gives %v, which would be tried again", c.says, err)
			}
		}
		p := w.process(processConfig{kms: w.shredder})
		if _, err := p.keyring.Keys(t.Context(), tenant, 1); !errors.Is(err, memd.ErrKeyUnavailable) || errors.Is(err, memd.ErrPermissionDenied) {
			t.Errorf("an identity that may not unwrap gives %v", err)
		}
	})

	t.Run("tells who is not there from who is being set up", func(t *testing.T) {
		w := w.in(t)
		p := w.process(processConfig{exists: func(_ context.Context, _ pg.DB, tenant memd.TenantNo) (bool, error) {
			return tenant == 1000, nil
		}})
		if _, err := p.keyring.Keys(t.Context(), 1000, 0); !errors.Is(err, memd.ErrTenantInactive) {
			t.Errorf("a tenant being set up gives %v", err)
		}
		if _, err := p.keyring.Keys(t.Context(), 1001, 0); !errors.Is(err, memd.ErrNotFound) {
			t.Errorf("a tenant that is not there gives %v", err)
		}
		tenant := w.tenant()
		if _, err := p.keyring.Keys(t.Context(), tenant, 5); !errors.Is(err, memd.ErrStale) {
			t.Errorf("an epoch that is not there gives %v", err)
		}
		p.keys(t, tenant, 1)
	})
}

func TestInstance_Lapse(t *testing.T) {
	w := newWorld(t)
	tenant := w.tenant()
	p := w.process(processConfig{lease: 500 * time.Millisecond, deaf: true})
	k := p.keys(t, tenant, 1)
	w.puncture(tenant, subject(t, 7))

	// The process hangs: it neither hears nor renews. The rotation waits for its
	// lease to end and no longer.
	p.kill()
	w.rotate(w.rotator(), tenant)
	if !p.instance.Lapsed() {
		t.Error("rotation ended before the lease did")
	}
	if _, err := p.keyring.Keys(t.Context(), tenant, 1); !errors.Is(err, memd.ErrDatabaseUnavailable) {
		t.Errorf("Keys gives %v after the lease ended", err)
	}
	wantDropped(t, k)
}

// With the database away, keys are used until the lease ends, then dropped
// without anybody asking for them; with the database back, so is the lease.
func TestInstance_DatabaseAway(t *testing.T) {
	w := newWorld(t)
	tenant := w.tenant()
	pool, wire := w.openThroughWire()
	back := make(chan struct{}, 1)
	p := w.process(processConfig{lease: 500 * time.Millisecond, pool: pool, log: slog.New(awaited{slog.DiscardHandler, "lease is back", back})})
	k := p.keys(t, tenant, 1)
	wire.arm(1, false)
	p.keys(t, tenant, 1)
	<-p.lapsed
	wantDropped(t, k)
	if _, err := p.keyring.Keys(t.Context(), tenant, 1); !errors.Is(err, memd.ErrDatabaseUnavailable) {
		t.Errorf("Keys gives %v after the lease ended", err)
	}
	w.puncture(tenant, subject(t, 7))
	w.rotate(w.rotator(), tenant)
	wire.arm(0, false)
	<-back
	if got := p.keys(t, tenant, 2); got.Epoch() != 2 {
		t.Errorf("epoch is %d", got.Epoch())
	}
}

// A database that was away is asked again and again, not only when the next
// heartbeat would have been due.
func TestInstance_RenewsAtOnce(t *testing.T) {
	w := newWorld(t)
	pool, wire := w.openThroughWire()
	back := make(chan struct{}, 1)
	const renew = 3 * time.Second
	p := w.process(processConfig{
		lease: renew + 50*time.Millisecond, renew: renew, pool: pool, log: slog.New(awaited{slog.DiscardHandler, "lease is back", back}),
	})
	wire.arm(1, false)
	<-p.lapsed // Before any heartbeat was due: the end of the lease asks for one.
	wire.arm(0, false)
	start := time.Now()
	<-back
	if took := time.Since(start); took >= renew {
		t.Errorf("lease was back %v after the database", took)
	}
	if p.instance.Lapsed() {
		t.Error("lease is back and has lapsed")
	}
}

// awaited is a log that signals when a message appears in it.
type awaited struct {
	slog.Handler
	message string
	seen    chan struct{}
}

func (a awaited) Enabled(context.Context, slog.Level) bool { return true }

func (a awaited) Handle(_ context.Context, r slog.Record) error {
	if r.Message == a.message {
		select {
		case a.seen <- struct{}{}:
		default:
		}
	}
	return nil
}

func TestInstance_Close(t *testing.T) {
	w := newWorld(t)
	tenant, p := w.tenant(), w.process(processConfig{})
	k := p.keys(t, tenant, 1)
	p.kill()
	if err := p.instance.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantDropped(t, k)
	var listed int
	err := w.workerPool.With(t.Context(), func(db pg.DB) error {
		return db.QueryRow(t.Context(), `SELECT count(*) FROM memd.instances`).Scan(&listed)
	})
	if err != nil || listed != 0 {
		t.Errorf("%d instances are listed, %v", listed, err)
	}
	if _, err := p.keyring.Keys(t.Context(), tenant, 1); !errors.Is(err, memd.ErrDatabaseUnavailable) {
		t.Errorf("Keys gives %v after Close", err)
	}
	w.puncture(tenant, subject(t, 7))
	w.rotate(w.rotator(), tenant)
}

// Readers, writers of epochs and lapses at once: whoever gets keys gets ones
// that are right, and a finished rotation leaves nobody with the old ones.
func TestKeyring_UnderRotation(t *testing.T) {
	w := newWorld(t)
	tenant := w.tenant()
	processes := []*process{w.process(processConfig{}), w.process(processConfig{}), w.process(processConfig{})}
	ctx, cancel := context.WithCancel(t.Context())
	var finished sync.Map // epoch → true once Rotate returned
	var readers sync.WaitGroup
	for _, p := range processes {
		for range 4 {
			readers.Go(func() {
				for ctx.Err() == nil {
					var least int64
					finished.Range(func(e, _ any) bool { least = max(least, e.(int64)); return true })
					err := p.keyring.Do(ctx, tenant, 0, func(k *shred.Keys) error {
						_, err := k.Subject(number(t, 1, 2))
						if err == nil && k.Epoch() < least {
							t.Errorf("keys of epoch %d work after the rotation to %d was finished", k.Epoch(), least)
						}
						return err
					})
					if err != nil && ctx.Err() == nil && !errors.Is(err, memd.ErrStale) {
						t.Error(err)
					}
				}
			})
		}
	}
	r := w.rotator()
	for n := int64(0); n < 15; n++ {
		w.puncture(tenant, subject(t, 10+n))
		done := w.rotate(r, tenant)
		finished.Store(done.Epoch, true)
	}
	cancel()
	readers.Wait()
	w.checkLine(tenant, []shred.Path{leaf(t, 2)}, []shred.Path{subject(t, 10), subject(t, 24)})
}
