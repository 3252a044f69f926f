package sketches

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Bounds of what the database keeps.
const (
	// MaxTables is how many scopes have sketches at once.
	MaxTables = 200
	// Unwanted is how long sketches stay that no search has used, and Settled how long
	// at least, where others wait for their place.
	Unwanted = 7 * 24 * time.Hour
	Settled  = time.Hour
)

// State says how far the sketches of a scope are. As stored; append only.
type State int16

const (
	StateUnknown State = iota
	StateAsked
	StateBuilding
	StateInUse
)

// Entry is a scope in the directory.
type Entry struct {
	Tenant    memd.TenantNo
	Owner     memd.Number
	Ref       memd.Ref // zero if nobody is known by the number any more
	Dimension int
	State     State
	Table     Table // unless asked
	Wanted    time.Time
	Built     time.Time
	// Allowed says that the tenant's policy and state allow sketches.
	Allowed bool
}

// Sketch is the bits of a row's code.
type Sketch struct {
	ID   uuid.UUID
	Bits []byte
}

const sqlDirectory = `
SELECT s.tenant_no, s.owner_no,
  (SELECT l.user_ref FROM memd.live_subjects l WHERE l.tenant_no = s.tenant_no AND l.subject_no = s.owner_no), s.dimension, s.state, coalesce(s.sketch_no, 0),
  s.since, s.rows, s.wanted_at, s.built_at, EXISTS (SELECT FROM memd.sketched_tenants t WHERE t.tenant_no = s.tenant_no)
FROM memd.sketches s ORDER BY s.wanted_at DESC, s.tenant_no, s.owner_no`

// Directory lists all scopes that asked for sketches, whoever was searched last
// first. db is the worker's, as everything here that changes nothing.
func Directory(ctx context.Context, db pg.DB) ([]Entry, error) {
	rows, err := db.Query(ctx, sqlDirectory)
	if err != nil {
		return nil, fmt.Errorf("listing sketches: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Entry, err error) {
		var ref []byte
		var built *time.Time
		err = row.Scan(&e.Tenant, &e.Owner, &ref, &e.Dimension, &e.State, &e.Table.No, &e.Table.Since, &e.Table.Rows, &e.Wanted, &built, &e.Allowed)
		e.Table.Owner = e.Owner
		copy(e.Ref[:], ref)
		if built != nil {
			e.Built = *built
		}
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("listing sketches: %w", err)
	}
	return out, nil
}

const sqlCreate = `SELECT coalesce(memd.create_sketches(@tenant, @owner, @bits), 0)`

// Create makes an empty table for a scope that asked; ok is false if it asks no more.
// db is of memd_maintain, as with everything that changes sketches, and commits.
func Create(ctx context.Context, db pg.DB, e Entry, bits int) (t Table, ok bool, err error) {
	t.Owner = e.Owner
	if err := db.QueryRow(ctx, sqlCreate, pg.Args{"tenant": e.Tenant, "owner": e.Owner, "bits": bits}).Scan(&t.No); err != nil {
		return t, false, fmt.Errorf("creating sketches: %w", err)
	}
	return t, t.No != 0, nil
}

// Copy adds rows to a table. It returns ErrGone when the table is gone.
func Copy(ctx context.Context, db Copier, t Table, rows []Sketch) error {
	source := pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) { return []any{rows[i].ID, bitsOf(rows[i].Bits)}, nil })
	_, err := db.CopyFrom(ctx, pgx.Identifier{"memd_sketches", "s" + strconv.FormatInt(t.No, 10)}, []string{"memory_id", "sketch"}, source)
	return gone("writing sketches", err)
}

// Copier is a connection or a transaction.
type Copier interface {
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error)
}

// The index is built on one core, in as much memory as its graph takes, or a bit more
// slowly in less: the other cores are for searches, and shared memory, which several
// would need, is scarce in containers.
const (
	sqlIndexSettings = `
SELECT set_config('maintenance_work_mem', @memory, true), set_config('max_parallel_maintenance_workers', '0', true),
  set_config('statement_timeout', '0', true)`
	sqlIndex = `SELECT memd.index_sketches(@no)`
)

// Bounds of the memory in which an index is built, and about what a row of the graph
// takes there beside its bits.
const (
	leastIndexMemory = 64 << 20
	mostIndexMemory  = 1 << 30
	graphBytes       = 450
)

// Index builds the indexes of a table. tx takes as long as that.
func Index(ctx context.Context, tx pgx.Tx, t Table, rows int64, bits int) error {
	memory := min(max(rows*int64(graphBytes+bits/8), leastIndexMemory), mostIndexMemory)
	if _, err := tx.Exec(ctx, sqlIndexSettings, pg.Args{"memory": strconv.FormatInt(memory>>10, 10) + "kB"}); err != nil {
		return fmt.Errorf("preparing to index sketches: %w", err)
	}
	_, err := tx.Exec(ctx, sqlIndex, pg.Args{"no": t.No})
	return gone("indexing sketches", err)
}

const sqlPublish = `
UPDATE memd.sketches SET state = 3, since = @since, rows = @rows, built_at = @now
WHERE tenant_no = @tenant AND owner_no = @owner AND sketch_no = @no AND state = 2`

// Publish says that a table is in use from now on: it has every row that was
// committed by a transaction before since. ok is false if somebody was forgotten
// meanwhile; the table is not used then, and dropped by the next Drop.
func Publish(ctx context.Context, db pg.DB, e Entry, t Table, now time.Time) (ok bool, err error) {
	tag, err := db.Exec(ctx, sqlPublish, pg.Args{
		"tenant": e.Tenant, "owner": e.Owner, "no": t.No, "since": t.Since, "rows": t.Rows, "now": now,
	})
	if err != nil {
		return false, fmt.Errorf("putting sketches to use: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

const sqlAdvance = `
UPDATE memd.sketches SET since = @since, rows = rows + @more, built_at = @now
WHERE tenant_no = @tenant AND owner_no = @owner AND sketch_no = @no AND state = 3 AND since = @from`

// Advance brings a table in use up to a later transaction: the rows of the ids have
// changed or gone, and what there is of them now is added. tx commits it, unless ok is
// false: then somebody was forgotten meanwhile.
func Advance(ctx context.Context, tx pgx.Tx, e Entry, since int64, changed []uuid.UUID, rows []Sketch, now time.Time) (ok bool, err error) {
	tag, err := tx.Exec(ctx, `DELETE FROM `+name(e.Table.No)+` WHERE memory_id = ANY ($1)`, changed)
	if err = gone("replacing sketches", err); err != nil {
		return false, err
	}
	if err := Copy(ctx, tx, e.Table, rows); err != nil {
		return false, err
	}
	more := int64(len(rows)) - tag.RowsAffected()
	tag, err = tx.Exec(ctx, sqlAdvance, pg.Args{
		"tenant": e.Tenant, "owner": e.Owner, "no": e.Table.No, "since": since, "from": e.Table.Since, "more": more, "now": now,
	})
	if err != nil {
		return false, fmt.Errorf("replacing sketches: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

const (
	sqlForsake = `DELETE FROM memd.sketches WHERE tenant_no = @tenant AND owner_no = @owner`
	sqlAgain   = `UPDATE memd.sketches SET state = 1 WHERE tenant_no = @tenant AND owner_no = @owner AND sketch_no = @no AND state = 3`
	sqlRestart = `UPDATE memd.sketches SET state = 1 WHERE state = 2`
	sqlDrop    = `SELECT memd.drop_sketches()`
)

// Forsake takes a scope out of the directory. Its table goes with the next Drop.
func Forsake(ctx context.Context, db pg.DB, e Entry) error {
	if _, err := db.Exec(ctx, sqlForsake, pg.Args{"tenant": e.Tenant, "owner": e.Owner}); err != nil {
		return fmt.Errorf("forsaking sketches: %w", err)
	}
	return nil
}

// Again takes sketches out of use, to be built anew.
func Again(ctx context.Context, db pg.DB, e Entry) error {
	if _, err := db.Exec(ctx, sqlAgain, pg.Args{"tenant": e.Tenant, "owner": e.Owner, "no": e.Table.No}); err != nil {
		return fmt.Errorf("taking sketches out of use: %w", err)
	}
	return nil
}

// Restart has everything begin again that somebody had begun to build. Only who holds
// the lock of the builders may call it.
func Restart(ctx context.Context, db pg.DB) error {
	if _, err := db.Exec(ctx, sqlRestart); err != nil {
		return fmt.Errorf("beginning sketches again: %w", err)
	}
	return nil
}

// Drop drops the tables that no scope has any more, and returns how many could not
// be, because somebody was reading them. db is of memd_maintain or the worker.
func Drop(ctx context.Context, db pg.DB) (kept int, err error) {
	if err := db.QueryRow(ctx, sqlDrop).Scan(&kept); err != nil {
		return 0, fmt.Errorf("dropping sketches: %w", err)
	}
	return kept, nil
}

func gone(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case pg.SQLState(err) == undefinedTable:
		return fmt.Errorf("%s: %w", doing, ErrGone)
	}
	return fmt.Errorf("%s: %w", doing, err)
}
