package shred_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/ledger"
)

// fuse counts calls and fails from the k-th on, before they happen or after
// they did: what is called for a process that dies there comes to the same.
type fuse struct {
	mu         sync.Mutex
	calls      int
	failAt     int // 0: never
	answerLost bool
}

var errBlown = fmt.Errorf("fuse has blown: %w", memd.ErrKeyUnavailable)

func (f *fuse) arm(k int, answerLost bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls, f.failAt, f.answerLost = 0, k, answerLost
}

func (f *fuse) reached() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// through runs call unless the fuse has blown before.
func (f *fuse) through(call func() error) error {
	f.mu.Lock()
	f.calls++
	blown := f.failAt > 0 && f.calls >= f.failAt
	happens := !blown || f.answerLost && f.calls == f.failAt
	f.mu.Unlock()
	if happens {
		if err := call(); err != nil {
			return err
		}
	}
	if blown {
		return errBlown
	}
	return nil
}

// fusedKMS is an identity behind a fuse.
type fusedKMS struct {
	*fuse
	kms shred.KMS
}

func (k fusedKMS) CreateKey(ctx context.Context, id string, delay time.Duration) (key, version string, err error) {
	err = k.through(func() (err error) { key, version, err = k.kms.CreateKey(ctx, id, delay); return err })
	return key, version, err
}

func (k fusedKMS) CreateVersion(ctx context.Context, key string) (version string, err error) {
	err = k.through(func() (err error) { version, err = k.kms.CreateVersion(ctx, key); return err })
	return version, err
}

func (k fusedKMS) Encrypt(ctx context.Context, version string, plaintext, aad []byte) (sealed []byte, err error) {
	err = k.through(func() (err error) { sealed, err = k.kms.Encrypt(ctx, version, plaintext, aad); return err })
	return sealed, err
}

func (k fusedKMS) Decrypt(ctx context.Context, key string, sealed, aad []byte) (plaintext []byte, err error) {
	err = k.through(func() (err error) { plaintext, err = k.kms.Decrypt(ctx, key, sealed, aad); return err })
	return plaintext, err
}

func (k fusedKMS) Get(ctx context.Context, version string) (v shred.Version, err error) {
	err = k.through(func() (err error) { v, err = k.kms.Get(ctx, version); return err })
	return v, err
}

func (k fusedKMS) List(ctx context.Context, key string) (all []shred.Version, err error) {
	err = k.through(func() (err error) { all, err = k.kms.List(ctx, key); return err })
	return all, err
}

func (k fusedKMS) Destroy(ctx context.Context, version string) (v shred.Version, err error) {
	err = k.through(func() (err error) { v, err = k.kms.Destroy(ctx, version); return err })
	return v, err
}

// fusedLedger is a location behind a fuse.
type fusedLedger struct {
	*fuse
	ledger ledger.Ledger
}

func (l fusedLedger) Put(ctx context.Context, name string, data []byte) error {
	return l.through(func() error { return l.ledger.Put(ctx, name, data) })
}

func (l fusedLedger) Get(ctx context.Context, name string) (data []byte, err error) {
	err = l.through(func() (err error) { data, err = l.ledger.Get(ctx, name); return err })
	return data, err
}

func (l fusedLedger) List(ctx context.Context, prefix string) (names []string, err error) {
	err = l.through(func() (err error) { names, err = l.ledger.List(ctx, prefix); return err })
	return names, err
}

func fused(f *fuse, ledgers []ledger.Ledger) []ledger.Ledger {
	var all []ledger.Ledger
	for _, l := range ledgers {
		all = append(all, fusedLedger{f, l})
	}
	return all
}
