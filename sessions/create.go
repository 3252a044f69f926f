package sessions

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

const sqlCreateSession = `
SELECT memd.create_session(@tenant, @subject, @session, @app, @impersonal, @now,
  @kinds::smallint[], @keys::bytea[], @values::bytea[])`

const sqlEnsureMonth = `SELECT memd.ensure_event_month(@month)`

// Create makes a session, with an id of its own if it has none, and returns it
// without events: its state is what it was given and what the user and the app
// have. temp: keys are not kept. impersonal says that app: entries are nobody's
// words; otherwise they are the user's, and go with the user.
//
// Errors: an *memd.InvalidError; memd.ErrExists for an id that is taken;
// memd.ErrFenced, memd.ErrSessionForgotten for who is erased; transient ones. In
// all of them nothing was written. It is safe to repeat with an id.
func (s *Service) Create(ctx context.Context, t Tenant, id ID, state map[string]string, impersonal bool) (Session, error) {
	if id.SessionID == "" {
		generated, err := uuid.NewRandom()
		if err != nil {
			return Session{}, fmt.Errorf("naming a session: %w", err)
		}
		id.SessionID = generated.String()
	}
	if err := errors.Join(validateID(id), validateDelta("state", state)); err != nil {
		return Session{}, err
	}
	err := s.again(ctx, t, id.scopes(), func(k *shred.Keys) error {
		now := s.Clock.Now()
		month, err := memd.MonthOf(now)
		if err != nil {
			return err
		}
		return s.Pool.With(ctx, func(db pg.DB) error {
			return s.create(ctx, db, k, id, month, now, state, impersonal)
		})
	})
	var refused *pg.Error
	if errors.As(err, &refused) && refused.Code == "23505" && refused.Constraint == "session_heads_pkey" {
		return Session{}, memd.ErrExists
	}
	if err != nil {
		return Session{}, err
	}
	return s.Get(ctx, t, id, Query{})
}

func (s *Service) create(ctx context.Context, db pg.DB, k *shred.Keys, id ID, month memd.Month, now time.Time, state map[string]string, impersonal bool) error {
	wants := []provenance.Want{{Scope: id.scope(), Session: id.SessionID, SourceTime: now}}
	if touchesApp(state) {
		wants = append(wants, provenance.Want{Scope: memd.Scope{App: id.App}, SourceTime: now})
	}
	found, err := s.Directory.Admit(ctx, db, k, wants)
	if err != nil {
		return err
	}
	if err := s.ensureMonth(ctx, db, month); err != nil {
		return err
	}
	by := &sealers{k: k, of: found[0], month: month}
	if len(found) > 1 {
		by.app = found[1].Subject
		if !impersonal {
			by.writer = by.of.Subject
		}
	}
	if by.content, err = k.Content(month, by.of.Subject, by.of.Session); err != nil {
		return fmt.Errorf("deriving a session's key: %w", err)
	}
	e := emptyEntries()
	if err := e.add(by, 0, state); err != nil {
		return err
	}
	_, err = db.Exec(ctx, sqlCreateSession, pg.Args{
		"tenant": k.Tenant(), "subject": by.of.Subject, "session": by.of.Session,
		"app": optionalNumber(by.app), "impersonal": by.writer == 0, "now": now,
		"kinds": e.kinds, "keys": e.keys, "values": e.values,
	})
	if err != nil {
		return fmt.Errorf("creating a session: %w", err)
	}
	s.months.Add(monthKey{k.Tenant(), by.of}, month)
	return nil
}

// ensureMonth has the month's partition made, once in the life of this process.
func (s *Service) ensureMonth(ctx context.Context, db pg.DB, month memd.Month) error {
	if _, ok := s.partitions.Load(month); ok {
		return nil
	}
	if _, err := db.Exec(ctx, sqlEnsureMonth, pg.Args{"month": month}); err != nil {
		return fmt.Errorf("making a month's partition: %w", err)
	}
	s.partitions.Store(month, struct{}{})
	return nil
}

func touchesApp(delta map[string]string) bool {
	for key := range delta {
		if kindOf(key) == kindApp {
			return true
		}
	}
	return false
}

// scopes are those whose numbers a call may have cached.
func (id ID) scopes() []memd.Scope { return []memd.Scope{id.scope(), {App: id.App}} }

func validateID(id ID) error {
	if err := validateUser(id.App, id.UserID); err != nil {
		return err
	}
	switch {
	case id.SessionID == "":
		return invalid("session_id", "is required")
	case len(id.SessionID) > memd.MaxIDBytes:
		return invalid("session_id", "is longer than %d bytes", memd.MaxIDBytes)
	case memd.Wildcard(id.SessionID):
		return invalid("session_id", "is a wildcard; one call is about one session")
	}
	return nil
}

func validateUser(app, user string) error {
	switch {
	case app == "":
		return invalid("app", "is required")
	case len(app) > memd.MaxIDBytes:
		return invalid("app", "is longer than %d bytes", memd.MaxIDBytes)
	case !utf8.ValidString(app) || strings.ContainsRune(app, 0):
		return invalid("app", "must be UTF-8 without NUL") // it is a column in clear
	case user == "":
		return invalid("user_id", "is required")
	case len(user) > memd.MaxIDBytes:
		return invalid("user_id", "is longer than %d bytes", memd.MaxIDBytes)
	case memd.Wildcard(app) || memd.Wildcard(user):
		return invalid("user_id", "or app is a wildcard; one call is about one user")
	}
	return nil
}

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func optionalNumber(n memd.Number) *memd.Number {
	if n == 0 {
		return nil
	}
	return &n
}
