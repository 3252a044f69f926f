package restore

import (
	"context"
	"errors"
	"fmt"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

// giveUpBatch is how many rows of a lost tenant are deleted in one statement.
const giveUpBatch = 1000

// GivenUp says what was closed.
type GivenUp struct {
	Tenant tenants.Tenant
	// Lost says why nothing of it can be read.
	Lost *shred.LostKeysError
	// Rows counts what was deleted: bytes that nobody can open.
	Rows int64
}

// GiveUp closes a tenant whose keys are lost for good, so that a restore goes on
// without it and the others are served: what it stored is deleted, with its API
// keys, and it is purged as far as anybody can tell; its name stays taken. There
// is no receipt: nothing was erased on anybody's request.
//
// Nothing is given up that could be had back: not while the version of the newest
// key tree can be restored or enabled, nor when a ledger has a later tree. That
// is the *shred.LostKeysError, or a memd.ErrInvalid. display repeats the tenant's
// display name. Safe to repeat from wherever it stopped.
func GiveUp(ctx context.Context, c Config, name, display string) (g GivenUp, err error) {
	if err := c.validate(); err != nil {
		return g, err
	}
	release, err := alone(ctx, c.Pool)
	if err != nil {
		return g, err
	}
	defer release()
	err = c.Pool.With(ctx, func(db pg.DB) (err error) {
		if g.Tenant, err = tenants.Get(ctx, db, name); err != nil {
			return err
		}
		if g.Tenant.DisplayName != display {
			return &memd.InvalidError{Field: "confirm", Problem: "is not the tenant's display name"}
		}
		g.Lost, err = c.lost(ctx, db, g.Tenant.No)
		return err
	})
	if err != nil {
		return g, err
	}
	for _, s := range erasure.AllStores() {
		for {
			var n int64
			err := c.Pool.With(ctx, func(db pg.DB) (err error) {
				n, err = s.DeleteTenantBatch(ctx, db, g.Tenant.No, giveUpBatch)
				return err
			})
			if err != nil {
				return g, fmt.Errorf("deleting what a lost tenant stored: %w", err)
			}
			if g.Rows += n; n == 0 {
				break
			}
		}
	}
	return g, c.Pool.With(ctx, func(db pg.DB) error {
		if _, err := tenants.GiveUp(ctx, db, c.Clock.Now(), g.Tenant.No); err != nil {
			return err
		}
		g.Tenant, err = tenants.Get(ctx, db, name)
		return err
	})
}

// lost says how a tenant's keys are lost, or refuses.
func (c *Config) lost(ctx context.Context, db pg.DB, no memd.TenantNo) (*shred.LostKeysError, error) {
	k, err := shred.Head(ctx, db, c.KMS, no)
	var lost *shred.LostKeysError
	switch {
	case err == nil:
		k.Drop()
		return nil, &memd.InvalidError{Field: "name", Problem: "is a tenant whose keys are there: to end it, purge it"}
	case !errors.As(err, &lost):
		return nil, err
	case lost.Version.State != shred.VersionDestroyed:
		return nil, lost
	}
	later, err := shred.LaterTree(ctx, c.Ledgers, no, lost.Epoch)
	if err == nil && later {
		err = &memd.InvalidError{Field: "name", Problem: "is a tenant of whose keys a ledger has a later state: run memd restore run --in-place"}
	}
	return lost, err
}
