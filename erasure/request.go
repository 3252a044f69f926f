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
)

// Kind says what is forgotten.
type Kind int16

// Kinds, as stored; append only.
const (
	KindUnknown Kind = 0
	KindUser    Kind = 1
	KindSession Kind = 2
)

// String returns the kind's name.
func (k Kind) String() string {
	switch k {
	case KindUser:
		return "user"
	case KindSession:
		return "session"
	}
	return fmt.Sprintf("Kind(%d)", int16(k))
}

// State is how far an erasure got.
type State int16

// States, as stored; append only.
const (
	StateUnknown  State = 0
	StateAccepted State = 1
	StateRunning  State = 2
	StateDone     State = 3
)

// String returns the state's name.
func (s State) String() string {
	switch s {
	case StateAccepted:
		return "accepted"
	case StateRunning:
		return "running"
	case StateDone:
		return "done"
	}
	return fmt.Sprintf("State(%d)", int16(s))
}

// DueWithin is the time that an erasure has: one month from the request (GDPR,
// Article 12(3)), counted as 30 days to be on the safe side.
const DueWithin = 30 * 24 * time.Hour

// Job is one accepted erasure. It names nobody: refs are keyed digests.
type Job struct {
	Tenant     memd.TenantNo
	ID         uuid.UUID
	Kind       Kind
	App        string
	User       memd.Ref
	Session    memd.Ref // zero for KindUser
	State      State
	AcceptedAt time.Time
	FinishedAt time.Time // zero until done
}

const sqlAccept = `
INSERT INTO memd.erasures (tenant_no, request_id, kind, app, user_ref, session_ref, state, requested_by, accepted_at, due_at)
VALUES (@tenant, @id, @kind, @app, @user, @session, 1, @by, @now, @due)
ON CONFLICT (tenant_no, request_id) DO NOTHING`

const sqlJobColumns = `
SELECT tenant_no, request_id, kind, app, user_ref, coalesce(session_ref, ''), state, accepted_at, finished_at
FROM memd.erasures `

const sqlReadJob = sqlJobColumns + `WHERE tenant_no = @tenant AND request_id = @id`

const sqlOpenJobs = sqlJobColumns + `WHERE state < 3 AND NOT request_id = ANY (@skip::uuid[]) ORDER BY accepted_at LIMIT @limit`

const sqlCountOpen = `
SELECT count(*), count(*) FILTER (WHERE due_at < @now) FROM memd.erasures WHERE state < 3`

// Accept persists a request and returns it, as a Job, once it is durable. A
// request id that was accepted before returns the job of then, if it asked for
// the same; otherwise memd.ErrRequestReused.
func Accept(ctx context.Context, db pg.DB, j Job, by uuid.UUID, now time.Time) (Job, error) {
	if j.ID == uuid.Nil {
		return Job{}, &memd.InvalidError{Field: "request_id", Problem: "is required"}
	}
	var session []byte
	if j.Kind == KindSession {
		session = j.Session[:]
	}
	_, err := db.Exec(ctx, sqlAccept, pg.Args{
		"tenant": j.Tenant, "id": j.ID, "kind": j.Kind, "app": j.App, "user": j.User[:], "session": session,
		"by": by, "now": now, "due": now.Add(DueWithin),
	})
	if err != nil {
		return Job{}, fmt.Errorf("accepting an erasure: %w", err)
	}
	have, err := Read(ctx, db, j.Tenant, j.ID)
	if err != nil {
		return Job{}, err
	}
	if have.Kind != j.Kind || have.App != j.App || have.User != j.User || have.Session != j.Session {
		return Job{}, memd.ErrRequestReused
	}
	return have, nil
}

// Read returns one erasure of a tenant, or memd.ErrNotFound.
func Read(ctx context.Context, db pg.DB, tenant memd.TenantNo, id uuid.UUID) (Job, error) {
	rows, err := db.Query(ctx, sqlReadJob, pg.Args{"tenant": tenant, "id": id})
	if err != nil {
		return Job{}, fmt.Errorf("reading an erasure: %w", err)
	}
	j, err := pgx.CollectExactlyOneRow(rows, scanJob)
	if errors.Is(err, pgx.ErrNoRows) {
		return Job{}, memd.ErrNotFound
	}
	if err != nil {
		return Job{}, fmt.Errorf("reading an erasure: %w", err)
	}
	return j, nil
}

// Open returns erasures that are not done, the oldest first, without those of
// skip: any number that cannot go on must not keep the others from being seen.
func Open(ctx context.Context, db pg.DB, skip []uuid.UUID, limit int) ([]Job, error) {
	if skip == nil {
		skip = []uuid.UUID{} // NULL would skip all.
	}
	rows, err := db.Query(ctx, sqlOpenJobs, pg.Args{"skip": skip, "limit": limit})
	if err != nil {
		return nil, fmt.Errorf("listing erasures: %w", err)
	}
	jobs, err := pgx.CollectRows(rows, scanJob)
	if err != nil {
		return nil, fmt.Errorf("listing erasures: %w", err)
	}
	return jobs, nil
}

// CountOpen returns how many erasures are not done, and how many of them are
// past their time.
func CountOpen(ctx context.Context, db pg.DB, now time.Time) (open, overdue int64, err error) {
	if err = db.QueryRow(ctx, sqlCountOpen, pg.Args{"now": now}).Scan(&open, &overdue); err != nil {
		return 0, 0, fmt.Errorf("counting erasures: %w", err)
	}
	return open, overdue, nil
}

func scanJob(row pgx.CollectableRow) (Job, error) {
	var j Job
	var user, session []byte
	var finished *time.Time
	err := row.Scan(&j.Tenant, &j.ID, &j.Kind, &j.App, &user, &session, &j.State, &j.AcceptedAt, &finished)
	if err != nil {
		return j, err
	}
	j.User = memd.Ref(user)
	if len(session) > 0 {
		j.Session = memd.Ref(session)
	}
	if finished != nil {
		j.FinishedAt = *finished
	}
	return j, nil
}
