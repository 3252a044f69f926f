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
	// KindUser is everything of a user.
	KindUser Kind = 1
	// KindSession is a session and every row that memory drew from it.
	KindSession Kind = 2
	// KindContent is a session's own content; what memory drew from it stays.
	KindContent Kind = 3
	// KindTenant is everything of everybody, and the tenant's last key.
	KindTenant Kind = 4
	// KindMonth is everything of everybody's that is of one month and class.
	KindMonth Kind = 5
)

var kindNames = [...]string{"unknown", "user", "session", "content", "tenant", "month"}

// String returns the kind's name.
func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("Kind(%d)", int16(k))
	}
	return kindNames[k]
}

// State is how far an erasure got.
type State int16

// States, as stored; append only.
const (
	StateUnknown State = 0
	// StateAccepted: it will be done.
	StateAccepted State = 1
	// StateRunning: under way, or waiting between two steps.
	StateRunning State = 2
	// StateDone: gone, counted to zero, verified, and the keys destroyed (of
	// KindContent: asked to be). The second sweep is to come.
	StateDone State = 3
	// StateFinal: swept and verified a second time.
	StateFinal State = 4
)

var stateNames = [...]string{"unknown", "accepted", "running", "done", "final"}

// String returns the state's name.
func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return fmt.Sprintf("State(%d)", int16(s))
	}
	return stateNames[s]
}

// DueWithin is the time that an erasure has: one month from the request (GDPR,
// Article 12(3)), counted as 30 days to be on the safe side.
const DueWithin = 30 * 24 * time.Hour

// Job is one accepted erasure. It names nobody: refs are keyed digests.
type Job struct {
	Tenant     memd.TenantNo
	ID         uuid.UUID
	No         memd.Number // of its leaf in the key tree
	Kind       Kind
	App        string
	User       memd.Ref // zero for KindTenant and KindMonth
	Session    memd.Ref // zero but for KindSession and KindContent
	Class      memd.Class
	Month      memd.Month // zero but for KindMonth
	State      State
	AcceptedAt time.Time
	DueAt      time.Time
	SweepAt    time.Time // zero until done
	FinishedAt time.Time // when it was done; zero until then
	FinalAt    time.Time // zero until final
	// Tries counts how often it stopped since it last got on; Failure is the
	// code of the last reason.
	Tries   int
	Failure string
	// Held says that a legal hold, or of a month the tenant's policy, keeps it from
	// going on, now.
	Held bool
}

const sqlNextJob = `SELECT memd.next_job_no(@tenant)`

const sqlAccept = `
INSERT INTO memd.erasures (tenant_no, request_id, job_no, kind, app, user_ref, session_ref, class, month,
  sealed_user_id, sealed_session_id, commitment, sealed_salt, requested_by, accepted_at, due_at)
VALUES (@tenant, @id, @no, @kind, @app, @user, @session, @class, @month, @sealed_user, @sealed_session, @commitment, @salt, @by, @now, @due)
ON CONFLICT (tenant_no, request_id) DO NOTHING`

const sqlJobColumns = `
SELECT tenant_no, request_id, job_no, kind, app, coalesce(user_ref, ''), coalesce(session_ref, ''),
  coalesce(class, 0), coalesce(month, 0), state, accepted_at, due_at, sweep_at, finished_at, final_at, tries, failure,
  CASE WHEN kind = 5 THEN state < 3 AND memd.month_refusal(tenant_no, class, month, request_id, now()) IS NOT NULL
    ELSE state < 4 AND memd.held(tenant_no, kind, user_ref, session_ref) END
FROM memd.erasures `

const sqlReadJob = sqlJobColumns + `WHERE tenant_no = @tenant AND request_id = @id`

const sqlReadJobByNo = sqlJobColumns + `WHERE tenant_no = @tenant AND job_no = @no`

// remembering is what an accepted request remembers of whom it is about, sealed under
// the job's leaf, and what its receipts commit to.
type remembering struct {
	userID, sessionID, salt []byte // sealed
	commitment              []byte
}

// seals makes it. Nil remembers nothing.
type seals func(no memd.Number) (remembering, error)

// Accept persists a request and returns it, as a Job, once it is durable. A
// request id that was accepted before returns the job of then, if it asked for
// the same; otherwise memd.ErrRequestReused. What it forbids holds from its
// commit on, and its job is in the queue.
func Accept(ctx context.Context, db pg.DB, j Job, by uuid.UUID, now time.Time) (Job, error) {
	return accept(ctx, db, j, by, now, nil)
}

func accept(ctx context.Context, db pg.DB, j Job, by uuid.UUID, now time.Time, seal seals) (Job, error) {
	if j.ID == uuid.Nil {
		return Job{}, &memd.InvalidError{Field: "request_id", Problem: "is required"}
	}
	have, err := Read(ctx, db, j.Tenant, j.ID)
	if errors.Is(err, memd.ErrNotFound) {
		if err = insert(ctx, db, j, by, now, seal); err == nil {
			have, err = Read(ctx, db, j.Tenant, j.ID)
		}
	}
	if err != nil {
		return Job{}, err
	}
	if have.Kind != j.Kind || have.App != j.App || have.User != j.User || have.Session != j.Session ||
		have.Class != j.Class || have.Month != j.Month {
		return Job{}, memd.ErrRequestReused
	}
	return have, nil
}

func insert(ctx context.Context, db pg.DB, j Job, by uuid.UUID, now time.Time, seal seals) error {
	var no memd.Number
	if err := db.QueryRow(ctx, sqlNextJob, pg.Args{"tenant": j.Tenant}).Scan(&no); err != nil {
		return fmt.Errorf("numbering an erasure: %w", err)
	}
	var m remembering
	if seal != nil {
		var err error
		if m, err = seal(no); err != nil {
			return err
		}
	}
	var class, month *int32 // NULL unless it is one
	if j.Kind == KindMonth {
		class, month = new(int32(j.Class)), new(int32(j.Month))
	}
	_, err := db.Exec(ctx, sqlAccept, pg.Args{
		"tenant": j.Tenant, "id": j.ID, "no": no, "kind": j.Kind, "app": j.App, "user": refOrNull(j.User), "session": refOrNull(j.Session),
		"class": class, "month": month,
		"sealed_user": m.userID, "sealed_session": m.sessionID, "commitment": m.commitment, "salt": m.salt, "by": by, "now": now, "due": now.Add(DueWithin),
	})
	if err != nil {
		return fmt.Errorf("accepting an erasure: %w", err)
	}
	return nil
}

func refOrNull(r memd.Ref) []byte {
	if r == (memd.Ref{}) {
		return nil
	}
	return r[:]
}

// Read returns one erasure of a tenant, or memd.ErrNotFound.
func Read(ctx context.Context, db pg.DB, tenant memd.TenantNo, id uuid.UUID) (Job, error) {
	return readJob(ctx, db, sqlReadJob, pg.Args{"tenant": tenant, "id": id})
}

const sqlAnother = `
SELECT EXISTS (SELECT FROM memd.erasures e
  WHERE e.tenant_no = @tenant AND e.request_id <> @id AND e.user_ref = @user AND e.accepted_at >= @accepted
    AND (e.kind = 1 OR @kind <> 1 AND e.session_ref = @session))`

// Another reports whether somebody has asked since to forget the same, or more.
func Another(ctx context.Context, db pg.DB, j Job) (bool, error) {
	var another bool
	err := db.QueryRow(ctx, sqlAnother, pg.Args{
		"tenant": j.Tenant, "id": j.ID, "user": refOrNull(j.User), "session": refOrNull(j.Session), "kind": j.Kind, "accepted": j.AcceptedAt,
	}).Scan(&another)
	if err != nil {
		return false, fmt.Errorf("looking for another erasure: %w", err)
	}
	return another, nil
}

func readByNo(ctx context.Context, db pg.DB, tenant memd.TenantNo, no memd.Number) (Job, error) {
	return readJob(ctx, db, sqlReadJobByNo, pg.Args{"tenant": tenant, "no": no})
}

func readJob(ctx context.Context, db pg.DB, sql string, args pg.Args) (Job, error) {
	rows, err := db.Query(ctx, sql, args)
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

func scanJob(row pgx.CollectableRow) (Job, error) {
	var j Job
	var user, session []byte
	var sweep, finished, final *time.Time
	err := row.Scan(&j.Tenant, &j.ID, &j.No, &j.Kind, &j.App, &user, &session, &j.Class, &j.Month, &j.State,
		&j.AcceptedAt, &j.DueAt, &sweep, &finished, &final, &j.Tries, &j.Failure, &j.Held)
	if err != nil {
		return j, err
	}
	if len(user) > 0 {
		j.User = memd.Ref(user)
	}
	if len(session) > 0 {
		j.Session = memd.Ref(session)
	}
	j.SweepAt, j.FinishedAt, j.FinalAt = timeOf(sweep), timeOf(finished), timeOf(final)
	return j, nil
}

func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
