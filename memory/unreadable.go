package memory

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// UnreadableReport is how many rows Unreadable lists, and unreadablePage how
// many it reads at once.
const (
	UnreadableReport = 20
	unreadablePage   = 1000
)

// Unreadable opens a tenant's rows, at most limit of them from a random one on,
// with k alone. It returns how many it read, how many do not open, and the ids
// of the first of those. Rows that are about to fall are left out: see Sample.
func Unreadable(ctx context.Context, db pg.DB, k *shred.Keys, limit int) (read, bad int, ids []uuid.UUID, err error) {
	start, err := uuid.NewRandom()
	if err != nil {
		return 0, 0, nil, err
	}
	from, wrapped := start, false
	for read < limit {
		want := min(limit-read, unreadablePage)
		rows, err := db.Query(ctx, sqlSample, pg.Args{"tenant": k.Tenant(), "from": from, "limit": want})
		if err != nil {
			return read, bad, ids, fmt.Errorf("reading memories: %w", err)
		}
		page, err := pgx.CollectRows(rows, scanMemory)
		if err != nil {
			return read, bad, ids, fmt.Errorf("reading memories: %w", err)
		}
		for _, f := range page {
			if wrapped && f.id.String() >= start.String() {
				return read, bad, ids, nil
			}
			read++
			if _, err := f.open(k, true); err != nil {
				bad++
				if len(ids) < UnreadableReport {
					ids = append(ids, f.id)
				}
			}
		}
		if len(page) < want {
			if wrapped {
				return read, bad, ids, nil
			}
			from, wrapped = uuid.Nil, true
			continue
		}
		from = next(page[len(page)-1].id)
	}
	return read, bad, ids, nil
}

// next is the id after this one.
func next(id uuid.UUID) uuid.UUID {
	for i := len(id) - 1; i >= 0; i-- {
		if id[i]++; id[i] != 0 {
			break
		}
	}
	return id
}
