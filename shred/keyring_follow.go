package shred

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// EpochChannel carries "<tenant> <epoch>" whenever a tenant's epoch was raised.
const EpochChannel = "memd_epochs"

// Run follows the epochs of all tenants until ctx ends, then drops every key
// and returns nil. Without it keys are dropped only when a call names a later
// epoch, and rotations wait for this process's lease.
func (r *Keyring) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return pg.Listen(ctx, r.c.Pool, []string{EpochChannel},
			func() { signal(r.recheck) },
			func(_, payload string) { r.notified(ctx, payload) })
	})
	g.Go(func() error { return r.follow(ctx) })
	err := g.Wait()
	r.dropAll()
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// notified drops at once; the database is told by follow, which may wait.
func (r *Keyring) notified(ctx context.Context, payload string) {
	tenant, epoch, ok := parseEpoch(payload)
	if !ok {
		r.c.Logger.WarnContext(ctx, "notification of an epoch makes no sense, comparing all")
		signal(r.recheck)
		return
	}
	r.supersede(tenant, epoch)
}

func parseEpoch(payload string) (memd.TenantNo, int64, bool) {
	left, right, _ := strings.Cut(payload, " ")
	tenant, err := strconv.ParseInt(left, 10, 64)
	epoch, err2 := strconv.ParseInt(right, 10, 64)
	return memd.TenantNo(tenant), epoch, err == nil && err2 == nil && tenant > 0 && epoch > 0
}

// follow reports what was dropped, and compares all epochs when notifications
// may have been missed and every now and then besides.
func (r *Keyring) follow(ctx context.Context) error {
	tick := time.NewTicker(r.c.Recheck)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.report:
			err = r.reportDropped(ctx)
		case <-r.recheck:
			err = r.compare(ctx)
		case <-tick.C:
			err = r.compare(ctx)
		}
		if err != nil && ctx.Err() == nil {
			r.c.Logger.WarnContext(ctx, "following key epochs", "error", err)
		}
	}
}

const sqlSelectOutdated = `
SELECT i.tenant_no, k.epoch FROM memd.instance_epochs i
JOIN memd.tenant_keys k ON k.tenant_no = i.tenant_no
WHERE i.instance_id = @instance AND i.epoch < k.epoch`

// compare finds every tenant that this process reported an older epoch of than
// the head's. It goes by the reports and not by the cache, because a report
// outlives its keys when a load failed or the cache was full.
func (r *Keyring) compare(ctx context.Context) error {
	type outdated struct {
		Tenant memd.TenantNo `db:"tenant_no"`
		Epoch  int64         `db:"epoch"`
	}
	var found []outdated
	err := r.c.Pool.With(ctx, func(db pg.DB) error {
		rows, err := db.Query(ctx, sqlSelectOutdated, pg.Args{"instance": r.c.Instance.ID()})
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowToStructByName[outdated])
		return err
	})
	if err != nil {
		return fmt.Errorf("comparing key epochs: %w", err)
	}
	for _, o := range found {
		r.supersede(o.Tenant, o.Epoch)
	}
	return nil
}

const sqlReportDropped = `
UPDATE memd.instance_epochs i SET epoch = d.epoch
FROM unnest(@tenants::bigint[], @epochs::bigint[]) AS d (tenant_no, epoch)
WHERE i.instance_id = @instance AND i.tenant_no = d.tenant_no AND i.epoch < d.epoch`

// reportDropped tells the database which epochs are not held any more. A tenant
// whose keys are being loaded waits until that has ended: until then an old
// state may be in memory.
func (r *Keyring) reportDropped(ctx context.Context) error {
	var tenants []memd.TenantNo
	var epochs []int64
	r.mu.Lock()
	for tenant, epoch := range r.dropped {
		if r.flights[tenant] == nil {
			tenants, epochs = append(tenants, tenant), append(epochs, epoch)
			delete(r.dropped, tenant)
		}
	}
	r.mu.Unlock()
	if len(tenants) == 0 {
		return nil
	}
	if r.c.OnDrop != nil {
		for _, tenant := range tenants {
			r.c.OnDrop(ctx, tenant)
		}
	}
	err := r.c.Pool.With(ctx, func(db pg.DB) error {
		_, err := db.Exec(ctx, sqlReportDropped, pg.Args{
			"tenants": tenants, "epochs": epochs, "instance": r.c.Instance.ID(),
		})
		return err
	})
	if err != nil {
		// The next comparison finds the tenants again.
		return fmt.Errorf("reporting dropped epochs: %w", err)
	}
	return nil
}
