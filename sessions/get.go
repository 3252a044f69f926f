package sessions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

// A session in one statement, so in one snapshot, which is also asked whether
// the user is fenced and the session alive: its head (part 0), its newest events
// (1), and the three kinds of state (2 to 4). State of the app shows what users
// wrote who may be read, and nobody's words. Of events that are too large
// together the rest comes without what they say.
const sqlSession = `
WITH s AS MATERIALIZED (
  SELECT r.subject_no, r.session_no, h.month, h.created_at, h.updated_at, h.events
  FROM memd.readable_sessions r
  JOIN memd.session_heads h ON h.tenant_no = r.tenant_no AND h.subject_no = r.subject_no AND h.session_no = r.session_no
  WHERE r.tenant_no = @tenant AND r.user_ref = @ref AND r.session_ref = @session
)
SELECT 0 AS part, s.subject_no AS a, s.session_no AS b, s.month AS month, s.events AS n,
  s.created_at AS t1, s.updated_at AS t2, NULL::bytea AS digest, NULL::bytea AS sealed FROM s
UNION ALL
SELECT 1, e.seq, NULL, NULL, NULL, e.source_time, e.appended_at, e.event_digest, e.sealed
FROM s CROSS JOIN LATERAL (
  SELECT x.seq, x.source_time, x.appended_at, x.event_digest,
    CASE WHEN sum(octet_length(x.sealed)) OVER (ORDER BY x.seq DESC) <= @bytes THEN x.sealed END AS sealed
  FROM memd.session_events x
  WHERE x.tenant_no = @tenant AND x.subject_no = s.subject_no AND x.session_no = s.session_no AND x.month = s.month
    AND x.seq < @before AND (@since::timestamptz IS NULL OR coalesce(x.source_time, x.appended_at) >= @since)
  ORDER BY x.seq DESC LIMIT @limit) e
UNION ALL
SELECT 2, NULL, NULL, NULL, NULL, NULL, NULL, x.key_digest, x.sealed
FROM s JOIN memd.session_state x ON x.tenant_no = @tenant AND x.subject_no = s.subject_no AND x.session_no = s.session_no
UNION ALL
SELECT 3, NULL, NULL, NULL, NULL, NULL, NULL, x.key_digest, x.sealed
FROM s JOIN memd.user_state x ON x.tenant_no = @tenant AND x.subject_no = s.subject_no
UNION ALL
SELECT 4, x.app_no, coalesce(x.contributor_no, 0), NULL, NULL, NULL, NULL, x.key_digest, x.sealed
FROM s JOIN memd.readable_subjects a ON a.tenant_no = @tenant AND a.user_ref = @app
JOIN memd.app_state x ON x.tenant_no = @tenant AND x.app_no = a.subject_no
WHERE x.contributor_no IS NULL OR EXISTS (
  SELECT FROM memd.readable_subjects c WHERE c.tenant_no = @tenant AND c.subject_no = x.contributor_no)`

// Query says what to read of a session.
type Query struct {
	// Events is how many events to read, the newest ones: 0 to
	// memd.MaxReadEvents.
	Events int
	// Since leaves out events that happened earlier; zero leaves out none. An
	// event that does not say when it happened counts from when it was appended.
	Since time.Time
	// Before leaves out events from this place in the session on; 0 leaves out
	// none.
	Before int64
}

// Session is a conversation.
type Session struct {
	ID
	CreatedAt time.Time
	// UpdatedAt is when it was last written to: what Append wants to have been
	// seen.
	UpdatedAt time.Time
	// EventCount is how many events it has, all told.
	EventCount int64
	// State is what ADK calls the merged state: by key, prefix included, a value
	// as JSON. Nil in a List.
	State map[string]string
	// Events are in the order in which they were appended.
	Events []Event
}

// maxSeq is above every place in a session.
const maxSeq = 1<<63 - 1

// Get returns a session, with its merged state and its newest events. A session
// of somebody else, one that was deleted, and any of a user who is being erased
// are memd.ErrNotFound all alike.
func (s *Service) Get(ctx context.Context, t Tenant, id ID, q Query) (Session, error) {
	if err := validateID(id); err != nil {
		return Session{}, err
	}
	switch {
	case q.Events < 0 || q.Events > memd.MaxReadEvents:
		return Session{}, invalid("num_recent_events", "must be 0 to %d", memd.MaxReadEvents)
	case q.Before < 0:
		return Session{}, invalid("before_sequence", "must not be negative")
	case q.Before == 0:
		q.Before = maxSeq
	}
	var out Session
	err := s.again(ctx, t, nil, func(k *shred.Keys) error {
		return s.Pool.With(ctx, func(db pg.DB) (err error) {
			out, err = s.read(ctx, db, k, id, q)
			if errors.Is(err, memd.ErrShredded) {
				return memd.ErrNotFound // shredded between the read and the opening
			}
			return err
		})
	})
	return out, err
}

// errTooMuch is the answer to who asks for more than fits into a process that
// serves others too.
var errTooMuch = invalid("num_recent_events",
	"asks for more than %d MiB, state included: ask for fewer, and for those before them with before_sequence", memd.MaxReadBytes>>20)

// part is one row of sqlSession.
type part struct {
	Part   int
	A, B   *memd.Number
	Month  *memd.Month
	N      *int64
	T1, T2 *time.Time
	Digest []byte
	Sealed []byte
}

func (s *Service) read(ctx context.Context, db pg.DB, k *shred.Keys, id ID, q Query) (Session, error) {
	out := Session{ID: id, State: map[string]string{}}
	ref, app := provenance.RefOf(k, id.scope()), k.SharedRef(id.App)
	session := k.SessionRef(ref, id.SessionID)
	rows, err := db.Query(ctx, sqlSession, pg.Args{
		"tenant": k.Tenant(), "ref": ref[:], "session": session[:], "app": app[:],
		"before": q.Before, "since": optional(q.Since), "limit": q.Events, "bytes": memd.MaxReadBytes,
	})
	if err != nil {
		return out, fmt.Errorf("reading a session: %w", err)
	}
	parts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[part])
	if err != nil {
		return out, fmt.Errorf("reading a session: %w", err)
	}
	at := slices.IndexFunc(parts, func(p part) bool { return p.Part == 0 })
	if at < 0 {
		return out, memd.ErrNotFound
	}
	head := parts[at]
	out.CreatedAt, out.UpdatedAt, out.EventCount = head.T1.UTC(), head.T2.UTC(), *head.N
	by := &sealers{k: k, of: memd.Contribution{Subject: *head.A, Session: *head.B}, month: *head.Month}
	if by.content, err = k.Content(by.month, by.of.Subject, by.of.Session); err != nil {
		return out, fmt.Errorf("deriving a session's key: %w", err)
	}
	for _, p := range parts {
		switch {
		case p.Part == 0:
		case p.Part == 1 && p.Sealed == nil:
			return out, errTooMuch
		case p.Part == 1:
			e, err := by.openEvent(p)
			if err != nil {
				return out, err
			}
			out.Events = append(out.Events, e)
		default:
			if err := by.openState(p, out.State); err != nil {
				return out, err
			}
		}
		// What repeats itself is sealed in a thousandth of its size.
		if by.opened > memd.MaxReadBytes {
			return out, errTooMuch
		}
	}
	slices.SortFunc(out.Events, func(a, b Event) int { return int(a.Seq - b.Seq) })
	return out, nil
}

func (s *sealers) openEvent(p part) (Event, error) {
	digest, err := digestOf(p.Digest)
	if err != nil {
		return Event{}, err
	}
	b, err := s.content.Open(p.Sealed, shred.AADEvent(s.k.Tenant(), s.of.Subject, s.of.Session, digest))
	if err != nil {
		return Event{}, fmt.Errorf("opening an event: %w", err)
	}
	s.opened += len(b)
	e, err := decodeEvent(b)
	if err != nil {
		return e, err
	}
	e.Seq, e.AppendedAt = int64(*p.A), p.T2.UTC()
	if p.T1 != nil {
		e.Time = p.T1.UTC()
	}
	return e, nil
}

// openState puts an entry into the merged state. An entry of the app whose
// writer's key was shredded since is gone like the rest of theirs.
func (s *sealers) openState(p part, state map[string]string) error {
	digest, err := digestOf(p.Digest)
	if err != nil {
		return err
	}
	kind, contributor := stateKind(p.Part-1), memd.Number(0)
	if kind == kindApp {
		s.app, contributor = *p.A, *p.B
	}
	key, value, err := s.open(kind, contributor, digest, p.Sealed)
	switch {
	case kind == kindApp && contributor != s.of.Subject && errors.Is(err, memd.ErrShredded):
		return nil
	case err != nil:
		return err
	}
	s.opened += len(key) + len(value)
	state[key] = value
	return nil
}

func digestOf(b []byte) (d [16]byte, err error) {
	if len(b) != len(d) {
		return d, fmt.Errorf("reading a digest: %w", memd.ErrCorrupt)
	}
	return [16]byte(b), nil
}

const sqlEventsAfter = `
SELECT 1, e.seq, r.session_no, e.month, NULL::bigint, e.source_time, e.appended_at, e.event_digest, e.sealed, r.subject_no
FROM memd.readable_sessions r
JOIN memd.session_heads h ON h.tenant_no = r.tenant_no AND h.subject_no = r.subject_no AND h.session_no = r.session_no
LEFT JOIN LATERAL (
  SELECT x.month, x.seq, x.source_time, x.appended_at, x.event_digest,
    CASE WHEN sum(octet_length(x.sealed)) OVER (ORDER BY x.seq) <= @bytes THEN x.sealed END AS sealed
  FROM memd.session_events x
  WHERE x.tenant_no = r.tenant_no AND x.subject_no = r.subject_no AND x.session_no = r.session_no AND x.month = h.month
    AND x.seq > @after
  ORDER BY x.seq LIMIT @limit) e ON true
WHERE r.tenant_no = @tenant AND r.user_ref = @ref AND r.session_ref = @session
ORDER BY e.seq`

// pageBytes is about how large the events are that Events returns at once: many
// times the largest of them.
const pageBytes = 16 << 20

// Events returns up to limit events that were appended behind a place in a
// session (0: its beginning), oldest first, to go through all of it. There are
// fewer when they are large, and none only at the end. Errors are those of Get.
func (s *Service) Events(ctx context.Context, t Tenant, id ID, after int64, limit int) ([]Event, error) {
	if err := validateID(id); err != nil {
		return nil, err
	}
	var out []Event
	err := s.again(ctx, t, nil, func(k *shred.Keys) error {
		return s.Pool.With(ctx, func(db pg.DB) (err error) {
			out, err = eventsAfter(ctx, db, k, id, after, limit)
			if errors.Is(err, memd.ErrShredded) {
				return memd.ErrNotFound
			}
			return err
		})
	})
	return out, err
}

func eventsAfter(ctx context.Context, db pg.DB, k *shred.Keys, id ID, after int64, limit int) ([]Event, error) {
	ref := provenance.RefOf(k, id.scope())
	session := k.SessionRef(ref, id.SessionID)
	rows, err := db.Query(ctx, sqlEventsAfter, pg.Args{
		"tenant": k.Tenant(), "ref": ref[:], "session": session[:], "after": after, "limit": limit, "bytes": pageBytes,
	})
	if err != nil {
		return nil, fmt.Errorf("reading events: %w", err)
	}
	type row struct {
		part
		Subject memd.Number
	}
	found, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (out row, err error) {
		err = r.Scan(&out.Part, &out.A, &out.B, &out.Month, &out.N, &out.T1, &out.T2, &out.Digest, &out.Sealed, &out.Subject)
		return out, err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading events: %w", err)
	case len(found) == 0:
		return nil, memd.ErrNotFound
	}
	out := make([]Event, 0, len(found))
	opened := 0
	for _, r := range found {
		if r.A == nil {
			continue // a session without further events
		}
		if r.Sealed == nil || opened > pageBytes {
			break
		}
		by := &sealers{k: k, of: memd.Contribution{Subject: r.Subject, Session: *r.B}, month: *r.Month}
		if by.content, err = k.Content(by.month, by.of.Subject, by.of.Session); err != nil {
			return nil, fmt.Errorf("deriving a session's key: %w", err)
		}
		e, err := by.openEvent(r.part)
		if err != nil {
			return nil, err
		}
		opened += by.opened
		out = append(out, e)
	}
	return out, nil
}
