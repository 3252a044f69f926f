package sessions

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

// SampleEvents is how many live events must open with a new key tree before the
// old one is destroyed.
const SampleEvents = 32

const sqlSubjectRange = `
SELECT coalesce(min(subject_no), 0), coalesce(max(subject_no), 0) FROM memd.session_heads WHERE tenant_no = @tenant`

// Events of sessions that are about to fall are left out.
const sqlSample = `
SELECT e.subject_no, e.session_no, e.month, e.seq, e.source_time, e.appended_at, e.event_digest, e.sealed
FROM memd.session_heads h JOIN memd.session_events e
  ON e.tenant_no = h.tenant_no AND e.subject_no = h.subject_no AND e.session_no = h.session_no AND e.month = h.month
WHERE h.tenant_no = @tenant AND h.subject_no BETWEEN @from AND @to
  AND EXISTS (SELECT FROM memd.readable_sessions r
              WHERE r.tenant_no = h.tenant_no AND r.subject_no = h.subject_no AND r.session_no = h.session_no)
  AND NOT EXISTS (SELECT FROM memd.expired_months x WHERE x.tenant_no = h.tenant_no AND x.class = 0 AND x.month = h.month)
ORDER BY h.subject_no, h.session_no LIMIT @limit`

// Sample opens live events of a tenant, from a user picked at random on, with k
// alone. An event whose key is not there is an error: k does not cover everybody
// who lives. One that does not verify was damaged, which is no fault of the
// keys, unless most of the sample are such.
func Sample(ctx context.Context, db pg.DB, k *shred.Keys) error {
	var first, last int64
	if err := db.QueryRow(ctx, sqlSubjectRange, pg.Args{"tenant": k.Tenant()}).Scan(&first, &last); err != nil {
		return fmt.Errorf("sampling events: %w", err)
	}
	from := first + rand.Int64N(last-first+1)
	read, corrupt := 0, 0
	for _, r := range [][2]int64{{from, last}, {first, from - 1}} {
		rows, err := db.Query(ctx, sqlSample, pg.Args{"tenant": k.Tenant(), "from": r[0], "to": r[1], "limit": SampleEvents - read})
		if err != nil {
			return fmt.Errorf("sampling events: %w", err)
		}
		sample, err := pgx.CollectRows(rows, scanSample)
		if err != nil {
			return fmt.Errorf("sampling events: %w", err)
		}
		for _, e := range sample {
			switch err := e.open(k); {
			case errors.Is(err, memd.ErrCorrupt):
				corrupt++
			case err != nil:
				return fmt.Errorf("opening a live event with the new keys: %w", err)
			}
		}
		if read += len(sample); read >= SampleEvents {
			break
		}
	}
	if 2*corrupt > read {
		return fmt.Errorf("opening live events with the new keys: %d of %d: %w", corrupt, read, memd.ErrCorrupt)
	}
	return nil
}

type sampled struct {
	of memd.Contribution
	part
}

func scanSample(row pgx.CollectableRow) (s sampled, err error) {
	err = row.Scan(&s.of.Subject, &s.of.Session, &s.Month, &s.A, &s.T1, &s.T2, &s.Digest, &s.Sealed)
	return s, err
}

func (s *sampled) open(k *shred.Keys) error {
	_, err := s.event(k)
	return err
}

func (s *sampled) event(k *shred.Keys) (Event, error) {
	by := &sealers{k: k, of: s.of, month: *s.Month}
	var err error
	if by.content, err = k.Content(by.month, s.of.Subject, s.of.Session); err != nil {
		return Event{}, err
	}
	return by.openEvent(s.part)
}
