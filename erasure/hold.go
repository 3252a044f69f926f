package erasure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/shred"
)

// MaxReason bounds the reason of a hold, in bytes.
const MaxReason = 4096

// Hold is a legal hold: while it is in force, no erasure of whom it covers
// begins a step. One of a user covers the user's sessions, one of a session
// keeps the whole user, and one of anybody keeps the tenant.
type Hold struct {
	ID      uuid.UUID
	Kind    Kind // KindUser, KindSession or KindTenant
	App     string
	User    memd.Ref
	Session memd.Ref
	// Reason is empty once whom it was about has been erased.
	Reason                string
	Author                uuid.UUID // the API key that set it
	CreatedAt, ReleasedAt time.Time
	ReleasedBy            uuid.UUID

	no     memd.Number
	sealed []byte
}

// InForce reports whether the hold was not released.
func (h Hold) InForce() bool { return h.ReleasedAt.IsZero() }

const sqlInsertHold = `
INSERT INTO memd.holds (tenant_no, hold_id, job_no, kind, app, user_ref, session_ref, sealed_reason, author, created_at)
VALUES (@tenant, @id, @no, @kind, @app, @user, @session, @reason, @by, @now) ON CONFLICT (tenant_no, hold_id) DO NOTHING`

const sqlReleaseHold = `
UPDATE memd.holds SET released_at = @now, released_by = @by WHERE tenant_no = @tenant AND hold_id = @id AND released_at IS NULL`

const sqlReadHolds = `
SELECT hold_id, job_no, kind, app, coalesce(user_ref, ''), coalesce(session_ref, ''), sealed_reason, author, created_at,
  released_at, coalesce(released_by, '00000000-0000-0000-0000-000000000000')
FROM memd.holds WHERE tenant_no = @tenant AND (@id::uuid IS NULL OR hold_id = @id) AND (@all OR released_at IS NULL)
ORDER BY created_at DESC, hold_id LIMIT @limit`

// Erasures that a hold pauses: what it covers and is not final.
const sqlPaused = sqlJobColumns + `
WHERE tenant_no = @tenant AND state < 4 AND (kind = 5
    AND state < 3 AND memd.month_refusal(tenant_no, class, month, request_id, now()) = 'held'
  OR kind <> 5 AND @kind = 4 OR kind = 4 OR user_ref = @user AND (@kind = 1 OR kind = 1 OR session_ref = @session))
ORDER BY accepted_at LIMIT 1000`

// Hold sets a hold and returns it with the erasures that it pauses: each where
// it stands, between two steps, or with a step under way that still ends. Safe
// to repeat with the same id; one that was used for another is
// memd.ErrRequestReused.
func (s *Service) Hold(ctx context.Context, c Caller, id uuid.UUID, app, userID, sessionID, reason string) (Hold, []Job, error) {
	h, err := s.holdFor(ctx, c, id, app, userID, sessionID)
	if err != nil {
		return Hold{}, nil, err
	}
	if reason == "" || len(reason) > MaxReason {
		return Hold{}, nil, &memd.InvalidError{Field: "reason", Problem: fmt.Sprintf("is required and at most %d bytes long", MaxReason)}
	}
	var paused []Job
	err = s.withKeys(ctx, c, func(k *shred.Keys) error {
		return s.Pool.With(ctx, func(db pg.DB) error {
			if err := setHold(ctx, db, k, h, reason, c.KeyID, s.Clock.Now()); err != nil {
				return err
			}
			got, err := readHolds(ctx, db, k, &id, true)
			if err != nil {
				return err
			}
			if len(got) != 1 || got[0].Kind != h.Kind || got[0].User != h.User || got[0].Session != h.Session {
				return memd.ErrRequestReused
			}
			h = got[0]
			rows, err := db.Query(ctx, sqlPaused, pg.Args{
				"tenant": c.Tenant, "kind": h.Kind, "user": refOrNull(h.User), "session": refOrNull(h.Session),
			})
			if err == nil {
				paused, err = pgx.CollectRows(rows, scanJob)
			}
			return err
		})
	})
	return h, paused, err
}

func (s *Service) holdFor(ctx context.Context, c Caller, id uuid.UUID, app, userID, sessionID string) (Hold, error) {
	if id == uuid.Nil {
		return Hold{}, &memd.InvalidError{Field: "hold_id", Problem: "is required"}
	}
	h := Hold{ID: id, Kind: KindTenant, App: app}
	if app == "" && userID == "" && sessionID == "" {
		return h, nil
	}
	if err := validateIDs(app, userID); err != nil {
		return h, err
	}
	err := s.withKeys(ctx, c, func(k *shred.Keys) error {
		h.Kind, h.User = KindUser, k.UserRef(app, userID)
		if sessionID == "" {
			return nil
		}
		h.Kind, h.Session = KindSession, k.SessionRef(h.User, sessionID)
		return validateID("session_id", sessionID)
	})
	return h, err
}

func setHold(ctx context.Context, db pg.DB, k *shred.Keys, h Hold, reason string, by uuid.UUID, now time.Time) error {
	var no memd.Number
	if err := db.QueryRow(ctx, sqlNextJob, pg.Args{"tenant": k.Tenant()}).Scan(&no); err != nil {
		return fmt.Errorf("numbering a hold: %w", err)
	}
	sealed, err := sealUnder(k, no, fieldReason, []byte(reason))
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, sqlInsertHold, pg.Args{
		"tenant": k.Tenant(), "id": h.ID, "no": no, "kind": h.Kind, "app": h.App, "user": refOrNull(h.User),
		"session": refOrNull(h.Session), "reason": sealed, "by": by, "now": now,
	})
	if err != nil {
		return fmt.Errorf("setting a hold: %w", err)
	}
	return nil
}

// ReleaseHold ends a hold; what it paused goes on. Safe to repeat. A hold that
// there is not is memd.ErrNotFound.
func (s *Service) ReleaseHold(ctx context.Context, c Caller, id uuid.UUID) (Hold, error) {
	var h Hold
	err := s.withKeys(ctx, c, func(k *shred.Keys) error {
		return s.Pool.With(ctx, func(db pg.DB) error {
			_, err := db.Exec(ctx, sqlReleaseHold, pg.Args{"tenant": c.Tenant, "id": id, "by": c.KeyID, "now": s.Clock.Now()})
			if err != nil {
				return fmt.Errorf("releasing a hold: %w", err)
			}
			got, err := readHolds(ctx, db, k, &id, true)
			if err == nil && len(got) == 0 {
				return memd.ErrNotFound
			}
			if err == nil {
				h = got[0]
			}
			return err
		})
	})
	return h, err
}

// Holds returns a tenant's holds, the newest first, those that were released
// only with all.
func (s *Service) Holds(ctx context.Context, c Caller, all bool) ([]Hold, error) {
	var out []Hold
	err := s.withKeys(ctx, c, func(k *shred.Keys) error {
		return s.Pool.With(ctx, func(db pg.DB) (err error) {
			out, err = readHolds(ctx, db, k, nil, all)
			return err
		})
	})
	return out, err
}

const maxHolds = 1000

func readHolds(ctx context.Context, db pg.DB, k *shred.Keys, id *uuid.UUID, all bool) ([]Hold, error) {
	rows, err := db.Query(ctx, sqlReadHolds, pg.Args{"tenant": k.Tenant(), "id": id, "all": all, "limit": maxHolds})
	if err != nil {
		return nil, fmt.Errorf("reading holds: %w", err)
	}
	out, err := pgx.CollectRows(rows, scanHold)
	if err != nil {
		return nil, fmt.Errorf("reading holds: %w", err)
	}
	for i, h := range out {
		reason, err := openUnder(k, h.no, fieldReason, h.sealed)
		if err != nil && !errors.Is(err, memd.ErrShredded) {
			return nil, err
		}
		out[i].Reason = string(reason)
	}
	return out, nil
}

func scanHold(row pgx.CollectableRow) (Hold, error) {
	var h Hold
	var user, session []byte
	var released *time.Time
	err := row.Scan(&h.ID, &h.no, &h.Kind, &h.App, &user, &session, &h.sealed, &h.Author, &h.CreatedAt, &released, &h.ReleasedBy)
	if len(user) > 0 {
		h.User = memd.Ref(user)
	}
	if len(session) > 0 {
		h.Session = memd.Ref(session)
	}
	h.ReleasedAt = timeOf(released)
	return h, err
}

const sqlHoldsOf = `
SELECT hold_id, created_at, released_at FROM memd.holds
WHERE tenant_no = @tenant AND (released_at IS NULL OR released_at >= @since)
  AND (kind = 4 OR @kind = 4 OR user_ref = @user AND (kind = 1 OR @kind = 1 OR session_ref = @session))
ORDER BY created_at LIMIT 1000`

// holdsOf returns the holds that were in force at any time since the erasure was
// accepted, for its receipt.
func holdsOf(ctx context.Context, db pg.DB, j Job) ([]receipts.Hold, error) {
	rows, err := db.Query(ctx, sqlHoldsOf, pg.Args{
		"tenant": j.Tenant, "kind": j.Kind, "user": refOrNull(j.User), "session": refOrNull(j.Session), "since": j.AcceptedAt,
	})
	if err != nil {
		return nil, fmt.Errorf("reading holds: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (h receipts.Hold, err error) {
		var released *time.Time
		err = row.Scan(&h.ID, &h.PlacedAt, &released)
		h.ReleasedAt = timeOf(released)
		return h, err
	})
}

const sqlForgetReasons = `
UPDATE memd.holds SET sealed_reason = '' WHERE tenant_no = @tenant AND user_ref = @user AND released_at IS NOT NULL
RETURNING job_no`

// forgetReasons deletes what was written down about holds on a user, and returns
// the leaves of the key tree that it was sealed under.
func forgetReasons(ctx context.Context, db pg.DB, j Job) ([]shred.Path, error) {
	rows, err := db.Query(ctx, sqlForgetReasons, pg.Args{"tenant": j.Tenant, "user": j.User[:]})
	if err != nil {
		return nil, fmt.Errorf("forgetting the reasons of holds: %w", err)
	}
	numbers, err := pgx.CollectRows(rows, pgx.RowTo[memd.Number])
	if err != nil {
		return nil, fmt.Errorf("forgetting the reasons of holds: %w", err)
	}
	paths := make([]shred.Path, len(numbers))
	for i, no := range numbers {
		paths[i] = shred.JobPath(no)
	}
	return paths, nil
}
