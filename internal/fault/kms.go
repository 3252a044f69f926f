package fault

import (
	"context"
	"time"

	"forgettable.dev/memd/shred"
)

// KMS is an identity of the key service behind a fuse.
func KMS(f *Fuse, kms shred.KMS) shred.KMS { return fusedKMS{f, kms} }

type fusedKMS struct {
	f   *Fuse
	kms shred.KMS
}

func (k fusedKMS) CreateKey(ctx context.Context, id string, delay time.Duration) (key, version string, err error) {
	err = k.f.through(KMSCall, func() (err error) { key, version, err = k.kms.CreateKey(ctx, id, delay); return err })
	return key, version, err
}

func (k fusedKMS) CreateVersion(ctx context.Context, key string) (version string, err error) {
	err = k.f.through(KMSCall, func() (err error) { version, err = k.kms.CreateVersion(ctx, key); return err })
	return version, err
}

func (k fusedKMS) Encrypt(ctx context.Context, version string, plaintext, aad []byte) (sealed []byte, err error) {
	err = k.f.through(KMSCall, func() (err error) { sealed, err = k.kms.Encrypt(ctx, version, plaintext, aad); return err })
	return sealed, err
}

func (k fusedKMS) Decrypt(ctx context.Context, key string, sealed, aad []byte) (plaintext []byte, err error) {
	err = k.f.through(KMSCall, func() (err error) { plaintext, err = k.kms.Decrypt(ctx, key, sealed, aad); return err })
	return plaintext, err
}

func (k fusedKMS) Get(ctx context.Context, version string) (v shred.Version, err error) {
	err = k.f.through(KMSCall, func() (err error) { v, err = k.kms.Get(ctx, version); return err })
	return v, err
}

func (k fusedKMS) List(ctx context.Context, key string) (all []shred.Version, err error) {
	err = k.f.through(KMSCall, func() (err error) { all, err = k.kms.List(ctx, key); return err })
	return all, err
}

func (k fusedKMS) Destroy(ctx context.Context, version string) (v shred.Version, err error) {
	err = k.f.through(KMSCall, func() (err error) { v, err = k.kms.Destroy(ctx, version); return err })
	return v, err
}
