package sessions

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

const sqlAppendEvent = `
SELECT memd.append_event(@tenant, @ref, @session_ref, @subject, @session, @seen, @now, @digest, @source, @sealed)`

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
func (s *Service) appendOne(ctx context.Context, db pg.DB, by *sealers, e *Event, seen time.Time) (p Position, done bool, err error) {
	digest := digestEvent(by.content, e.ID)
	sealed, err := by.content.SealFast(e.encode(), shred.AADEvent(by.k.Tenant(), by.of.Subject, by.of.Session, digest))
	if err != nil {
		return p, false, fmt.Errorf("sealing an event: %w", err)
	}
	now := s.Clock.Now()
	var seq *int64
	err = db.QueryRow(ctx, sqlAppendEvent, pg.Args{
		"tenant": by.k.Tenant(), "ref": by.ref[:], "session_ref": by.session[:],
		"subject": by.of.Subject, "session": by.of.Session,
		"seen": optional(seen), "now": now, "digest": digest[:], "source": optional(e.Time), "sealed": sealed,
	}).Scan(&seq)
	switch {
	case isThere(err):
		return p, false, nil
	case err != nil:
		return p, false, fmt.Errorf("appending an event: %w", err)
	case seq == nil:
		return p, false, nil
	}
	return Position{EventID: e.ID, Seq: *seq, AppendedAt: now, Status: StatusStored}, true, nil
}

// isThere: an event of that id, or that place in the session, is taken. The
// indexes of a partition have names of their own.
func isThere(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == "23505"
}
