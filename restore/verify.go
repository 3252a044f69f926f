package restore

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

const tenantPage = 200

// verify opens what is left with the keys that are left.
func (r *restorer) verify(ctx context.Context) error {
	bad := &UnreadableError{Rows: map[memd.TenantNo][]uuid.UUID{}}
	err := r.eachTenant(ctx, func(t tenants.Tenant) error {
		return r.Pool.With(ctx, func(db pg.DB) error { return r.open(ctx, db, t.No, bad) })
	})
	if err != nil {
		return err
	}
	if len(bad.Lost) > 0 || bad.Count > 0 {
		return bad
	}
	return nil
}

// eachTenant calls f for every tenant that has not been purged.
func (r *restorer) eachTenant(ctx context.Context, f func(tenants.Tenant) error) error {
	after := ""
	for {
		var page []tenants.Tenant
		err := r.Pool.With(ctx, func(db pg.DB) (err error) {
			page, err = tenants.List(ctx, db, after, tenantPage)
			return err
		})
		if err != nil {
			return err
		}
		for _, t := range page {
			after = t.Name
			if t.State == tenants.StatePurging || t.State == tenants.StatePurged {
				continue
			}
			if err := f(t); err != nil {
				return err
			}
		}
		if len(page) < tenantPage {
			return nil
		}
	}
}

func (r *restorer) open(ctx context.Context, db pg.DB, tenant memd.TenantNo, bad *UnreadableError) error {
	k, err := shred.Head(ctx, db, r.KMS, tenant)
	var lost *shred.LostKeysError
	switch {
	case errors.Is(err, memd.ErrNotFound):
		return nil // Its keys are yet to be made.
	case errors.As(err, &lost):
		bad.Lost = append(bad.Lost, lost)
		return nil
	case err != nil:
		return err
	}
	defer k.Drop()
	read, unreadable, ids, err := memory.Unreadable(ctx, db, k, r.Sample)
	if err != nil {
		return err
	}
	r.report.Tenants++
	r.report.Rows += read
	if unreadable > 0 {
		bad.Rows[tenant] = ids
		bad.Count += unreadable
	}
	if err := sessions.Sample(ctx, db, k); err != nil {
		return err
	}
	return artifacts.Sample(ctx, db, k)
}
