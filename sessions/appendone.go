package sessions

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

const sqlAppendEvent = `
SELECT seq, appended_at FROM memd.append_event(@tenant, @ref, @subject, @session, @seen, @now, @digest, @source, @sealed)`

// plain events change no state that is kept.
func (e *Event) plain() bool {
	for key := range e.StateDelta {
		if kindOf(key) != kindTemp {
			return false
		}
	}
	return true
}

// appendOne appends a plain event to a session that is as the caller has seen
// it, in half the time that append takes. It is not done when the event is
// there, or the session has changed or gone: append tells them apart.
func (s *Service) appendOne(ctx context.Context, db pg.DB, by *sealers, id ID, e *Event, seen time.Time) (p Position, done bool, err error) {
	digest := digestEvent(by.content, e.ID)
	sealed, err := by.content.SealFast(e.encode(), shred.AADEvent(by.k.Tenant(), by.of.Subject, by.of.Session, digest))
	if err != nil {
		return p, false, fmt.Errorf("sealing an event: %w", err)
	}
	ref := provenance.RefOf(by.k, id.scope())
	var seq *int64
	var at *time.Time
	err = db.QueryRow(ctx, sqlAppendEvent, pg.Args{
		"tenant": by.k.Tenant(), "ref": ref[:], "subject": by.of.Subject, "session": by.of.Session,
		"seen": optional(seen), "now": s.Clock.Now(), "digest": digest[:], "source": optional(e.Time), "sealed": sealed,
	}).Scan(&seq, &at)
	switch {
	case isThere(err):
		return p, false, nil
	case err != nil:
		return p, false, fmt.Errorf("appending an event: %w", err)
	case seq == nil:
		return p, false, nil
	}
	return Position{EventID: e.ID, Seq: *seq, AppendedAt: at.UTC(), Status: StatusStored}, true, nil
}

// isThere: an event of that id, or that place in the session, is taken. The
// indexes of a partition have names of their own.
func isThere(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == "23505"
}
