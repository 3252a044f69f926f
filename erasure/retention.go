package erasure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

// Why a month is not to expire, as memd.month_refusal says it.
const (
	// KeptForEver: the policy names no number of months.
	KeptForEver = "for_ever"
	// KeptInWindow: it is one of the months that the policy keeps.
	KeptInWindow = "in_window"
	// KeptNotBefore: the policy's floor lies ahead.
	KeptNotBefore = "not_before"
	// KeptHeld: a legal hold covers the tenant, or somebody of whom there is
	// anything in the month.
	KeptHeld = "held"
)

// MaxExpiries is how many months of a tenant one run begins to expire.
const MaxExpiries = 48

// Expiry is a month of a tenant in the plan of retention: one that is due, one that
// is kept, and why, or one that is under way.
type Expiry struct {
	Class memd.Class
	memd.MonthSize
	// Kept is one of the Kept constants, or "".
	Kept string
	// Request names the erasure that expires it, now or in future; State is how far
	// it has come, StateUnknown before it was accepted.
	Request uuid.UUID
	State   State
}

// Due reports whether a run would begin to expire it.
func (e Expiry) Due() bool { return e.Kept == "" && e.State == StateUnknown }

const sqlExpiries = `SELECT request_id, state FROM memd.erasures WHERE tenant_no = @tenant AND kind = 5`

// PlanRetention returns the months of a tenant, by class: those of which there is
// anything, and those since the tenant was made, of which backups may have
// something. What was expired, and is gone, is not among them. It changes nothing,
// and counts by reading the tables.
func PlanRetention(ctx context.Context, db pg.DB, stores []Store, t tenants.Tenant, now time.Time) ([]Expiry, error) {
	rows, err := db.Query(ctx, sqlExpiries, pg.Args{"tenant": t.No})
	if err != nil {
		return nil, fmt.Errorf("reading what expires: %w", err)
	}
	states := map[uuid.UUID]State{}
	var id uuid.UUID
	var state State
	if _, err := pgx.ForEachRow(rows, []any{&id, &state}, func() error { states[id] = state; return nil }); err != nil {
		return nil, fmt.Errorf("reading what expires: %w", err)
	}
	var out []Expiry
	for _, class := range []memd.Class{memd.ClassContent, memd.ClassMemory} {
		sizes, err := months(ctx, db, stores, t, class, now)
		if err != nil {
			return nil, err
		}
		for _, size := range sizes {
			e := Expiry{Class: class, MonthSize: size, Request: monthRequest(class, size.Month)}
			e.State = states[e.Request]
			if e.State >= StateDone && size.Rows == 0 {
				continue
			}
			if e.Kept, err = refusal(ctx, db, e.job(t.No), now); err != nil {
				return nil, err
			}
			out = append(out, e)
		}
	}
	return out, nil
}

func (e Expiry) job(tenant memd.TenantNo) Job {
	return Job{Tenant: tenant, ID: e.Request, Kind: KindMonth, Class: e.Class, Month: e.Month}
}

// months measures every month up to now's of which there may be anything.
func months(ctx context.Context, db pg.DB, stores []Store, t tenants.Tenant, class memd.Class, now time.Time) ([]memd.MonthSize, error) {
	current, err := memd.MonthOf(now)
	if err != nil {
		return nil, err
	}
	all := map[memd.Month]memd.MonthSize{}
	first, err := memd.MonthOf(t.CreatedAt)
	if err != nil {
		return nil, err
	}
	for m := first; m <= t.Policy.Retention(class).Cutoff(now); m++ {
		all[m] = memd.MonthSize{Month: m}
	}
	for _, s := range stores {
		if s.Stage().class() != class {
			continue
		}
		sizes, err := s.Months(ctx, db, t.No, current+1)
		if err != nil {
			return nil, err
		}
		for _, size := range sizes {
			have := all[size.Month]
			all[size.Month] = memd.MonthSize{Month: size.Month, Rows: have.Rows + size.Rows, Bytes: have.Bytes + size.Bytes}
		}
	}
	out := make([]memd.MonthSize, 0, len(all))
	for _, size := range all {
		out = append(out, size)
	}
	slices.SortFunc(out, func(a, b memd.MonthSize) int { return int(a.Month - b.Month) })
	return out, nil
}

// RunRetention begins to expire what is due of a tenant, the oldest months first
// and at most MaxExpiries, and returns the plan as it is then. From its return on
// nothing can be written into these months; the worker does the rest. What the
// database refuses, because a hold or another policy came in between, is told like
// what is kept. Safe to repeat.
func RunRetention(ctx context.Context, pool *pg.Pool, t tenants.Tenant, by uuid.UUID, now time.Time) ([]Expiry, error) {
	var plan []Expiry
	err := pool.With(ctx, func(db pg.DB) (err error) {
		plan, err = PlanRetention(ctx, db, AllStores(), t, now)
		return err
	})
	if err != nil {
		return nil, err
	}
	begun := 0
	for i := range plan {
		e := &plan[i]
		if !e.Due() || begun == MaxExpiries || !t.State.Erases() {
			continue
		}
		begun++
		err := pool.With(ctx, func(db pg.DB) error {
			j, err := Accept(ctx, db, e.job(t.No), by, now)
			if errors.Is(err, memd.ErrMonthKept) {
				e.Kept, err = refusal(ctx, db, e.job(t.No), now)
				return err
			}
			e.State = j.State
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return plan, nil
}
