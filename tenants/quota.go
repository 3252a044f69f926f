package tenants

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Quota bounds what a tenant may take of what all tenants share. Zero fields are
// no bound.
type Quota struct {
	// Rows and Bytes bound what it has, as SizeOf counts: a tenant that was seen to
	// have as much adds nothing until it has less. Between two looks it may go
	// beyond: see Meter.
	Rows, Bytes int64
	// Calls is how many calls a second its agents may make at each server process,
	// and how many at once after a second's rest.
	Calls int
}

// Usage is what a tenant with a quota of rows or bytes had when it was last
// measured.
type Usage struct {
	Size
	// MeasuredAt is zero for a tenant that has not been measured.
	MeasuredAt time.Time
	// Full: what adds to the tenant's rows or bytes is refused.
	Full bool
}

// MeasureInterval is how often a tenant with a quota of rows or bytes is measured,
// unless measuring it takes more than a share of one in measureShare of the time:
// then as often as keeps to the share.
const (
	MeasureInterval = 5 * time.Second
	measureShare    = 20
)

// Meter measures tenants that have a quota of rows or bytes. How far such a tenant
// can get beyond it is what it adds from one look at it to the end of the next:
// MeasureInterval and what measuring takes, or measureShare times what it takes. A
// quota of calls bounds that: a call adds 256 rows and 16 MiB at most, an artifact's
// stream what is written in the time. Any number of meters may run, in the worker's
// role. All fields are required.
type Meter struct {
	Pool   *pg.Pool
	Clock  memd.Clock
	Logger *slog.Logger
}

// Run measures until ctx ends. A failure is logged, and the next round makes up
// for it.
func (m *Meter) Run(ctx context.Context) {
	tick := time.NewTicker(MeasureInterval)
	defer tick.Stop()
	for {
		if err := m.Measure(ctx); err != nil && ctx.Err() == nil {
			m.Logger.WarnContext(ctx, "tenants with quotas were not measured", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

const sqlDueTenants = `
SELECT tenant_no FROM memd.tenants
WHERE state = @state AND ((policy ->> 'max_rows')::bigint > 0 OR (policy ->> 'max_bytes')::bigint > 0)
  AND (measured_at IS NULL OR measured_at > @now
    OR measured_at + greatest(@interval::interval, make_interval(secs => measured_ms * @share / 1000.0)) <= @now)
ORDER BY measured_at NULLS FIRST`

const sqlMeasure = `SELECT memd.measure_tenant(@tenant_no, @now)`

// Measure measures those whose turn it is, one after the other.
func (m *Meter) Measure(ctx context.Context) error {
	return m.Pool.With(ctx, func(db pg.DB) error {
		// Each look is a little early rather than a whole tick late.
		args := pg.Args{"state": StateActive, "now": m.Clock.Now(), "interval": MeasureInterval / 2, "share": measureShare}
		rows, err := db.Query(ctx, sqlDueTenants, args)
		var due []memd.TenantNo
		if err == nil {
			due, err = pgx.CollectRows(rows, pgx.RowTo[memd.TenantNo])
		}
		if err != nil {
			return fmt.Errorf("looking for tenants to measure: %w", err)
		}
		for _, t := range due {
			if _, err := db.Exec(ctx, sqlMeasure, pg.Args{"tenant_no": t, "now": m.Clock.Now()}); err != nil {
				return fmt.Errorf("measuring a tenant: %w", err)
			}
		}
		return nil
	})
}

// QuotaReached returns the error of a write that was refused with
// memd.ErrQuotaReached, which says of what the tenant has too much, by how much, and
// what to do.
func (t Tenant) QuotaReached() error {
	var reached []string
	for _, q := range []struct {
		what       string
		has, limit int64
	}{{"rows", t.Usage.Rows, t.Policy.Quota.Rows}, {"bytes", t.Usage.Bytes, t.Policy.Quota.Bytes}} {
		if q.limit > 0 && q.has >= q.limit {
			reached = append(reached, fmt.Sprintf("%d %s of %d, %d too many", q.has, q.what, q.limit, q.has-q.limit))
		}
	}
	if reached == nil {
		// It was, when the write was refused, and has room again.
		return fmt.Errorf("%w: repeat", memd.ErrQuotaReached)
	}
	return &memd.RefusalError{Class: memd.ErrQuotaReached, Problem: fmt.Sprintf(
		"it has %s; delete or forget something, which makes room within seconds, or have the quota raised", strings.Join(reached, " and "))}
}
