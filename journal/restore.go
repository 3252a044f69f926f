package journal

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred/ledger"
)

// The statements of a restore run as the database's owner: no role of memd's
// may do what they do.
const (
	sqlBeginRestore   = `SELECT memd.begin_restore()`
	sqlEndRestore     = `SELECT memd.end_restore(@generation)`
	sqlReleaseRestore = `SELECT memd.release_restore()`

	sqlNoWait = `SET LOCAL synchronous_commit = off`

	sqlReplayFacts = `
SELECT coalesce(sum(memd.replay_fact(f.kind, f.fact)), 0)::bigint
FROM (SELECT u.kind, u.fact FROM unnest(@kinds::smallint[], @facts::jsonb[]) WITH ORDINALITY AS u (kind, fact, n) ORDER BY u.n OFFSET 0) f`

	sqlReplayRows = `SELECT memd.replay_rows(@facts::jsonb[])`

	sqlReplays = `SELECT place, tenant_no, id, had, reached FROM memd.replays WHERE kind = 3 ORDER BY place`

	sqlReopen = `SELECT memd.reopen_erasure(@tenant, @request)`

	sqlReplayed = `DELETE FROM memd.replays WHERE place = @place`

	sqlHolds = `
WITH gone AS (DELETE FROM memd.replays WHERE kind = 4 RETURNING place, fact)
SELECT memd.replay_hold(g.fact) FROM (SELECT fact FROM gone ORDER BY place OFFSET 0) g`
)

// Standing is how a database stands to its ledgers.
type Standing int

// The standings.
const (
	StandingUnknown Standing = iota
	// StandingEqual: nothing is missing.
	StandingEqual
	// StandingBehind: the ledger has records that the database does not know.
	StandingBehind
	// StandingUnfinished: a restore broke off.
	StandingUnfinished
)

// Compare says how the database stands to its ledgers, and changes nothing but
// to note a record that the database's own facts make up. It returns
// memd.ErrRolledBack when no restore can help: the ledgers are older than the
// database, or of another history or installation.
func (j *Journal) Compare(ctx context.Context) (Standing, Position, error) {
	var p Position
	for {
		again := false
		err := j.c.Pool.InTx(ctx, func(tx pgx.Tx) (err error) {
			if err := lockShipping(ctx, tx); err != nil {
				return err
			}
			if p, err = ReadPosition(ctx, tx); err != nil || p.Restoring {
				return err
			}
			again, err = j.compare(ctx, tx, p)
			return err
		})
		var missing *missingError
		switch {
		case p.Restoring && err == nil:
			return StandingUnfinished, p, nil
		case errors.As(err, &missing):
			return StandingBehind, p, nil
		case err != nil:
			return StandingUnknown, p, err
		case !again:
			return StandingEqual, p, nil
		}
	}
}

// For makes a Journal for a restore: it neither compares nor keeps a gate.
func For(ctx context.Context, c Config) (*Journal, error) {
	if c.Pool == nil || len(c.Ledgers) == 0 || c.Logger == nil {
		return nil, errors.New("journal: Config needs Pool, Ledgers and Logger")
	}
	j := &Journal{c: c, restores: -1, restored: make(chan struct{}), checking: make(chan struct{}, 1), why: errUnchecked}
	j.background, j.end = context.WithCancel(context.WithoutCancel(ctx))
	return j, nil
}

// BeginRestore closes the gate of every process, until EndRestore.
func (j *Journal) BeginRestore(ctx context.Context) error {
	return j.statement(ctx, "beginning a restore", sqlBeginRestore, pg.Args{})
}

// EndRestore claims a generation and opens the gate.
func (j *Journal) EndRestore(ctx context.Context, p Position) (generation int64, err error) {
	if generation, err = j.claim(ctx, p); err != nil {
		return 0, err
	}
	return generation, j.statement(ctx, "ending a restore", sqlEndRestore, pg.Args{"generation": generation})
}

// ReleaseRestore lets what cannot be undone go on. The pool is the owner's.
// False: nothing was waiting.
func ReleaseRestore(ctx context.Context, pool *pg.Pool) (bool, error) {
	var released bool
	err := pool.With(ctx, func(db pg.DB) error { return db.QueryRow(ctx, sqlReleaseRestore).Scan(&released) })
	if err != nil {
		return false, fmt.Errorf("releasing a restore: %w", err)
	}
	return released, nil
}

func (j *Journal) statement(ctx context.Context, doing, sql string, args pg.Args) error {
	err := j.c.Pool.With(ctx, func(db pg.DB) error {
		_, err := db.Exec(ctx, sql, args)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// Next returns the record after the database's last, from the first ledger that
// has it, or memd.ErrNotFound when there is none. Every ledger that has it must
// have the same.
func Next(ctx context.Context, ledgers []ledger.Ledger, p Position) (Record, error) {
	var found *Record
	for i, l := range ledgers {
		data, err := l.Get(ctx, RecordName(p.Seq+1))
		if errors.Is(err, memd.ErrNotFound) {
			continue
		}
		if err != nil {
			return Record{}, fmt.Errorf("ledger %d: %w", i+1, err)
		}
		r, err := ParseRecord(data)
		if err != nil {
			return Record{}, fmt.Errorf("ledger %d: %w", i+1, err)
		}
		if !r.follows(p.Installation, p.Seq, p.Digest) && !r.Rebuilt {
			return Record{}, fmt.Errorf("ledger %d: record %d does not follow the one before: %w", i+1, r.Seq, memd.ErrCorrupt)
		}
		if found != nil && found.Digest != r.Digest {
			return Record{}, fmt.Errorf("ledger %d has another record %d than the first: %w", i+1, r.Seq, memd.ErrCorrupt)
		}
		found = &r
	}
	if found == nil {
		return Record{}, fmt.Errorf("the next record: %w", memd.ErrNotFound)
	}
	return *found, nil
}

// Replay brings the facts of the next record back into the database and notes
// the record, in one transaction, together with what tree does with each key
// tree. It returns the position after it, and how many rows fell to tombstones.
func (j *Journal) Replay(ctx context.Context, p Position, r Record, tree func(tx pgx.Tx, fact json.RawMessage) error) (Position, int64, error) {
	var fell int64
	err := j.c.Pool.InTx(ctx, func(tx pgx.Tx) error {
		// Whatever a crash takes back of this is replayed again, and the end of the
		// restore waits for the disk.
		if _, err := tx.Exec(ctx, sqlNoWait); err != nil {
			return fmt.Errorf("not waiting for the disk: %w", err)
		}
		if err := lockShipping(ctx, tx); err != nil {
			return err
		}
		// Facts that were on their way when the backup was made, and arrived.
		arrived, err := arrived(ctx, tx, r.Facts)
		if err != nil {
			return err
		}
		if fell, err = replayFacts(ctx, tx, r.Facts, tree); err != nil {
			return err
		}
		noted := r
		noted.Facts = arrived
		ok, err := advance(ctx, tx, p, noted)
		if err == nil && !ok {
			err = fmt.Errorf("the journal moved on elsewhere: %w", memd.ErrStale)
		}
		return err
	})
	if err != nil {
		return p, 0, fmt.Errorf("record %d: %w", r.Seq, err)
	}
	p.Seq, p.Digest = r.Seq, r.Digest[:]
	return p, fell, nil
}

// replayFacts brings facts back in their order, but for the tombstones of single
// rows: these are true in any order, and are replayed at once.
func replayFacts(ctx context.Context, tx pgx.Tx, all []Fact, tree func(tx pgx.Tx, fact json.RawMessage) error) (int64, error) {
	var kinds []int16
	var facts, rows []string
	for _, f := range all {
		if f.Kind == KindTree {
			if err := tree(tx, f.Row); err != nil {
				return 0, err
			}
		}
		if f.ofARow() {
			rows = append(rows, string(f.Row))
			continue
		}
		kinds, facts = append(kinds, int16(f.Kind)), append(facts, string(f.Row))
	}
	var fellAlone, fell int64
	if len(rows) > 0 {
		if err := tx.QueryRow(ctx, sqlReplayRows, pg.Args{"facts": rows}).Scan(&fellAlone); err != nil {
			return 0, fmt.Errorf("burying rows again: %w", err)
		}
	}
	if err := tx.QueryRow(ctx, sqlReplayFacts, pg.Args{"kinds": kinds, "facts": facts}).Scan(&fell); err != nil {
		return 0, fmt.Errorf("replaying facts: %w", err)
	}
	return fellAlone + fell, nil
}

// tombstoneOfARow is the kind of a tombstone that names one memory.
const tombstoneOfARow = 3

func (f Fact) ofARow() bool {
	var t struct {
		Kind int16 `json:"kind"`
	}
	return f.Kind == KindTombstone && json.Unmarshal(f.Row, &t) == nil && t.Kind == tombstoneOfARow
}

// arrived returns those of the facts that the outbox still has.
func arrived(ctx context.Context, db pg.DB, facts []Fact) ([]Fact, error) {
	rows, err := db.Query(ctx, sqlOutboxFacts, pg.Args{"ids": ids(facts)})
	if err != nil {
		return nil, fmt.Errorf("reading the outbox: %w", err)
	}
	have, err := pgx.CollectRows(rows, scanFact)
	if err != nil {
		return nil, fmt.Errorf("reading the outbox: %w", err)
	}
	byID := make(map[int64]Fact, len(have))
	for _, f := range have {
		byID[f.ID] = f
	}
	var out []Fact
	for _, f := range facts {
		if g, ok := byID[f.ID]; ok && g.same(f) {
			out = append(out, f)
		}
	}
	return out, nil
}

// Again is an erasure that is to be carried out again.
type Again struct {
	Place   int64
	Tenant  memd.TenantNo
	Request uuid.UUID
	// Had is the state that the database knew it in, zero when it did not know it;
	// Reached the one that it had come to, as erasure.State counts.
	Had, Reached int16
}

// Replays returns the erasures that are to be carried out again, in the order in
// which they were accepted.
func (j *Journal) Replays(ctx context.Context) ([]Again, error) {
	var all []Again
	err := j.c.Pool.With(ctx, func(db pg.DB) error {
		rows, err := db.Query(ctx, sqlReplays)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Again])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing erasures to be carried out again: %w", err)
	}
	return all, nil
}

// Reopen has an erasure begin again.
func (j *Journal) Reopen(ctx context.Context, a Again) error {
	return j.statement(ctx, "reopening an erasure", sqlReopen, pg.Args{"tenant": a.Tenant, "request": a.Request})
}

// Replayed notes that an erasure was carried out again.
func (j *Journal) Replayed(ctx context.Context, a Again) error {
	return j.statement(ctx, "noting an erasure", sqlReplayed, pg.Args{"place": a.Place})
}

// RestoreHolds sets the holds that were in force again.
func (j *Journal) RestoreHolds(ctx context.Context) error {
	return j.statement(ctx, "setting holds again", sqlHolds, pg.Args{})
}

// missingError says that the ledger has a record that the database does not.
type missingError struct{ seq int64 }

// Error implements error.
func (e *missingError) Error() string {
	return fmt.Sprintf("the ledger has a record %d that this database does not know: it was rolled back, run memd restore", e.seq)
}

// Unwrap makes it a memd.ErrRolledBack.
func (e *missingError) Unwrap() error { return memd.ErrRolledBack }

// previousOf renders a digest as records do.
func previousOf(digest []byte) string { return hex.EncodeToString(digest) }
