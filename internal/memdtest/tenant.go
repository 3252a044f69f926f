package memdtest

import (
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

// Drain takes a tenant to where it can be purged: suspended, if it was active, and
// drained.
func (s *Stack) Drain(no memd.TenantNo) tenants.Tenant {
	s.t.Helper()
	var t tenants.Tenant
	err := s.appPool().InTx(s.t.Context(), func(tx pgx.Tx) (err error) {
		if t, err = tenants.GetByNo(s.t.Context(), tx, no); err != nil {
			return err
		}
		if t.State == tenants.StateActive {
			if _, err = tenants.Move(s.t.Context(), tx, s.clock.Now(), t.Name, tenants.StateSuspended, uuid.New(), "it leaves", unread); err != nil {
				return err
			}
		}
		t, err = tenants.Move(s.t.Context(), tx, s.clock.Now(), t.Name, tenants.StateDrained, uuid.New(), "it has left", unread)
		return err
	})
	if err != nil {
		s.t.Fatalf("draining a tenant: %v", err)
	}
	return t
}

// appPool is one for all calls: a sweep makes hundreds.
func (s *Stack) appPool() *pg.Pool {
	if s.app == nil {
		s.app = s.DB.Pool(node.AppRole)
	}
	return s.app
}

// unread is a reason that nobody opens.
func unread(time.Time, string) ([]byte, error) { return []byte("sealed"), nil }

// Approve drains a tenant, has somebody else approve its purge as it is now, and
// returns the approver's API key.
func (s *Stack) Approve(srv *node.Server, no memd.TenantNo) auth.Key {
	s.t.Helper()
	t := s.Drain(no)
	var k auth.Key
	err := s.appPool().With(s.t.Context(), func(db pg.DB) (err error) {
		k, _, err = auth.Create(s.t.Context(), db, s.clock.Now(), auth.NewKey{Name: "approver", Roles: auth.Approver})
		return err
	})
	var shown erasure.Preview
	if err == nil {
		shown, err = srv.Erasure.DryRunTenant(s.t.Context(), t.Name)
	}
	if err == nil {
		_, err = srv.Erasure.ApproveDeletion(s.t.Context(), erasure.Caller{KeyID: k.ID}, t.Name, t.DisplayName, shown.Digest)
	}
	if err != nil {
		s.t.Fatalf("approving a purge: %v", err)
	}
	return k
}
