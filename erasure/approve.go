package erasure

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

// whole adds what a dry run tells of a tenant, and the digest of it all. The
// counts by store are there already.
func (p *Preview) whole(ctx context.Context, db pg.DB, no memd.TenantNo) error {
	t, err := tenants.GetByNo(ctx, db, no)
	if err != nil {
		return err
	}
	p.DisplayName, p.TenantState = t.DisplayName, t.State
	if p.Subjects, p.Sessions, err = provenance.CountTenant(ctx, db, no); err != nil {
		return err
	}
	size, err := tenants.SizeOf(ctx, db, no)
	if err != nil {
		return err
	}
	p.Bytes = size.Bytes
	if p.Strangers, err = tenants.Strangers(ctx, db, no); err != nil {
		return err
	}
	moves, err := tenants.Transitions(ctx, db, no)
	if err != nil {
		return err
	}
	var since time.Time
	if len(moves) > 0 {
		since = moves[0].At
	}
	shown, err := json.Marshal(struct {
		Tenant                    memd.TenantNo
		Name, DisplayName         string
		State                     string
		Since                     time.Time
		Counts                    Counts
		Bytes, Subjects, Sessions int64
		Strangers                 []tenants.Stranger
	}{no, t.Name, t.DisplayName, t.State.String(), since, p.Counts, p.Bytes, p.Subjects, p.Sessions, p.Strangers})
	if err != nil {
		return fmt.Errorf("encoding a dry run: %w", err)
	}
	p.Digest = sha256.Sum256(shown)
	return nil
}

// ApproveDeletion approves the purge of a tenant that is drained, as the dry run
// of that digest showed it, for tenants.ApprovalLife. The caller repeats name and
// display name, and its key is the installation's and has the role approver. When
// the tenant is not any more what was shown it is memd.ErrNotApproved.
func (s *Service) ApproveDeletion(ctx context.Context, c Caller, name, displayName string, digest [sha256.Size]byte) (tenants.Approval, error) {
	t, err := s.confirmed(ctx, name, displayName)
	if err != nil {
		return tenants.Approval{}, err
	}
	now, err := s.preview(ctx, Job{Tenant: t.No, Kind: KindTenant})
	if err != nil {
		return tenants.Approval{}, err
	}
	if now.Digest != digest {
		return tenants.Approval{}, &memd.RefusalError{
			Class: memd.ErrNotApproved, Problem: "this is not the dry run's digest, or the tenant has changed since: make it again",
		}
	}
	var a tenants.Approval
	err = s.Pool.InTx(ctx, func(tx pgx.Tx) (err error) {
		a, err = tenants.Approve(ctx, tx, s.Clock.Now(), t.No, digest, c.KeyID)
		return err
	})
	return a, err
}

// confirmed returns the tenant of that name if that is its display name.
func (s *Service) confirmed(ctx context.Context, name, displayName string) (tenants.Tenant, error) {
	var t tenants.Tenant
	err := s.Pool.With(ctx, func(db pg.DB) (err error) {
		t, err = tenants.Get(ctx, db, name)
		return err
	})
	if err == nil && t.DisplayName != displayName {
		err = &memd.InvalidError{Field: "confirm_display_name", Problem: "must be the tenant's display name, letter by letter"}
	}
	return t, err
}

// acceptPurge accepts the purge of a tenant, which spends an approval of what the
// tenant is now. The tenant is drained: nothing comes between counting it and
// accepting but erasures of single users.
func (s *Service) acceptPurge(ctx context.Context, c Caller, t tenants.Tenant, request uuid.UUID) (j Job, err error) {
	if t.State != tenants.StateDrained {
		return j, &memd.RefusalError{Class: memd.ErrTenantInactive, Problem: fmt.Sprintf("it is %s, and has to be drained first", t.State)}
	}
	now, err := s.preview(ctx, Job{Tenant: t.No, Kind: KindTenant})
	if err != nil {
		return j, err
	}
	// With the tenant's keys: once it is purged there are none.
	err = s.withKeys(ctx, c, func(k *shred.Keys) error {
		return s.Pool.InTx(ctx, func(tx pgx.Tx) (err error) {
			if err = tenants.Spend(ctx, tx, s.Clock.Now(), t.No, request, now.Digest, c.KeyID); err != nil {
				return err
			}
			asked := Job{Tenant: t.No, ID: request, Kind: KindTenant}
			j, err = accept(ctx, tx, asked, c.KeyID, s.Clock.Now(), rememberer(k, t.Name, "", "", ""))
			return err
		})
	})
	return j, err
}

// approvalsOf are those that were spent on a request.
func approvalsOf(ctx context.Context, db pg.DB, j Job) ([]receipts.Approval, error) {
	all, err := tenants.Approvals(ctx, db, j.Tenant)
	var out []receipts.Approval
	for _, a := range all {
		if a.Request == j.ID {
			out = append(out, receipts.Approval{At: a.At, Principal: a.By})
		}
	}
	return out, err
}
