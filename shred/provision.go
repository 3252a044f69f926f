package shred

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred/ledger"
)

// ProvisionConfig says where a tenant's keys are made and kept.
type ProvisionConfig struct {
	// Pool reaches the primary database, as the worker. Required.
	Pool *pg.Pool
	// KMS is the worker's identity: create, get, list, encrypt, decrypt. Required.
	KMS KMS
	// Ledgers are all the places that keep trees outside the database, in the
	// same order in every process. At least one; two in production.
	Ledgers []ledger.Ledger
	// Installation is part of the KMS key's name, so that two installations can
	// share a key ring. Required.
	Installation uuid.UUID
	// DestroyDelay is how long a destroyed version stays restorable, fixed for
	// the key's life: 24 h to 120 days, zero for the KMS's default of 30 days.
	DestroyDelay time.Duration
	// Clock dates the tree. Required.
	Clock memd.Clock
	// Rand makes the keys. Nil means crypto/rand.
	Rand io.Reader
}

func (c *ProvisionConfig) validate() error {
	switch {
	case c.Pool == nil:
		return errors.New("shred.ProvisionConfig: Pool is not set")
	case c.KMS == nil:
		return errors.New("shred.ProvisionConfig: KMS is not set")
	case len(c.Ledgers) == 0:
		return errors.New("shred.ProvisionConfig: Ledgers is empty")
	case c.Installation == uuid.Nil:
		return errors.New("shred.ProvisionConfig: Installation is not set")
	case c.Clock == nil:
		return errors.New("shred.ProvisionConfig: Clock is not set")
	}
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	return nil
}

// KeyID is the last part of the name of a tenant's KMS key.
func KeyID(installation uuid.UUID, tenant memd.TenantNo) string {
	return fmt.Sprintf("memd-%s-%s", installation, tenant)
}

// Provision gives a tenant its KMS key, its first key version and epoch 1 of
// its tree, in every ledger and in the database. When it returns nil the keyring
// serves the tenant.
//
// It is safe to repeat at every point at which an earlier attempt may have
// stopped, and safe to run twice at once: the first ledger's write-once name
// decides which of several first trees is the tenant's, before any of them is
// used. Ledgers that hold a later epoch of a tenant without keys belong to a
// database that was rolled back: memd.ErrCorrupt, and nothing is changed.
func Provision(ctx context.Context, c ProvisionConfig, tenant memd.TenantNo) error {
	if err := c.validate(); err != nil {
		return err
	}
	if tenant < 1 {
		return &memd.InvalidError{Field: "tenant", Problem: "must be positive"}
	}
	_, err := c.stored(ctx, tenant)
	if err == nil {
		// A crash can have left nothing undone: the ledgers were written before
		// the database. A ledger that was added since gets the head from the next
		// rotation.
		return nil
	}
	if !errors.Is(err, memd.ErrNotFound) {
		return err
	}
	if err := absentEverywhere(ctx, c.Ledgers, tenant, 2); err != nil {
		return err
	}
	key, version, err := c.KMS.CreateKey(ctx, KeyID(c.Installation, tenant), c.DestroyDelay)
	if err != nil {
		return fmt.Errorf("creating the key of tenant %s: %w", tenant, err)
	}
	sealed, err := c.firstTree(ctx, tenant, version)
	if err != nil {
		return err
	}
	row, err := c.check(ctx, tenant, key, sealed)
	if err != nil {
		return err
	}
	if err := putEverywhere(ctx, c.Ledgers, row); err != nil {
		return err
	}
	return c.publish(ctx, row)
}

// stored returns the tree that the database has for the tenant.
func (c *ProvisionConfig) stored(ctx context.Context, tenant memd.TenantNo) (row treeRow, err error) {
	err = c.Pool.With(ctx, func(db pg.DB) error {
		row, err = readHead(ctx, db, tenant)
		return err
	})
	return row, err
}

// firstTree returns the sealed epoch 1: the one that a ledger holds, or one made
// now and accepted by the first ledger.
func (c *ProvisionConfig) firstTree(ctx context.Context, tenant memd.TenantNo, version string) ([]byte, error) {
	name := ledgerName(tenant, 1)
	// Any ledger may be the only one that an earlier attempt reached, should
	// their order have changed since.
	for i, l := range c.Ledgers {
		sealed, err := l.Get(ctx, name)
		if err == nil {
			return sealed, nil
		}
		if !errors.Is(err, memd.ErrNotFound) {
			return nil, fmt.Errorf("asking ledger %d for the first tree: %w", i, err)
		}
	}
	t, err := NewTree(tenant, c.Rand)
	if err != nil {
		return nil, fmt.Errorf("making the first tree: %w", err)
	}
	defer t.Zero()
	sealed, err := SealTree(ctx, c.KMS, version, t)
	if err != nil {
		return nil, fmt.Errorf("sealing the first tree: %w", err)
	}
	err = c.Ledgers[0].Put(ctx, name, sealed)
	if errors.Is(err, memd.ErrExists) {
		// Somebody else was quicker, and theirs is the tenant's tree.
		sealed, err = c.Ledgers[0].Get(ctx, name)
	}
	if err != nil {
		return nil, fmt.Errorf("writing the first tree: %w", err)
	}
	return sealed, nil
}

// check unwraps what a ledger gave back, so that nothing goes into use that
// could not be opened again.
func (c *ProvisionConfig) check(ctx context.Context, tenant memd.TenantNo, key string, sealed []byte) (treeRow, error) {
	t, version, err := OpenTree(ctx, c.KMS, key, sealed)
	if err != nil {
		return treeRow{}, fmt.Errorf("opening the first tree of tenant %s: %w", tenant, err)
	}
	defer t.Zero()
	if t.Tenant() != tenant || t.Epoch() != 1 || t.Previous() != [32]byte{} {
		return treeRow{}, corrupt("ledger holds another tree under the name of the tenant's first")
	}
	digest, previous := t.Digest(), t.Previous()
	return treeRow{
		Tenant: tenant, Key: key, HeadEpoch: 1, Epoch: 1, KMSVersion: version,
		Digest: digest[:], Previous: previous[:], Sealed: sealed,
	}, nil
}

const (
	sqlInsertTree = `
INSERT INTO memd.key_trees (tenant_no, epoch, kms_version, digest, previous, sealed, created_at)
VALUES (@tenant, @epoch, @version, @digest, @previous, @sealed, @now)
ON CONFLICT (tenant_no, epoch) DO NOTHING`

	sqlInsertTenantKeys = `
INSERT INTO memd.tenant_keys (tenant_no, kms_key, epoch) VALUES (@tenant, @key, 1)
ON CONFLICT (tenant_no) DO NOTHING`
)

// publish makes the tree the tenant's, unless it is already.
func (c *ProvisionConfig) publish(ctx context.Context, row treeRow) error {
	err := c.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlInsertTree, row.insertArgs(c.Clock.Now())); err != nil {
			return fmt.Errorf("storing the first tree: %w", err)
		}
		_, err := tx.Exec(ctx, sqlInsertTenantKeys, pg.Args{"tenant": row.Tenant, "key": row.Key})
		if err != nil {
			return fmt.Errorf("storing the tenant's key: %w", err)
		}
		found, err := readEpoch(ctx, tx, row.Tenant, 1)
		if err != nil {
			return err
		}
		if found.Key != row.Key || !bytes.Equal(found.Sealed, row.Sealed) {
			return corrupt("database and ledger hold different first trees")
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("publishing the first tree of tenant %s: %w", row.Tenant, err)
	}
	return nil
}

func (row treeRow) insertArgs(now time.Time) pg.Args {
	return pg.Args{
		"tenant": row.Tenant, "epoch": row.Epoch, "version": row.KMSVersion, "digest": row.Digest,
		"previous": row.Previous, "sealed": row.Sealed, "now": now,
	}
}
