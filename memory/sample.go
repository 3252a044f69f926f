package memory

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// SampleRows is how many live rows must open with a new key tree before the
// old one is destroyed.
const SampleRows = 64

// Rows that are about to fall are left out, one by one: a scope that ever hid
// anything has other rows, which are to be looked at as well.
const sqlSample = sqlMemoryColumns + `
FROM memd.memories m WHERE m.tenant_no = @tenant AND m.memory_id >= @from
  AND NOT EXISTS (
    SELECT FROM memd.hidden_contributions h
    WHERE h.tenant_no = m.tenant_no AND h.owner_no = m.owner_no
      AND ((h.contributor_no IN (m.contributor_no, m.owner_no) AND h.contributor_session IN (0, m.contributor_session))
        OR EXISTS (
          SELECT FROM memd.memory_contributions c
          WHERE c.tenant_no = m.tenant_no AND c.memory_id = m.memory_id
            AND c.contributor_no = h.contributor_no AND h.contributor_session IN (0, c.contributor_session))))
  AND NOT EXISTS (SELECT FROM memd.expired_months x WHERE x.tenant_no = m.tenant_no AND x.class = 1 AND x.month = m.month)
ORDER BY m.memory_id LIMIT @limit`

// Sample opens live rows of a tenant, picked at random, with k alone. A row
// whose key is not there is an error: k does not cover everybody who lives. A
// row that does not verify was damaged or copied there, which is no fault of
// the keys, unless most of the sample are such.
func Sample(ctx context.Context, db pg.DB, k *shred.Keys) error {
	from, err := uuid.NewRandom()
	if err != nil {
		return err
	}
	read, corrupt := 0, 0
	for _, id := range []uuid.UUID{from, uuid.Nil} {
		rows, err := db.Query(ctx, sqlSample, pg.Args{"tenant": k.Tenant(), "from": id, "limit": SampleRows - read})
		if err != nil {
			return fmt.Errorf("sampling memories: %w", err)
		}
		sample, err := pgx.CollectRows(rows, scanMemory)
		if err != nil {
			return fmt.Errorf("sampling memories: %w", err)
		}
		for _, f := range sample {
			_, err := f.open(k, true)
			switch {
			case errors.Is(err, memd.ErrCorrupt):
				corrupt++
			case err != nil:
				return fmt.Errorf("opening a live row with the new keys: %w", err)
			}
		}
		if read += len(sample); read >= SampleRows {
			break
		}
	}
	if 2*corrupt > read {
		return fmt.Errorf("opening live rows with the new keys: %d of %d: %w", corrupt, read, memd.ErrCorrupt)
	}
	return nil
}
