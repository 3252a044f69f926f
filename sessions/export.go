package sessions

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// What may be handed out of a subject's sessions: what is readable and not of a
// month that has expired, or is to.
const sqlHandOut = `
  AND h.month > @cutoff
  AND EXISTS (SELECT FROM memd.readable_sessions r
              WHERE r.tenant_no = h.tenant_no AND r.subject_no = h.subject_no AND r.session_no = h.session_no)
  AND NOT EXISTS (SELECT FROM memd.expired_months x WHERE x.tenant_no = h.tenant_no AND x.class = 0 AND x.month = h.month)`

const sqlExportHeads = `
SELECT h.session_no, h.created_at, h.updated_at, h.events
FROM memd.session_heads h WHERE h.tenant_no = @tenant AND h.subject_no = @subject` + sqlHandOut + `
ORDER BY h.session_no`

const sqlExportEvents = `
SELECT e.session_no, e.month, e.seq, e.source_time, e.appended_at, e.event_digest, e.sealed
FROM memd.session_heads h JOIN memd.session_events e
  ON e.tenant_no = h.tenant_no AND e.subject_no = h.subject_no AND e.session_no = h.session_no AND e.month = h.month
WHERE h.tenant_no = @tenant AND h.subject_no = @subject` + sqlHandOut + `
ORDER BY h.session_no, e.seq`

// State of sessions (1), of the user (2), and of the app whose scope the subject
// is (3), with who wrote it.
const sqlExportState = `
SELECT 1, h.session_no, h.month, 0, x.key_digest, x.sealed
FROM memd.session_heads h JOIN memd.session_state x
  ON x.tenant_no = h.tenant_no AND x.subject_no = h.subject_no AND x.session_no = h.session_no
WHERE h.tenant_no = @tenant AND h.subject_no = @subject` + sqlHandOut + `
UNION ALL
SELECT 2, 0, 0, 0, x.key_digest, x.sealed FROM memd.user_state x
WHERE x.tenant_no = @tenant AND x.subject_no = @subject
UNION ALL
SELECT 3, 0, 0, coalesce(x.contributor_no, 0), x.key_digest, x.sealed FROM memd.app_state x
WHERE x.tenant_no = @tenant AND x.app_no = @subject AND (x.contributor_no IS NULL OR EXISTS (
  SELECT FROM memd.readable_subjects c WHERE c.tenant_no = @tenant AND c.subject_no = x.contributor_no))`

// Head is a session of an export, without what was said in it.
type Head struct {
	Session              memd.Number
	CreatedAt, UpdatedAt time.Time
	Events               int64
}

// Entry is an entry of state of an export. Session is 0 for what is the user's
// or the app's, and Contributor who wrote an app's, 0 for nobody.
type Entry struct {
	Session, Contributor memd.Number
	// Key has ADK's prefix, Value is JSON.
	Key, Value string
}

// Export hands out everything that a subject, user or app, has here: heads first,
// then events by session and place, then state. What is being erased, and what
// is of months up to cutoff or expired, is left out. Rows come from the database
// as they are handed out: one at a time is in memory. unreadable counts those that
// do not verify. An error of a function ends it.
func Export(ctx context.Context, db pg.DB, k *shred.Keys, subject memd.Number, cutoff memd.Month,
	head func(Head) error, event func(session memd.Number, e Event) error, entry func(Entry) error,
) (unreadable int64, err error) {
	args := pg.Args{"tenant": k.Tenant(), "subject": subject, "cutoff": cutoff}
	counted := func(err error) (bool, error) {
		switch {
		case errors.Is(err, memd.ErrCorrupt):
			unreadable++
			return false, nil
		case errors.Is(err, memd.ErrShredded):
			return false, nil // It is about to fall.
		}
		return err == nil, err
	}
	var h Head
	err = each(ctx, db, sqlExportHeads, args, []any{&h.Session, &h.CreatedAt, &h.UpdatedAt, &h.Events}, func() error {
		h.CreatedAt, h.UpdatedAt = h.CreatedAt.UTC(), h.UpdatedAt.UTC()
		return head(h)
	})
	if err != nil {
		return unreadable, err
	}
	s := sampled{of: memd.Contribution{Subject: subject}}
	columns := []any{&s.of.Session, &s.Month, &s.A, &s.T1, &s.T2, &s.Digest, &s.Sealed}
	err = each(ctx, db, sqlExportEvents, args, columns, func() error {
		e, err := s.event(k)
		if ok, err := counted(err); !ok {
			return err
		}
		return event(s.of.Session, e)
	})
	if err != nil {
		return unreadable, err
	}
	var kind stateKind
	var session, contributor memd.Number
	var month memd.Month
	var sealed, digest []byte
	err = each(ctx, db, sqlExportState, args, []any{&kind, &session, &month, &contributor, &digest, &sealed}, func() error {
		key, value, err := openExported(k, kind, memd.Contribution{Subject: subject, Session: session}, month, contributor, digest, sealed)
		if ok, err := counted(err); !ok {
			return err
		}
		return entry(Entry{Session: session, Contributor: contributor, Key: key, Value: value})
	})
	return unreadable, err
}

// openExported opens an entry of state. Of an app's the subject is the app.
func openExported(k *shred.Keys, kind stateKind, of memd.Contribution, month memd.Month, contributor memd.Number, digest, sealed []byte) (string, string, error) {
	d, err := digestOf(digest)
	if err != nil {
		return "", "", err
	}
	by := &sealers{k: k, of: of, month: month, app: of.Subject}
	if kind == kindSession {
		if by.content, err = k.Content(month, of.Subject, of.Session); err != nil {
			return "", "", err
		}
	}
	return by.open(kind, contributor, d, sealed)
}

func each(ctx context.Context, db pg.DB, sql string, args pg.Args, columns []any, fn func() error) error {
	rows, err := db.Query(ctx, sql, args)
	if err == nil {
		_, err = pgx.ForEachRow(rows, columns, fn)
	}
	if err != nil {
		return fmt.Errorf("handing out sessions: %w", err)
	}
	return nil
}
