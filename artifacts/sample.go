package artifacts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// SampleVersions is how many live versions must open with a new key tree before
// the old one is destroyed.
const SampleVersions = 32

const sqlSampleRange = `
SELECT coalesce(min(subject_no), 0), coalesce(max(subject_no), 0) FROM memd.artifact_versions WHERE tenant_no = @tenant`

// Versions of owners that are about to fall are left out. The description is
// sealed with the key that the chunks are sealed with.
const sqlSample = sqlVersionColumns + `, a.sealed_name, a.month
FROM memd.artifact_versions v
JOIN memd.artifacts a ON a.tenant_no = v.tenant_no AND a.subject_no = v.subject_no AND a.session_no = v.session_no
  AND a.artifact_id = v.artifact_id
WHERE v.tenant_no = @tenant AND v.subject_no BETWEEN @from AND @to AND v.version IS NOT NULL
  AND EXISTS (SELECT FROM memd.artifact_owners o
              WHERE o.tenant_no = v.tenant_no AND o.subject_no = v.subject_no AND o.session_no = v.session_no)
  AND (v.session_no = 1099511627777 OR NOT EXISTS (
    SELECT FROM memd.expired_months x WHERE x.tenant_no = v.tenant_no AND x.class = 0 AND x.month IN (v.month, a.month)))
ORDER BY v.subject_no, v.session_no, v.version_id LIMIT @limit`

// Sample opens names and descriptions of live versions of a tenant, from a user
// picked at random on, with k alone. One whose key is not there is an error: k
// does not cover everybody who lives. One that does not verify was damaged,
// which is no fault of the keys, unless most of the sample are such.
func Sample(ctx context.Context, db pg.DB, k *shred.Keys) error {
	var first, last int64
	if err := db.QueryRow(ctx, sqlSampleRange, pg.Args{"tenant": k.Tenant()}).Scan(&first, &last); err != nil {
		return fmt.Errorf("sampling artifacts: %w", err)
	}
	from := first + rand.Int64N(last-first+1)
	read, corrupt := 0, 0
	for _, r := range [][2]int64{{from, last}, {first, from - 1}} {
		n, bad, err := sampleRange(ctx, db, k, pg.Args{"tenant": k.Tenant(), "from": r[0], "to": r[1], "limit": SampleVersions - read})
		if err != nil {
			return err
		}
		corrupt += bad
		if read += n; read >= SampleVersions {
			break
		}
	}
	if 2*corrupt > read {
		return fmt.Errorf("opening live artifacts with the new keys: %d of %d: %w", corrupt, read, memd.ErrCorrupt)
	}
	return nil
}

func sampleRange(ctx context.Context, db pg.DB, k *shred.Keys, args pg.Args) (read, corrupt int, err error) {
	rows, err := db.Query(ctx, sqlSample, args)
	if err != nil {
		return 0, 0, fmt.Errorf("sampling artifacts: %w", err)
	}
	var s stored
	var name []byte
	var named memd.Month
	columns := append(s.columns(), &name, &named)
	_, err = pgx.ForEachRow(rows, columns, func() error {
		read++
		_, err := openName(k, place{s.Contribution, named}, s.artifact, name)
		if err == nil {
			_, _, err = s.open(k, "")
		}
		switch {
		case errors.Is(err, memd.ErrCorrupt):
			corrupt++
		case err != nil:
			return fmt.Errorf("opening a live artifact with the new keys: %w", err)
		}
		return nil
	})
	if err != nil {
		return 0, 0, fmt.Errorf("sampling artifacts: %w", err)
	}
	return read, corrupt, nil
}
