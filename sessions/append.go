package sessions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

const sqlAppendEvents = `
SELECT seq, appended_at, fresh FROM memd.append_events(@tenant, @subject, @session, @app, @impersonal, @seen, @now,
  @digests::bytea[], @times::timestamptz[], @sealed::bytea[],
  @events::int[], @kinds::smallint[], @keys::bytea[], @values::bytea[])`

const sqlMonth = `
SELECT month FROM memd.session_heads WHERE tenant_no = @tenant AND subject_no = @subject AND session_no = @session`

// Status says what Append did with an event.
type Status int

// Statuses; append only.
const (
	StatusUnknown  Status = 0
	StatusStored   Status = 1
	StatusRepeated Status = 2 // an event of that id was there: nothing was written
	StatusPartial  Status = 3 // a partial event: nothing was written
)

// Position is where an event is.
type Position struct {
	EventID    string
	Seq        int64     // zero for a partial event
	AppendedAt time.Time // zero for a partial event
	Status     Status
}

// Appended is the outcome of an Append.
type Appended struct {
	// Events has one Position for each event, in the same order.
	Events []Position
	// UpdatedAt is when the session was updated by these events: what the next
	// Append of a caller who has seen nothing since says that it has seen.
	UpdatedAt time.Time
}

// Append adds 1 to memd.MaxEvents events to a session, in order, all or none,
// and applies the state that they change. An event whose id is there already is
// left as it is, with the state that it changed then: repeating an Append is
// safe however late.
//
// seen is the UpdatedAt that the caller read the session with. When the session
// was updated since, new events are refused with memd.ErrSessionChanged; zero
// appends without asking. impersonal is as for Create.
//
// Errors: an *memd.InvalidError naming the event and field; memd.ErrNotFound;
// memd.ErrSessionChanged; memd.ErrFenced, memd.ErrSessionForgotten,
// memd.ErrErasedBefore, memd.ErrSourceTimeRequired for who is or was erased;
// memd.ErrMonthExpired; transient ones. In all of them nothing was written.
func (s *Service) Append(ctx context.Context, t Tenant, id ID, events []Event, seen time.Time, impersonal bool) (Appended, error) {
	out := Appended{Events: make([]Position, len(events)), UpdatedAt: seen}
	batch, at, err := s.prepare(id, events, out.Events)
	if err != nil {
		return Appended{}, err
	}
	if len(batch) == 0 {
		return out, nil
	}
	missed := false
	err = s.again(ctx, t, id.scopes(), func(k *shred.Keys) error {
		err := s.Pool.With(ctx, func(db pg.DB) error {
			return s.append(ctx, db, k, id, batch, seen, impersonal, func(i int, p Position) {
				p.EventID = batch[i].ID
				out.Events[at[i]] = p
			})
		})
		switch {
		case noPartition(err):
			return s.Pool.With(ctx, func(db pg.DB) error { return s.remakeMonth(ctx, db, k, id) })
		case (errors.Is(err, memd.ErrNotFound) || errors.Is(err, memd.ErrShredded)) && !missed:
			// The number may have been cached from an earlier life of the user.
			missed = true
			return fmt.Errorf("looking for the session again: %w", memd.ErrStale)
		case errors.Is(err, memd.ErrNotFound), errors.Is(err, memd.ErrShredded):
			otherwise := memd.ErrNotFound
			if errors.Is(err, memd.ErrShredded) {
				otherwise = memd.ErrMonthExpired
			}
			return s.Pool.With(ctx, func(db pg.DB) error { return refusal(ctx, db, k, id, otherwise) })
		}
		return err
	})
	if err != nil {
		return Appended{}, err
	}
	for _, p := range out.Events {
		if p.AppendedAt.After(out.UpdatedAt) {
			out.UpdatedAt = p.AppendedAt
		}
	}
	return out, nil
}

// remakeMonth makes a month's partition again, which went when nobody had anything
// in it: a session that was empty then, or is new, is of that month all the same. Of
// a tenant whose month has expired the guard says so. It returns memd.ErrStale.
func (s *Service) remakeMonth(ctx context.Context, db pg.DB, k *shred.Keys, id ID) error {
	by, err := s.resolve(ctx, db, k, id)
	if err != nil {
		return err
	}
	s.partitions.Delete(by.month)
	if err := s.ensureMonth(ctx, db, by.month); err != nil {
		return err
	}
	return fmt.Errorf("making a month's partition again: %w", memd.ErrStale)
}

// noPartition: there is no partition of the month.
func noPartition(err error) bool {
	var e *pg.Error
	return errors.As(err, &e) && e.Code == "23514" && e.Routine == "ExecFindPartition"
}

// prepare checks a batch, names its events, and leaves out the partial ones. at
// says where each of the rest is in events.
func (s *Service) prepare(id ID, events []Event, out []Position) (batch []Event, at []int, err error) {
	if err := validateID(id); err != nil {
		return nil, nil, err
	}
	if len(events) == 0 || len(events) > memd.MaxEvents {
		return nil, nil, invalid("events", "must be 1 to %d", memd.MaxEvents)
	}
	now := s.Clock.Now()
	seen := map[string]int{}
	for i, e := range events {
		if e.Partial {
			out[i] = Position{EventID: e.ID, Status: StatusPartial}
			continue
		}
		if err := e.validate(now); err != nil {
			return nil, nil, inEvent(i, err)
		}
		if e.ID == "" {
			generated, err := uuid.NewRandom()
			if err != nil {
				return nil, nil, fmt.Errorf("naming an event: %w", err)
			}
			e.ID = generated.String()
		}
		if j, ok := seen[e.ID]; ok {
			return nil, nil, inEvent(i, invalid("id", "repeats that of events[%d]", j))
		}
		seen[e.ID] = i
		batch, at = append(batch, e), append(at, i)
	}
	return batch, at, nil
}

// resolve finds a session's numbers, month and keys. memd.ErrNotFound is one
// that is not there, for whatever reason.
func (s *Service) resolve(ctx context.Context, db pg.DB, k *shred.Keys, id ID) (*sealers, error) {
	by := &sealers{k: k, ref: provenance.RefOf(k, id.scope())}
	by.session = k.SessionRef(by.ref, id.SessionID)
	var ok bool
	if by.of, ok = s.Directory.Cached(k.Tenant(), by.ref, by.session); !ok {
		found, err := s.Directory.Find(ctx, db, k, []provenance.Want{{Scope: id.scope(), Session: id.SessionID}})
		if err != nil {
			return nil, err
		}
		by.of = found[0]
	}
	if !by.of.Subject.Valid() || !by.of.Session.Valid() {
		return nil, memd.ErrNotFound
	}
	key := monthKey{k.Tenant(), by.of}
	// One that expired is asked for again: the session may have been made anew.
	if by.month, ok = s.months.Get(key); !ok || k.Expired(memd.ClassContent, by.month) {
		err := db.QueryRow(ctx, sqlMonth, pg.Args{"tenant": k.Tenant(), "subject": by.of.Subject, "session": by.of.Session}).Scan(&by.month)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, memd.ErrNotFound
		}
		if err != nil {
			return nil, fmt.Errorf("reading a session's month: %w", err)
		}
		s.months.Add(key, by.month)
	}
	var err error
	if by.content, err = k.Content(by.month, by.of.Subject, by.of.Session); err != nil {
		return nil, fmt.Errorf("deriving a session's key: %w", err)
	}
	return by, nil
}

func (s *Service) append(ctx context.Context, db pg.DB, k *shred.Keys, id ID, batch []Event, seen time.Time, impersonal bool, result func(int, Position)) error {
	by, err := s.resolve(ctx, db, k, id)
	if err != nil {
		return err
	}
	if len(batch) == 1 && batch[0].plain() {
		if p, done, err := s.appendOne(ctx, db, by, &batch[0], seen); done || err != nil {
			if done {
				result(0, p)
			}
			return err
		}
	}
	if slices.ContainsFunc(batch, func(e Event) bool { return touchesApp(e.StateDelta) }) {
		if err := s.admitApp(ctx, db, by, id, impersonal); err != nil {
			return err
		}
	}
	n := len(batch)
	digests, times, sealed := make([][]byte, n), make([]*time.Time, n), make([][]byte, n)
	changes := emptyEntries()
	for i := range batch {
		e := &batch[i]
		digest := digestEvent(by.content, e.ID)
		digests[i], times[i] = digest[:], optional(e.Time)
		sealed[i], err = by.content.SealFast(e.encode(), shred.AADEvent(k.Tenant(), by.of.Subject, by.of.Session, digest))
		if err != nil {
			return fmt.Errorf("sealing an event: %w", err)
		}
		if err := changes.add(by, i+1, e.StateDelta); err != nil {
			return inEvent(i, err)
		}
	}
	rows, err := db.Query(ctx, sqlAppendEvents, pg.Args{
		"tenant": k.Tenant(), "subject": by.of.Subject, "session": by.of.Session,
		"app": optionalNumber(by.app), "impersonal": by.writer == 0, "seen": optional(seen), "now": s.Clock.Now(),
		"digests": digests, "times": times, "sealed": sealed,
		"events": changes.events, "kinds": changes.kinds, "keys": changes.keys, "values": changes.values,
	})
	if err != nil {
		return fmt.Errorf("appending events: %w", err)
	}
	i := 0
	var p Position
	var fresh bool
	_, err = pgx.ForEachRow(rows, []any{&p.Seq, &p.AppendedAt, &fresh}, func() error {
		p.Status, p.AppendedAt = StatusRepeated, p.AppendedAt.UTC()
		if fresh {
			p.Status = StatusStored
		}
		result(i, p)
		i++
		return nil
	})
	if err != nil {
		return fmt.Errorf("appending events: %w", err)
	}
	return nil
}

// admitApp gives the app's shared scope a number, and says whose words a writer
// stores there.
func (s *Service) admitApp(ctx context.Context, db pg.DB, by *sealers, id ID, impersonal bool) error {
	found, err := s.Directory.Admit(ctx, db, by.k, []provenance.Want{{Scope: memd.Scope{App: id.App}, SourceTime: s.Clock.Now()}})
	if err != nil {
		return err
	}
	by.app = found[0].Subject
	if !impersonal {
		by.writer = by.of.Subject
	}
	return nil
}

// inEvent prefixes the field of an InvalidError with the event's position.
func inEvent(i int, err error) error {
	var bad *memd.InvalidError
	if errors.As(err, &bad) {
		return &memd.InvalidError{Field: fmt.Sprintf("events[%d].%s", i, bad.Field), Problem: bad.Problem}
	}
	return err
}
