package tenants

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// ApprovalLife is how long an approval can be spent.
const ApprovalLife = 24 * time.Hour

// Approval is somebody's consent to the purge of a tenant as a dry run showed it.
type Approval struct {
	ID     uuid.UUID
	Digest [32]byte // of the dry run
	// By is the approver's API key.
	By            uuid.UUID
	At, ExpiresAt time.Time
	// Request is the purge that it was spent on; zero for none.
	Request uuid.UUID
	// VoidedAt is since when it is none; zero for one that was not voided.
	VoidedAt time.Time
}

// Good reports whether it can be spent now.
func (a Approval) Good(now time.Time) bool {
	return a.Request == uuid.Nil && a.VoidedAt.IsZero() && now.Before(a.ExpiresAt)
}

const sqlApprove = `SELECT memd.approve_purge(@tenant_no, @id, @digest, @by, @now, @expires)`

// Approve records that a key approves the purge of a tenant that is drained, as
// the dry run of that digest showed it, for ApprovalLife. The key must be the
// installation's and have the role approver: otherwise ErrPermissionDenied. Each
// call is another approval.
func Approve(ctx context.Context, db pg.DB, now time.Time, no memd.TenantNo, digest [32]byte, by uuid.UUID) (Approval, error) {
	a := Approval{ID: uuid.New(), Digest: digest, By: by, At: now.UTC(), ExpiresAt: now.UTC().Add(ApprovalLife)}
	_, err := db.Exec(ctx, sqlApprove, pg.Args{
		"tenant_no": no, "id": a.ID, "digest": digest[:], "by": by, "now": a.At, "expires": a.ExpiresAt,
	})
	switch {
	case errors.Is(pg.Classify(err), memd.ErrTenantInactive):
		return Approval{}, &memd.RefusalError{Class: memd.ErrTenantInactive, Problem: "it has to be drained first"}
	case pg.SQLState(err) == "42501":
		return Approval{}, fmt.Errorf("approving a purge: %w", memd.ErrPermissionDenied)
	case err != nil:
		return Approval{}, fmt.Errorf("approving a purge: %w", err)
	}
	return a, nil
}

const sqlSpend = `SELECT memd.spend_approval(@tenant_no, @request, @digest, @by, @now)`

// Spend spends an approval on a request by a key, in the transaction that accepts
// it: one of somebody else, of the tenant as it is now. When there is none it is
// a RefusalError of ErrNotApproved that says what is wrong with the nearest.
func Spend(ctx context.Context, tx pgx.Tx, now time.Time, no memd.TenantNo, request uuid.UUID, digest [32]byte, by uuid.UUID) error {
	all, err := Approvals(ctx, tx, no)
	if err != nil {
		return err
	}
	if problem := unspendable(all, now, digest, by); problem != "" {
		return &memd.RefusalError{Class: memd.ErrNotApproved, Problem: problem}
	}
	_, err = tx.Exec(ctx, sqlSpend, pg.Args{"tenant_no": no, "request": request, "digest": digest[:], "by": by, "now": now})
	if errors.Is(pg.Classify(err), memd.ErrNotApproved) {
		return &memd.RefusalError{Class: memd.ErrNotApproved, Problem: "the approver's key was revoked, or the approval was spent or voided meanwhile"}
	}
	if err != nil {
		return fmt.Errorf("spending an approval: %w", err)
	}
	return nil
}

// unspendable says why none of them will do, or "".
func unspendable(all []Approval, now time.Time, digest [32]byte, by uuid.UUID) string {
	problem := "somebody with the role approver has to approve it first"
	for _, a := range all { // The newest first: of several it is the last that counts.
		switch {
		case a.Good(now) && a.Digest == digest && a.By != by:
			return ""
		case a.Good(now) && a.Digest == digest:
			problem = "whoever asks for it cannot be the one who approves it"
		case a.Good(now):
			problem = "the tenant has changed since it was approved: make the dry run again and have it approved"
		case a.Request == uuid.Nil && a.VoidedAt.IsZero():
			problem = "the approval has expired"
		case a.Request == uuid.Nil:
			problem = "the approval was voided"
		}
	}
	return problem
}

const sqlVoid = `SELECT memd.void_approval(@tenant_no, @id, @now)`

// Void takes an approval back. Safe to repeat. One that is not there, and one that
// was spent, is ErrNotFound.
func Void(ctx context.Context, db pg.DB, now time.Time, no memd.TenantNo, id uuid.UUID) (Approval, error) {
	if _, err := db.Exec(ctx, sqlVoid, pg.Args{"tenant_no": no, "id": id, "now": now}); err != nil {
		return Approval{}, fmt.Errorf("voiding an approval: %w", err)
	}
	all, err := Approvals(ctx, db, no)
	if err != nil {
		return Approval{}, err
	}
	for _, a := range all {
		if a.ID == id && !a.VoidedAt.IsZero() {
			return a, nil
		}
	}
	return Approval{}, memd.ErrNotFound
}

const sqlApprovals = `
SELECT approval_id, digest, approved_by, approved_at, expires_at, request_id, voided_at FROM memd.approvals
WHERE tenant_no = @tenant_no ORDER BY approved_at DESC, approval_id LIMIT @limit`

// maxApprovals bounds what Approvals returns.
const maxApprovals = 1000

// Approvals returns a tenant's approvals, spent and voided ones among them, the
// newest first, at most a thousand.
func Approvals(ctx context.Context, db pg.DB, no memd.TenantNo) ([]Approval, error) {
	rows, err := db.Query(ctx, sqlApprovals, pg.Args{"tenant_no": no, "limit": maxApprovals})
	if err != nil {
		return nil, fmt.Errorf("reading approvals: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a Approval, err error) {
		var digest []byte
		var request *uuid.UUID
		var voided *time.Time
		if err = row.Scan(&a.ID, &digest, &a.By, &a.At, &a.ExpiresAt, &request, &voided); err != nil {
			return a, err
		}
		copy(a.Digest[:], digest)
		a.At, a.ExpiresAt = a.At.UTC(), a.ExpiresAt.UTC()
		if request != nil {
			a.Request = *request
		}
		if voided != nil {
			a.VoidedAt = voided.UTC()
		}
		return a, nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading approvals: %w", err)
	}
	return all, nil
}
