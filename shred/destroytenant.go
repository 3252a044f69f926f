package shred

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

const (
	sqlSelectKey = `SELECT kms_key, epoch FROM memd.tenant_keys WHERE tenant_no = @tenant`

	// The head moves on to an epoch that nobody has a tree of: that is how every
	// process learns to let its keys go.
	sqlEndLine = `UPDATE memd.tenant_keys SET epoch = @epoch WHERE tenant_no = @tenant AND epoch = @epoch - 1`

	sqlJournalEnd = `
INSERT INTO memd.rotations (tenant_no, epoch, state, old_version, started_at, updated_at, destroyed_at, destroy_due)
VALUES (@tenant, @epoch, @finished, @old, @now, @now, @now, @due)
ON CONFLICT (tenant_no, epoch) DO UPDATE SET
  state = excluded.state, old_version = excluded.old_version, updated_at = excluded.updated_at,
  destroyed_at = excluded.destroyed_at, destroy_due = excluded.destroy_due`

	sqlReadEnd = `
SELECT old_version, destroyed_at, coalesce(destroy_due, destroyed_at) FROM memd.rotations
WHERE tenant_no = @tenant AND epoch = @epoch`
)

// Ending says how a tenant's keys ended.
type Ending struct {
	// Epoch is the one after the last: nobody has a tree of it.
	Epoch int64
	// Version was the last one, destroyed at DestroyedAt; until Due an operator
	// of the key service can restore it.
	Version          string
	DestroyedAt, Due time.Time
}

// DestroyTenant destroys every key version of a tenant and makes no other: after
// it nothing of the tenant's can be opened, from the database, a backup or a
// ledger. It returns when the KMS refuses the last state and no process holds
// its keys any more. A tenant's purge calls it when all rows are gone.
//
// Safe to repeat, from wherever it stopped. memd.ErrNotFound is a tenant that
// never had keys.
func (r *Rotator) DestroyTenant(ctx context.Context, tenant memd.TenantNo) (Ending, error) {
	s, err := r.lock(ctx, tenant)
	if err != nil {
		return Ending{}, err
	}
	end, err := r.endLine(ctx, s, tenant)
	if released := s.unlock(ctx); released != nil {
		r.c.Logger.WarnContext(ctx, "giving up the lock of a rotation", "tenant", tenant, "error", released)
	}
	if err != nil {
		return Ending{}, fmt.Errorf("destroying the keys of tenant %s: %w", tenant, err)
	}
	return end, nil
}

func (r *Rotator) endLine(ctx context.Context, s *session, tenant memd.TenantNo) (Ending, error) {
	var key string
	end := Ending{}
	err := s.QueryRow(ctx, sqlSelectKey, pg.Args{"tenant": tenant}).Scan(&key, &end.Epoch)
	if errors.Is(err, pgx.ErrNoRows) {
		return end, memd.ErrNotFound
	}
	if err != nil {
		return end, pg.Classify(fmt.Errorf("reading the head: %w", err))
	}
	head, err := readHead(ctx, s, tenant)
	switch {
	case err == nil:
		if err := r.destroyAll(ctx, head); err != nil {
			return end, err
		}
		if err := r.commitEnd(ctx, s, head); err != nil {
			return end, err
		}
		end.Epoch = head.Epoch + 1
	case !errors.Is(err, memd.ErrNotFound):
		return end, err
	}
	if err := r.awaitInstances(ctx, s, entry{tenant, end.Epoch}); err != nil {
		return end, err
	}
	err = s.QueryRow(ctx, sqlReadEnd, pg.Args{"tenant": tenant, "epoch": end.Epoch}).Scan(&end.Version, &end.DestroyedAt, &end.Due)
	if err != nil {
		return end, pg.Classify(fmt.Errorf("reading the end of a key: %w", err))
	}
	return end, nil
}

// destroyAll destroys every version, the head's too, and confirms it as a
// rotation does: the KMS refuses the head because of its version, and lists none
// that could be used.
func (r *Rotator) destroyAll(ctx context.Context, head treeRow) error {
	if err := errors.Join(r.c.Allowed(ctx), r.c.Durable(ctx)); err != nil {
		return fmt.Errorf("before destroying the last version: %w", err)
	}
	versions, err := r.c.Worker.List(ctx, head.Key)
	if err != nil {
		return fmt.Errorf("listing the key versions: %w", err)
	}
	for _, v := range versions {
		if v.State.Doomed() {
			continue
		}
		if _, err := r.c.Shredder.Destroy(ctx, v.Name); err != nil {
			return fmt.Errorf("destroying a version: %w", err)
		}
	}
	if err := r.awaitRefusal(ctx, head); err != nil {
		return err
	}
	if versions, err = r.c.Worker.List(ctx, head.Key); err != nil {
		return fmt.Errorf("listing the key versions: %w", err)
	}
	for _, v := range versions {
		if !v.State.Doomed() {
			return fmt.Errorf("a version is %v: %w", v.State, memd.ErrErasureUnfinished)
		}
	}
	return nil
}

func (r *Rotator) commitEnd(ctx context.Context, s *session, head treeRow) error {
	last, err := r.c.Shredder.Get(ctx, head.KMSVersion)
	if err != nil {
		return fmt.Errorf("reading the last version: %w", err)
	}
	e, now := entry{head.Tenant, head.Epoch + 1}, r.c.Clock.Now()
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlEndLine, pg.Args{"tenant": e.tenant, "epoch": e.epoch}); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlJournalEnd, pg.Args{
			"tenant": e.tenant, "epoch": e.epoch, "finished": RotationFinished, "old": head.KMSVersion, "now": now, "due": dueOf(last),
		})
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, sqlNotifyEpoch, pg.Args{
			"channel": EpochChannel, "payload": fmt.Sprintf("%s %d", e.tenant, e.epoch),
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("ending the line of key trees: %w", err)
	}
	r.c.Logger.InfoContext(ctx, "last key version destroyed", "tenant", e.tenant, "epoch", e.epoch, "version", head.KMSVersion)
	return nil
}
