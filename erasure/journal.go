package erasure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/export"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/tenants"
)

// notes is what a step's row remembers: counts, results of checks, and of a
// rotation which version it destroyed. Nothing of anybody's.
type notes struct {
	Before   Counts       `json:"before,omitempty"`
	After    Counts       `json:"after,omitempty"`
	Sessions int64        `json:"sessions,omitempty"`
	Deleted  int64        `json:"deleted,omitempty"`
	Dropped  int64        `json:"dropped,omitempty"` // of Deleted, what went with a partition
	Found    Counts       `json:"found,omitempty"`   // by the second sweep
	Rotation *rotated     `json:"rotation,omitempty"`
	Checks   []memd.Check `json:"checks,omitempty"`
	// Strangers had something although the directory did not know them.
	Strangers []tenants.Stranger `json:"strangers,omitempty"`
	// Exports were reached.
	Exports *export.Forgotten `json:"exports,omitempty"`
	// Compaction is the one that was asked for, and then how it went.
	Compaction *compacted `json:"compaction,omitempty"`
	// Control is what the verifier's probes found before.
	Control map[string]int64 `json:"control,omitempty"`
}

// rotated is the part of a rotation that the report tells.
type rotated struct {
	Epoch       int64     `json:"epoch"`
	OldVersion  string    `json:"old_version"`
	DestroyedAt time.Time `json:"destroyed_at"`
	DestroyDue  time.Time `json:"destroy_due"`
	TreeBefore  string    `json:"tree_before,omitempty"` // digests, in hexadecimal
	TreeAfter   string    `json:"tree_after,omitempty"`
}

const sqlHeld = `SELECT memd.held(@tenant, @kind, @user, @session)`

const sqlBeginStep = `
INSERT INTO memd.erasure_steps (tenant_no, request_id, step, started_at) VALUES (@tenant, @id, @step, @now)
ON CONFLICT DO NOTHING`

const sqlReadSteps = `
SELECT step, done, counts, started_at, finished_at FROM memd.erasure_steps
WHERE tenant_no = @tenant AND request_id = @id ORDER BY step`

const sqlNoteStep = `
UPDATE memd.erasure_steps SET counts = @notes, done = @done, finished_at = CASE WHEN @done THEN @now::timestamptz END
WHERE tenant_no = @tenant AND request_id = @id AND step = @step AND NOT done`

// Two statements, because what the second reads must be as new as the lock.
const sqlHoldJob = `
SELECT state FROM memd.erasures WHERE tenant_no = @tenant AND request_id = @id FOR UPDATE`

const sqlStepDone = `
SELECT coalesce(bool_or(done), false) FROM memd.erasure_steps
WHERE tenant_no = @tenant AND request_id = @id AND step = @step`

const sqlReopenStep = `
UPDATE memd.erasure_steps SET done = false, finished_at = NULL
WHERE tenant_no = @tenant AND request_id = @id AND step = @step`

const sqlDone = `
UPDATE memd.erasures SET state = 3, finished_at = @now, sweep_at = @sweep, tries = 0, failure = '' WHERE tenant_no = @tenant AND request_id = @id AND state < 3`

// What it remembered of whom it was about goes with it.
const sqlFinal = `
UPDATE memd.erasures SET state = 4, final_at = @now, sealed_user_id = NULL, sealed_session_id = NULL, sealed_probes = NULL,
  sealed_salt = NULL, tries = 0, failure = ''
WHERE tenant_no = @tenant AND request_id = @id AND state = 3`

const sqlInsertFallen = `
INSERT INTO memd.erasure_fallen (tenant_no, request_id, memory_id, owner_no, kind, sources)
SELECT @tenant, @id, f.memory_id, f.owner_no, f.kind, f.sources
FROM unnest(@ids::uuid[], @owners::bigint[], @kinds::smallint[], @sources::jsonb[]) AS f (memory_id, owner_no, kind, sources)
ON CONFLICT DO NOTHING`

// stepRow is a step as the journal has it.
type stepRow struct {
	Step     Step
	Done     bool
	Notes    notes
	Started  time.Time
	Finished *time.Time
}

func readSteps(ctx context.Context, db pg.DB, tenant memd.TenantNo, id uuid.UUID) (map[Step]stepRow, error) {
	rows, err := db.Query(ctx, sqlReadSteps, pg.Args{"tenant": tenant, "id": id})
	if err != nil {
		return nil, fmt.Errorf("reading the journal: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[stepRow])
	if err != nil {
		return nil, fmt.Errorf("reading the journal: %w", err)
	}
	out := make(map[Step]stepRow, len(list))
	for _, s := range list {
		out[s.Step] = s
	}
	return out, nil
}

// errHeld says that a legal hold keeps the erasure from going on.
var errHeld = errors.New("a legal hold is in force")

// beginStep begins a step, unless a hold is in force: a hold that was set
// before pauses the erasure here, one that is set later before the next step.
func beginStep(ctx context.Context, tx pg.DB, j Job, s Step, now time.Time) error {
	var held bool
	err := tx.QueryRow(ctx, sqlHeld, pg.Args{
		"tenant": j.Tenant, "kind": j.Kind, "user": refOrNull(j.User), "session": refOrNull(j.Session),
	}).Scan(&held)
	if err == nil && !held && j.Kind == KindMonth && j.State < StateDone {
		held, err = kept(ctx, tx, j, now)
	}
	if err == nil && held {
		return errHeld
	}
	if err == nil {
		_, err = tx.Exec(ctx, sqlBeginStep, pg.Args{"tenant": j.Tenant, "id": j.ID, "step": s, "now": now})
	}
	if err != nil {
		return fmt.Errorf("beginning a step: %w", err)
	}
	return nil
}

// errStepDone says that somebody else has done the step, or all of them.
var errStepDone = errors.New("step is done")

// hold keeps everybody else who runs the job from doing the same step until the
// transaction ends. It returns errStepDone when there is nothing left to do: a
// runner that was stopped for long enough to lose its lock meets a journal that
// has gone on, and perhaps a user who has returned.
func hold(ctx context.Context, tx pg.DB, j Job, s Step) error {
	var state State
	var done bool
	err := tx.QueryRow(ctx, sqlHoldJob, pg.Args{"tenant": j.Tenant, "id": j.ID}).Scan(&state)
	over := state == StateFinal || state == StateDone && !j.Kind.late(s)
	if err == nil && !over {
		err = tx.QueryRow(ctx, sqlStepDone, pg.Args{"tenant": j.Tenant, "id": j.ID, "step": s}).Scan(&done)
	}
	switch {
	case err != nil:
		return fmt.Errorf("holding a step: %w", err)
	case over || done:
		return errStepDone
	}
	return nil
}

// noteStep writes a step's notes; done ends it. The notes of a step that is
// done stay.
func noteStep(ctx context.Context, db pg.DB, j Job, s Step, n notes, done bool, now time.Time) error {
	_, err := db.Exec(ctx, sqlNoteStep, pg.Args{
		"tenant": j.Tenant, "id": j.ID, "step": s, "notes": n, "done": done, "now": now,
	})
	if err != nil {
		return fmt.Errorf("noting a step: %w", err)
	}
	return nil
}

// reopenStep has a step run again.
func reopenStep(ctx context.Context, db pg.DB, j Job, s Step) error {
	_, err := db.Exec(ctx, sqlReopenStep, pg.Args{"tenant": j.Tenant, "id": j.ID, "step": s})
	if err != nil {
		return fmt.Errorf("reopening a step: %w", err)
	}
	return nil
}

func insertFallen(ctx context.Context, db pg.DB, j Job, fallen []memory.Fallen) error {
	if len(fallen) == 0 {
		return nil
	}
	ids, owners := make([]uuid.UUID, len(fallen)), make([]memd.Number, len(fallen))
	kinds, sources := make([]int16, len(fallen)), make([]string, len(fallen))
	for i, f := range fallen {
		b, err := json.Marshal(f.Sources)
		if err != nil {
			return fmt.Errorf("encoding surviving sources: %w", err)
		}
		ids[i], owners[i], kinds[i], sources[i] = f.ID, f.Owner, int16(f.Kind), string(b)
	}
	_, err := db.Exec(ctx, sqlInsertFallen, pg.Args{
		"tenant": j.Tenant, "id": j.ID, "ids": ids, "owners": owners, "kinds": kinds, "sources": sources,
	})
	if err != nil {
		return fmt.Errorf("recording fallen rows: %w", err)
	}
	return nil
}
