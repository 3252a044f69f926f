package compact

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Mode is how thoroughly a compaction cleans.
type Mode int16

// Modes, as stored; append only.
const (
	ModeUnknown Mode = 0
	// Vacuum frees dead rows and blocks nobody; some of their bytes stay in the
	// pages until they are written over.
	Vacuum Mode = 1
	// Rewrite makes the files of tables with sealed content anew, and locks each
	// meanwhile. Tables without are vacuumed.
	Rewrite Mode = 2
)

var modeNames = [...]string{"unknown", "vacuum", "rewrite"}

// String returns the mode's name.
func (m Mode) String() string { return nameOf("Mode", modeNames[:], int(m)) }

// Cause is who asked.
type Cause int16

// Causes, as stored, in the order in which they count; append only.
const (
	CauseUnknown  Cause = 0
	CauseSchedule Cause = 1
	CauseErasure  Cause = 2
	// CauseOperator does not wait for the window.
	CauseOperator Cause = 3
)

var causeNames = [...]string{"unknown", "schedule", "erasure", "operator"}

// String returns the cause's name.
func (c Cause) String() string { return nameOf("Cause", causeNames[:], int(c)) }

// State is how far a compaction got.
type State int16

// States, as stored; append only.
const (
	StateUnknown State = 0
	StateAsked   State = 1
	StateRunning State = 2
	// StateDone: every table was compacted.
	StateDone State = 3
	// StateFailed: some were not; Failure is the first one's.
	StateFailed State = 4
)

var stateNames = [...]string{"unknown", "asked", "running", "done", "failed"}

// String returns the state's name.
func (s State) String() string { return nameOf("State", stateNames[:], int(s)) }

// TableState is how far one table of a compaction got.
type TableState int16

// States of a table, as stored; append only.
const (
	TableUnknown TableState = 0
	TableWaiting TableState = 1
	TableRunning TableState = 2
	TableDone    TableState = 3
	// TableGone: it was dropped before its turn, files and all.
	TableGone   TableState = 4
	TableFailed TableState = 5
)

var tableNames = [...]string{"unknown", "waiting", "running", "done", "gone", "failed"}

// String returns the state's name.
func (s TableState) String() string { return nameOf("TableState", tableNames[:], int(s)) }

func nameOf(kind string, names []string, i int) string {
	if i < 0 || i >= len(names) {
		return fmt.Sprintf("%s(%d)", kind, i)
	}
	return names[i]
}

// Compaction is one, as the journal has it.
type Compaction struct {
	No          int64
	Mode        Mode
	Cause       Cause
	RequestedAt time.Time
	State       State
	StartedAt   time.Time // zero before
	FinishedAt  time.Time // zero before
	// Tries counts how often somebody took it up.
	Tries   int
	Failure Failure
	// Tables are empty before it was begun.
	Tables []Progress
	// WALEnd is where the write-ahead log was when it ended, or "".
	WALEnd string
}

// Progress is how far one table of a compaction got.
type Progress struct {
	Name string
	// Content says that it has sealed values: only those are rewritten.
	Content  bool
	State    TableState
	Tries    int
	Failure  Failure
	SQLState string
	// BytesBefore and BytesAfter count the table with TOAST and indexes.
	BytesBefore, BytesAfter int64
	// Announced is how long a rewrite was expected to lock the table, and Blocked
	// how long it held others up at most, its own wait for the lock included.
	Announced, Blocked time.Duration
	// Phase, Blocks and BlocksTotal are PostgreSQL's own while it runs.
	Phase               string
	Blocks, BlocksTotal int64
}

// Blocked returns the longest time for which a table was locked.
func (c Compaction) Blocked() (longest time.Duration) {
	for _, t := range c.Tables {
		longest = max(longest, t.Blocked)
	}
	return longest
}

// Bytes returns the size of all tables before and after.
func (c Compaction) Bytes() (before, after int64) {
	for _, t := range c.Tables {
		before += t.BytesBefore
		after += t.BytesAfter
	}
	return before, after
}

// Several who ask while none has begun are served by one.
const sqlAsk = `
INSERT INTO memd.compactions AS c (mode, cause, requested_by, requested_at) VALUES (@mode, @cause, @by, @now)
ON CONFLICT (mode) WHERE state = 1 DO UPDATE SET cause = greatest(c.cause, excluded.cause)
RETURNING compaction_no`

// Ask asks for a compaction that begins after what the caller has committed, and
// returns its number: a new one, or one of the mode that is waiting. It is safe to
// repeat.
func Ask(ctx context.Context, db pg.DB, m Mode, cause Cause, by uuid.UUID, now time.Time) (no int64, err error) {
	var who *uuid.UUID
	if by != uuid.Nil {
		who = &by
	}
	if err := db.QueryRow(ctx, sqlAsk, pg.Args{"mode": m, "cause": cause, "by": who, "now": now}).Scan(&no); err != nil {
		return 0, fmt.Errorf("asking for a compaction: %w", err)
	}
	return no, nil
}

const sqlColumns = `
SELECT compaction_no, mode, cause, requested_at, state, started_at, finished_at, tries, failure, coalesce(wal_end::text, '')
FROM memd.compactions `

const (
	sqlRead = sqlColumns + `WHERE compaction_no = @no`
	sqlLast = sqlColumns + `ORDER BY compaction_no DESC LIMIT @limit`
)

const sqlReadTables = `
SELECT name, content, state, tries, failure, sqlstate, bytes_before, bytes_after, announced_ms, blocked_ms, phase, blocks, blocks_total
FROM memd.compaction_tables WHERE compaction_no = @no ORDER BY content DESC, bytes_before, name`

// Read returns a compaction with its tables, or memd.ErrNotFound.
func Read(ctx context.Context, db pg.DB, no int64) (Compaction, error) {
	found, err := list(ctx, db, sqlRead, pg.Args{"no": no})
	if err == nil && len(found) == 0 {
		err = memd.ErrNotFound
	}
	if err != nil {
		return Compaction{}, err
	}
	c := found[0]
	c.Tables, err = readTables(ctx, db, no)
	return c, err
}

// Last returns the newest compactions, the newest first, without their tables.
func Last(ctx context.Context, db pg.DB, limit int) ([]Compaction, error) {
	return list(ctx, db, sqlLast, pg.Args{"limit": limit})
}

func list(ctx context.Context, db pg.DB, sql string, args pg.Args) ([]Compaction, error) {
	rows, err := db.Query(ctx, sql, args)
	if err != nil {
		return nil, fmt.Errorf("reading compactions: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Compaction, err error) {
		var started, finished *time.Time
		err = row.Scan(&c.No, &c.Mode, &c.Cause, &c.RequestedAt, &c.State, &started, &finished, &c.Tries, &c.Failure, &c.WALEnd)
		c.StartedAt, c.FinishedAt = timeOf(started), timeOf(finished)
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading compactions: %w", err)
	}
	return out, nil
}

func readTables(ctx context.Context, db pg.DB, no int64) ([]Progress, error) {
	rows, err := db.Query(ctx, sqlReadTables, pg.Args{"no": no})
	if err != nil {
		return nil, fmt.Errorf("reading a compaction: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Progress, err error) {
		var announced, blocked int64
		err = row.Scan(&p.Name, &p.Content, &p.State, &p.Tries, &p.Failure, &p.SQLState, &p.BytesBefore, &p.BytesAfter,
			&announced, &blocked, &p.Phase, &p.Blocks, &p.BlocksTotal)
		p.Announced, p.Blocked = time.Duration(announced)*time.Millisecond, time.Duration(blocked)*time.Millisecond
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading a compaction: %w", err)
	}
	return out, nil
}

func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
