package server

import (
	"context"
	"errors"
	"math"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

// quotas keeps a tenant's agents within their calls a second at this process, by
// the policy that the call was authenticated with, so that a change counts from the
// next call on. Rows and bytes are the database's to refuse: here is said by how
// much they are exceeded.
type quotas struct {
	pool    *pg.Pool
	clock   memd.Clock
	refused *prometheus.CounterVec

	mu sync.Mutex
	// buckets are of the tenants that have a quota of calls and made one.
	buckets map[memd.TenantNo]*rate.Limiter
}

func newQuotas(pool *pg.Pool, clock memd.Clock, r prometheus.Registerer) (*quotas, error) {
	q := &quotas{pool: pool, clock: clock, buckets: map[memd.TenantNo]*rate.Limiter{}}
	q.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "memd_quota_refusals_total", Help: "Calls that were refused for a tenant's quota: of calls a second, or of content, which is rows and bytes.",
	}, []string{"quota"})
	return q, r.Register(q.refused)
}

// limitedError is a refusal that holds for a while.
type limitedError struct{ after time.Duration }

func (e *limitedError) Error() string { return memd.ErrTooManyCalls.Error() }

func (e *limitedError) Unwrap() error { return memd.ErrTooManyCalls }

func (q *quotas) interceptor(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
		p := principalOf(ctx)
		if rules[spec.Procedure].counts {
			if wait := q.wait(p); wait > 0 {
				q.refused.WithLabelValues("calls").Inc()
				if info, ok := connect.CallInfoForServerContext(ctx); ok {
					info.ResponseHeader().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
				}
				return &limitedError{wait}
			}
		}
		err := next(ctx, spec, stream)
		if errors.Is(err, memd.ErrQuotaReached) {
			q.refused.WithLabelValues("content").Inc()
			return q.explain(ctx, p, err)
		}
		return err
	}
}

// wait takes a call from the tenant's bucket, or says how long it will be empty.
func (q *quotas) wait(p auth.Principal) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	calls := p.Policy.Quota.Calls
	if calls == 0 {
		delete(q.buckets, p.Tenant)
		return 0
	}
	now := q.clock.Now()
	b := q.buckets[p.Tenant]
	if b == nil {
		b = rate.NewLimiter(rate.Limit(calls), calls)
		q.buckets[p.Tenant] = b
	}
	if b.Burst() != calls {
		b.SetLimitAt(now, rate.Limit(calls))
		b.SetBurstAt(now, calls)
	}
	r := b.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

// explain says of what the tenant has too much. Nobody waits for it who is not
// refused.
func (q *quotas) explain(ctx context.Context, p auth.Principal, refusal error) error {
	err := q.pool.With(ctx, func(db pg.DB) error {
		t, err := tenants.GetByNo(ctx, db, p.Tenant)
		if err == nil {
			refusal = t.QuotaReached()
		}
		return err
	})
	if err != nil {
		return errors.Join(refusal, err)
	}
	return refusal
}
