package erasure

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

// MoveTenant takes a tenant to a state: see tenants.Move. The reason is kept sealed
// under the tenant's own keys, which the process therefore needs.
func (s *Service) MoveTenant(ctx context.Context, name string, to tenants.State, by uuid.UUID, reason string) (tenants.Tenant, error) {
	var t tenants.Tenant
	err := s.Pool.With(ctx, func(db pg.DB) (err error) {
		t, err = tenants.Get(ctx, db, name)
		return err
	})
	if err != nil {
		return t, err
	}
	move := func(seal tenants.Seal) error {
		return s.Pool.InTx(ctx, func(tx pgx.Tx) (err error) {
			t, err = tenants.Move(ctx, tx, s.Clock.Now(), name, to, by, reason, seal)
			return err
		})
	}
	if !t.State.Erases() { // It has no keys, and will not be moved.
		return t, move(func(time.Time, string) ([]byte, error) { return nil, memd.ErrTenantInactive })
	}
	return t, s.withKeys(ctx, Caller{Tenant: t.No}, func(k *shred.Keys) error {
		return move(func(at time.Time, reason string) ([]byte, error) {
			notes, err := k.Notes()
			if err != nil {
				return nil, err
			}
			return notes.Seal([]byte(reason), shred.AADTransition(t.No, at, int16(to)))
		})
	})
}

// Transitions returns the transitions of a tenant as tenants.Transitions does, with
// the reasons that operators gave if they are asked for. Those of a tenant whose keys
// are gone are gone too.
func (s *Service) Transitions(ctx context.Context, t tenants.Tenant, reasons bool) ([]tenants.Transition, error) {
	var all []tenants.Transition
	err := s.Pool.With(ctx, func(db pg.DB) (err error) {
		all, err = tenants.Transitions(ctx, db, t.No)
		return err
	})
	if err != nil || !reasons || !t.State.Erases() {
		return all, err
	}
	return all, s.withKeys(ctx, Caller{Tenant: t.No}, func(k *shred.Keys) error {
		notes, err := k.Notes()
		for i := range all {
			one := &all[i]
			if len(one.Sealed) == 0 || err != nil {
				continue
			}
			var plain []byte
			plain, err = notes.Open(one.Sealed, shred.AADTransition(t.No, one.At, int16(one.To)))
			one.Reason = string(plain)
		}
		if errors.Is(err, memd.ErrShredded) {
			return nil
		}
		return err
	})
}
