package journal

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/pg"
)

// recordFacts bounds a record: some two megabytes.
const recordFacts = 5000

const (
	sqlOutbox = `SELECT fact_id, kind, fact::text FROM memd.ledger_outbox ORDER BY fact_id LIMIT @limit`

	sqlOutboxFacts = `SELECT fact_id, kind, fact::text FROM memd.ledger_outbox WHERE fact_id = ANY (@ids::bigint[])`

	sqlLockShipping = `SELECT pg_advisory_xact_lock(@id)`

	sqlAdvance = `SELECT memd.ledger_advance(@seq, @previous, @digest, @ids::bigint[])`
)

func scanFact(row pgx.CollectableRow) (Fact, error) {
	var f Fact
	var text string
	err := row.Scan(&f.ID, &f.Kind, &text)
	f.Row = json.RawMessage(text)
	return f, err
}

// committed returns the oldest facts that wait to be shipped.
func committed(ctx context.Context, db pg.DB) ([]Fact, error) {
	rows, err := db.Query(ctx, sqlOutbox, pg.Args{"limit": recordFacts})
	if err == nil {
		var facts []Fact
		if facts, err = pgx.CollectRows(rows, scanFact); err == nil {
			return facts, nil
		}
	}
	return nil, fmt.Errorf("reading the outbox: %w", err)
}

// allThere reports whether the outbox has each of the facts, unchanged.
func allThere(ctx context.Context, db pg.DB, facts []Fact) (bool, error) {
	rows, err := db.Query(ctx, sqlOutboxFacts, pg.Args{"ids": ids(facts)})
	if err != nil {
		return false, fmt.Errorf("reading the outbox: %w", err)
	}
	have, err := pgx.CollectRows(rows, scanFact)
	if err != nil {
		return false, fmt.Errorf("reading the outbox: %w", err)
	}
	byID := make(map[int64]Fact, len(have))
	for _, f := range have {
		byID[f.ID] = f
	}
	for _, f := range facts {
		if g, ok := byID[f.ID]; !ok || !f.same(g) {
			return false, nil
		}
	}
	return true, nil
}

func ids(facts []Fact) []int64 {
	out := make([]int64, len(facts))
	for i, f := range facts {
		out[i] = f.ID
	}
	return out
}

// lockShipping waits until nobody else ships or compares, for the length of the
// transaction.
func lockShipping(ctx context.Context, db pg.DB) error {
	if _, err := db.Exec(ctx, sqlLockShipping, pg.Args{"id": int64(pg.LockShip)}); err != nil {
		return fmt.Errorf("waiting for the journal: %w", err)
	}
	return nil
}

// advance notes a record in the database. False: it is not the next one.
func advance(ctx context.Context, db pg.DB, p Position, r Record) (bool, error) {
	var ok bool
	err := db.QueryRow(ctx, sqlAdvance, pg.Args{
		"seq": r.Seq, "previous": p.Digest, "digest": r.Digest[:], "ids": ids(r.Facts),
	}).Scan(&ok)
	if err != nil {
		return false, fmt.Errorf("noting a record of the journal: %w", err)
	}
	return ok, nil
}
