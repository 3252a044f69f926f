package compact

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/pg"
)

const (
	// seenInterval is how often a worker says that it is there.
	seenInterval = 30 * time.Second
	// keepJournal is for how long a compaction that has ended is remembered.
	keepJournal = 90 * 24 * time.Hour
)

const sqlSeen = `
UPDATE memd.compaction_settings SET seen_at = @now, begun_at = coalesce(begun_at, @now) WHERE seen_at IS NULL OR seen_at < @before`

// One that is under way goes first, then what an operator asked for.
const sqlNext = `
SELECT c.compaction_no FROM memd.compactions c
WHERE c.state < 3 AND (c.cause = 3 OR @open) AND (c.state = 2 OR c.cause <> 2 OR NOT EXISTS (
  SELECT FROM memd.compactions e WHERE e.cause = 2 AND e.mode = c.mode AND e.started_at > @since))
ORDER BY c.state DESC, c.cause DESC, c.mode DESC, c.compaction_no LIMIT 1`

const sqlDue = `
SELECT coalesce(greatest((SELECT max(c.requested_at) FROM memd.compactions c WHERE c.mode >= s.mode), s.begun_at) <= @before, false)
FROM memd.compaction_settings s`

// next returns the compaction that is to be worked on, or none. What the schedule
// says is asked for here.
func (r *Runner) next(ctx context.Context) (c Compaction, err error) {
	now := r.c.Clock.Now()
	err = r.c.Pool.With(ctx, func(db pg.DB) error {
		if _, err := db.Exec(ctx, sqlSeen, pg.Args{"now": now, "before": now.Add(-seenInterval)}); err != nil {
			return fmt.Errorf("saying that this worker compacts: %w", err)
		}
		s, err := ReadSettings(ctx, db)
		if err != nil || s.Paused {
			return err
		}
		open, _ := s.Open(now)
		if open && s.Every > 0 {
			var due bool
			if err := db.QueryRow(ctx, sqlDue, pg.Args{"before": now.Add(-s.Every)}).Scan(&due); err != nil {
				return fmt.Errorf("reading when a compaction is due: %w", err)
			}
			if due {
				if _, err := Ask(ctx, db, s.Mode, CauseSchedule, uuid.Nil, now); err != nil {
					return err
				}
			}
		}
		err = db.QueryRow(ctx, sqlNext, pg.Args{"open": open, "since": now.Add(-r.c.ErasureInterval)}).Scan(&c.No)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		} else if err != nil {
			return fmt.Errorf("looking for a compaction: %w", err)
		}
		c, err = Read(ctx, db, c.No)
		return err
	})
	return c, err
}

const sqlBegin = `
UPDATE memd.compactions SET state = 2, tries = tries + 1, started_at = coalesce(started_at, @now) WHERE compaction_no = @no AND state < 3`

// A statement of its own: who asked before the compaction had begun has committed
// what is to go before this looks.
const sqlHorizon = `
UPDATE memd.compactions SET horizon = coalesce(horizon, pg_snapshot_xmax(pg_current_snapshot())) WHERE compaction_no = @no RETURNING horizon::text`

const sqlPlan = `
INSERT INTO memd.compaction_tables (compaction_no, name, content, bytes_before)
SELECT @no, t.name, t.content, t.bytes FROM unnest(@names::text[], @contents::boolean[], @bytes::bigint[]) AS t (name, content, bytes)
WHERE NOT EXISTS (SELECT FROM memd.compaction_tables h WHERE h.compaction_no = @no) ON CONFLICT DO NOTHING`

const sqlLeft = `
UPDATE memd.compaction_tables SET state = CASE WHEN name = ANY (@names) THEN 1 ELSE 4 END, phase = ''
WHERE compaction_no = @no AND state < 3 RETURNING name, state`

// begin notes that a compaction is under way and returns its horizon and the tables
// that are not done.
func (r *Runner) begin(ctx context.Context, c Compaction) (horizon string, left []Table, err error) {
	err = r.c.Pool.With(ctx, func(db pg.DB) error {
		if _, err := db.Exec(ctx, sqlBegin, pg.Args{"no": c.No, "now": r.c.Clock.Now()}); err != nil {
			return fmt.Errorf("beginning a compaction: %w", err)
		}
		if err := db.QueryRow(ctx, sqlHorizon, pg.Args{"no": c.No}).Scan(&horizon); err != nil {
			return fmt.Errorf("taking the horizon of a compaction: %w", err)
		}
		all, err := Tables(ctx, db)
		if err != nil {
			return err
		}
		names, contents, bytes := make([]string, len(all)), make([]bool, len(all)), make([]int64, len(all))
		for i, t := range all {
			names[i], contents[i], bytes[i] = t.Name, t.Content, t.Bytes
		}
		if _, err := db.Exec(ctx, sqlPlan, pg.Args{"no": c.No, "names": names, "contents": contents, "bytes": bytes}); err != nil {
			return fmt.Errorf("planning a compaction: %w", err)
		}
		rows, err := db.Query(ctx, sqlLeft, pg.Args{"no": c.No, "names": names})
		if err != nil {
			return fmt.Errorf("reading what is left of a compaction: %w", err)
		}
		waiting := map[string]bool{}
		var name string
		var state TableState
		_, err = pgx.ForEachRow(rows, []any{&name, &state}, func() error { waiting[name] = state == TableWaiting; return nil })
		if err != nil {
			return fmt.Errorf("reading what is left of a compaction: %w", err)
		}
		for _, t := range all {
			if waiting[t.Name] {
				left = append(left, t)
			}
		}
		return nil
	})
	return horizon, left, err
}

const sqlNoteRunning = `
UPDATE memd.compaction_tables SET state = 2, tries = tries + 1, started_at = @now, bytes_before = @bytes, announced_ms = @announced
WHERE compaction_no = @no AND name = @name AND state < 3 RETURNING tries`

// noteRunning notes that a table is being compacted, with what is announced of it,
// and returns how often it was begun; 0 if it is done.
func (r *Runner) noteRunning(ctx context.Context, c Compaction, t Table) (tries int, err error) {
	var announced time.Duration
	if c.Mode == Rewrite && t.Content {
		announced = t.Estimate
	}
	err = r.c.Pool.With(ctx, func(db pg.DB) error {
		return db.QueryRow(ctx, sqlNoteRunning, pg.Args{
			"no": c.No, "name": t.Name, "now": r.c.Clock.Now(), "bytes": t.Bytes, "announced": announced.Milliseconds(),
		}).Scan(&tries)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return tries, wrap("noting a table", err)
}

const sqlNoteWaiting = `
UPDATE memd.compaction_tables SET state = 1, phase = '' WHERE compaction_no = @no AND name = @name AND state = 2`

// noteWaiting notes that a table was broken off.
func (r *Runner) noteWaiting(ctx context.Context, c Compaction, t Table) error {
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	return wrap("noting a table", r.c.Pool.With(ctx, func(db pg.DB) error {
		_, err := db.Exec(ctx, sqlNoteWaiting, pg.Args{"no": c.No, "name": t.Name})
		return err
	}))
}

// noteTimeout bounds what is still noted when the worker ends.
const noteTimeout = 5 * time.Second

const sqlNoteTable = `
UPDATE memd.compaction_tables SET state = @state, failure = @failure, sqlstate = @sqlstate, bytes_after = @after, blocked_ms = @blocked,
  finished_at = @now, phase = '', blocks = blocks_total
WHERE compaction_no = @no AND name = @name AND state = 2`

// noteTable notes how a table went, in one statement: it counts whole or not at all.
func (r *Runner) noteTable(ctx context.Context, c Compaction, t Table, blocked time.Duration, failed *TableError, gone bool) error {
	args := pg.Args{
		"no": c.No, "name": t.Name, "now": r.c.Clock.Now(), "state": TableDone, "failure": Failure(""), "sqlstate": "", "after": int64(0),
		"blocked": blocked.Milliseconds(),
	}
	switch {
	case failed != nil:
		args["state"], args["failure"], args["sqlstate"] = TableFailed, failed.Failure, failed.SQLState
	case gone:
		args["state"] = TableGone
	}
	return wrap("noting a table", r.c.Pool.With(ctx, func(db pg.DB) error {
		after, err := measure(ctx, db, t.OID)
		if err != nil {
			return err
		}
		args["after"] = after
		_, err = db.Exec(ctx, sqlNoteTable, args)
		return err
	}))
}

const sqlEnd = `
UPDATE memd.compactions c SET finished_at = @now, wal_end = pg_current_wal_lsn(), failure = coalesce(f.failure, ''),
  state = CASE WHEN f.failure IS NULL THEN 3 ELSE 4 END
FROM (SELECT (SELECT t.failure FROM memd.compaction_tables t WHERE t.compaction_no = @no AND t.state = 5
              ORDER BY t.content DESC, t.name LIMIT 1) AS failure) AS f
WHERE c.compaction_no = @no AND c.state = 2
  AND NOT EXISTS (SELECT FROM memd.compaction_tables t WHERE t.compaction_no = @no AND t.state < 3)
RETURNING c.failure`

const sqlPrune = `DELETE FROM memd.compactions WHERE state >= 3 AND finished_at < @before`

// end notes that a compaction is over.
func (r *Runner) end(ctx context.Context, c Compaction, took time.Duration) error {
	now := r.c.Clock.Now()
	var done Compaction
	err := r.c.Pool.With(ctx, func(db pg.DB) error {
		var f Failure
		if err := db.QueryRow(ctx, sqlEnd, pg.Args{"no": c.No, "now": now}).Scan(&f); err != nil {
			return err
		}
		if _, err := db.Exec(ctx, sqlPrune, pg.Args{"before": now.Add(-keepJournal)}); err != nil {
			return err
		}
		var err error
		done, err = Read(ctx, db, c.No)
		return err
	})
	if err != nil {
		return wrap("ending a compaction", err)
	}
	before, after := done.Bytes()
	r.c.Logger.InfoContext(ctx, "compaction ended", "compaction", c.No, "mode", c.Mode.String(), "state", done.State.String(),
		"failure", string(done.Failure), "took", took, "locks_longest", done.Blocked(), "bytes_before", before, "bytes_after", after)
	if r.c.Metrics.Ended != nil {
		r.c.Metrics.Ended(c.Mode, done.Failure, took, done.Blocked())
	}
	return nil
}

func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}
