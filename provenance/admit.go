package provenance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Want names one contributor of a write: a subject, and a session of it or ""
// for the subject's own scope.
type Want struct {
	Scope   memd.Scope
	Session string
	// SourceTime is when the words were spoken; zero when not given. A user who
	// was once erased needs it to be admitted again, and for a session never seen.
	SourceTime time.Time
}

const sqlFindSubjects = `
SELECT user_ref, subject_no FROM memd.subjects
WHERE tenant_no = @tenant AND user_ref = ANY (@refs) AND retired_at IS NULL`

const sqlFindSessions = `
SELECT x.subject_no, x.session_ref, x.session_no, x.state
FROM unnest(@subjects::bigint[], @refs::bytea[]) AS w (subject_no, session_ref)
JOIN memd.sessions x
  ON x.tenant_no = @tenant AND x.subject_no = w.subject_no AND x.session_ref = w.session_ref`

// No row when somebody was quicker: no number is lost then.
const sqlNextSubject = `
SELECT memd.next_subject_no(@tenant) WHERE NOT EXISTS (
  SELECT FROM memd.subjects s WHERE s.tenant_no = @tenant AND s.user_ref = @ref AND s.retired_at IS NULL)`

const sqlInsertSubject = `
INSERT INTO memd.subjects (tenant_no, subject_no, app, kind, user_ref, sealed_user_id, first_source_time, admitted_at)
VALUES (@tenant, @subject, @app, @kind, @ref, @sealed, @time, @now)
ON CONFLICT DO NOTHING`

// No row when one of them is there already.
const sqlNextSessions = `
SELECT memd.next_session_nos(@tenant, @subject, cardinality(@refs::bytea[])) WHERE NOT EXISTS (
  SELECT FROM memd.sessions x WHERE x.tenant_no = @tenant AND x.subject_no = @subject AND x.session_ref = ANY (@refs::bytea[]))`

const sqlInsertSessions = `
INSERT INTO memd.sessions (tenant_no, subject_no, session_no, session_ref, sealed_id, first_source_time, admitted_at)
SELECT @tenant, @subject, w.session_no, w.session_ref, w.sealed_id, w.first_source_time, @now
FROM unnest(@numbers::bigint[], @refs::bytea[], @sealed::bytea[], @times::timestamptz[])
  AS w (session_no, session_ref, sealed_id, first_source_time)
ORDER BY w.session_ref
ON CONFLICT DO NOTHING`

// Subject kinds, as stored.
const (
	kindUser   = 1
	kindShared = 2
)

// admitAttempts is how often the sessions of a batch are looked for again when
// others admit some of them at the same time.
const admitAttempts = 3

// Find returns the contribution of each want, with zero for a subject or a
// session that was never seen or was forgotten. It writes nothing.
func (d *Directory) Find(ctx context.Context, db pg.DB, k Keys, wants []Want) ([]memd.Contribution, error) {
	r := d.resolver(k, wants)
	r.reading = true
	if err := r.subjects(ctx, db); err != nil {
		return nil, err
	}
	if err := r.sessions(ctx, db); err != nil {
		return nil, err
	}
	return r.found, nil
}

// Admit returns the contribution of each want and enters whoever is new into
// the directory first. It is safe to repeat, and safe for two at once: both
// get the same numbers.
//
// Errors: memd.ErrFenced, memd.ErrSessionForgotten, memd.ErrErasedBefore,
// memd.ErrSourceTimeRequired, memd.ErrTenantInactive, all from the database's
// guard, and a database's.
func (d *Directory) Admit(ctx context.Context, db pg.DB, k Keys, wants []Want) ([]memd.Contribution, error) {
	r := d.resolver(k, wants)
	if err := r.subjects(ctx, db); err != nil {
		return nil, err
	}
	if new, err := r.admitSubjects(ctx, db); err != nil {
		return nil, err
	} else if new {
		if err := r.subjects(ctx, db); err != nil {
			return nil, err
		}
	}
	if err := r.sessions(ctx, db); err != nil {
		return nil, err
	}
	for range admitAttempts {
		if new, err := r.admitSessions(ctx, db); err != nil {
			return nil, err
		} else if !new {
			break
		}
		if err := r.sessions(ctx, db); err != nil {
			return nil, err
		}
	}
	for _, c := range r.found {
		if !c.Subject.Valid() || !c.Session.Valid() {
			return nil, fmt.Errorf("admitting a subject: %w", memd.ErrStale)
		}
	}
	return r.found, nil
}

// resolver is one Find or Admit under way.
type resolver struct {
	d     *Directory
	k     Keys
	wants []Want
	refs  []memd.Ref // of the subject of each want
	srefs []memd.Ref // of its session; zero for the own scope
	found []memd.Contribution

	reading bool // a forgotten session is as good as none
}

func (d *Directory) resolver(k Keys, wants []Want) *resolver {
	r := &resolver{
		d: d, k: k, wants: wants,
		refs:  make([]memd.Ref, len(wants)),
		srefs: make([]memd.Ref, len(wants)),
		found: make([]memd.Contribution, len(wants)),
	}
	for i, w := range wants {
		r.refs[i] = RefOf(k, w.Scope)
		if w.Session == "" {
			r.found[i].Session = memd.OwnScope
		} else {
			r.srefs[i] = k.SessionRef(r.refs[i], w.Session)
		}
	}
	return r
}

// subjects fills in the subject numbers that the cache or the table knows.
func (r *resolver) subjects(ctx context.Context, db pg.DB) error {
	missing := map[memd.Ref]bool{}
	for i, ref := range r.refs {
		if no, ok := r.d.subjects.Get(subjectKey{r.k.Tenant(), ref}); ok {
			r.found[i].Subject = no
		} else {
			missing[ref] = true
		}
	}
	if len(missing) == 0 {
		return nil
	}
	rows, err := db.Query(ctx, sqlFindSubjects, pg.Args{"tenant": r.k.Tenant(), "refs": bytesOf(missing)})
	if err != nil {
		return fmt.Errorf("finding subjects: %w", err)
	}
	var ref []byte
	var no memd.Number
	_, err = pgx.ForEachRow(rows, []any{&ref, &no}, func() error {
		key := subjectKey{r.k.Tenant(), memd.Ref(ref)}
		r.d.subjects.Add(key, no)
		for i := range r.refs {
			if r.refs[i] == key.ref {
				r.found[i].Subject = no
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("finding subjects: %w", err)
	}
	return nil
}

// sessions fills in the session numbers that the cache or the table knows.
func (r *resolver) sessions(ctx context.Context, db pg.DB) error {
	var subjects []memd.Number
	var refs [][]byte
	for i, c := range r.found {
		if c.Session.Valid() || !c.Subject.Valid() {
			continue
		}
		if no, ok := r.d.sessions.Get(sessionKey{r.k.Tenant(), c.Subject, r.srefs[i]}); ok {
			r.found[i].Session = no
			continue
		}
		subjects = append(subjects, c.Subject)
		refs = append(refs, r.srefs[i][:])
	}
	if len(refs) == 0 {
		return nil
	}
	rows, err := db.Query(ctx, sqlFindSessions, pg.Args{"tenant": r.k.Tenant(), "subjects": subjects, "refs": refs})
	if err != nil {
		return fmt.Errorf("finding sessions: %w", err)
	}
	var subject, no memd.Number
	var ref []byte
	var state int16
	_, err = pgx.ForEachRow(rows, []any{&subject, &ref, &no, &state}, func() error {
		switch {
		case state != stateLive && r.reading:
			return nil
		case state != stateLive:
			return memd.ErrSessionForgotten
		}
		key := sessionKey{r.k.Tenant(), subject, memd.Ref(ref)}
		r.d.sessions.Add(key, no)
		for i := range r.found {
			if r.found[i].Subject == subject && r.srefs[i] == key.ref {
				r.found[i].Session = no
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("finding sessions: %w", err)
	}
	return nil
}

func (r *resolver) admitSubjects(ctx context.Context, db pg.DB) (bool, error) {
	done := map[memd.Ref]bool{}
	for i, w := range r.wants {
		if r.found[i].Subject.Valid() || done[r.refs[i]] {
			continue
		}
		done[r.refs[i]] = true
		latest := w.SourceTime
		for j, other := range r.wants {
			if r.refs[j] == r.refs[i] && other.SourceTime.After(latest) {
				latest = other.SourceTime
			}
		}
		if err := r.admitSubject(ctx, db, w.Scope, r.refs[i], latest); err != nil {
			return false, err
		}
	}
	return len(done) > 0, nil
}

func (r *resolver) admitSubject(ctx context.Context, db pg.DB, scope memd.Scope, ref memd.Ref, latest time.Time) error {
	lock := r.d.admitting(ref)
	lock.Lock()
	defer lock.Unlock()
	var no memd.Number
	err := db.QueryRow(ctx, sqlNextSubject, pg.Args{"tenant": r.k.Tenant(), "ref": ref[:]}).Scan(&no)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("numbering a subject: %w", err)
	}
	sealed, err := r.k.SealUserID(no, scope.UserID)
	if err != nil {
		return fmt.Errorf("sealing a user id: %w", err)
	}
	kind := kindUser
	if scope.Shared() {
		kind = kindShared
	}
	_, err = db.Exec(ctx, sqlInsertSubject, pg.Args{
		"tenant": r.k.Tenant(), "subject": no, "app": scope.App, "kind": kind,
		"ref": ref[:], "sealed": sealed, "time": optional(latest), "now": r.d.clock.Now(),
	})
	if err != nil {
		return fmt.Errorf("admitting a subject: %w", err)
	}
	return nil
}

func (r *resolver) admitSessions(ctx context.Context, db pg.DB) (bool, error) {
	bySubject := map[memd.Number]map[memd.Ref]Want{}
	for i, w := range r.wants {
		c := r.found[i]
		if c.Session.Valid() || !c.Subject.Valid() {
			continue
		}
		if bySubject[c.Subject] == nil {
			bySubject[c.Subject] = map[memd.Ref]Want{}
		}
		// The latest time of the batch: the session is as young as its youngest word.
		if have, ok := bySubject[c.Subject][r.srefs[i]]; !ok || w.SourceTime.After(have.SourceTime) {
			bySubject[c.Subject][r.srefs[i]] = w
		}
	}
	for subject, sessions := range bySubject {
		if err := r.admitSessionsOf(ctx, db, subject, sessions); err != nil {
			return false, err
		}
	}
	return len(bySubject) > 0, nil
}

func (r *resolver) admitSessionsOf(ctx context.Context, db pg.DB, subject memd.Number, sessions map[memd.Ref]Want) error {
	refs := make([][]byte, 0, len(sessions))
	wants := make([]Want, 0, len(sessions))
	for ref, w := range sessions {
		refs, wants = append(refs, ref[:]), append(wants, w)
	}
	lock := r.d.admitting(memd.Ref{byte(subject)})
	lock.Lock()
	defer lock.Unlock()
	var first memd.Number
	err := db.QueryRow(ctx, sqlNextSessions, pg.Args{"tenant": r.k.Tenant(), "subject": subject, "refs": refs}).Scan(&first)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("numbering sessions: %w", err)
	}
	numbers, sealed, times := make([]memd.Number, len(refs)), make([][]byte, len(refs)), make([]*time.Time, len(refs))
	for i, w := range wants {
		numbers[i], times[i] = first+memd.Number(i), optional(w.SourceTime)
		if sealed[i], err = r.k.SealSessionID(subject, numbers[i], w.Session); err != nil {
			return fmt.Errorf("sealing a session id: %w", err)
		}
	}
	_, err = db.Exec(ctx, sqlInsertSessions, pg.Args{
		"tenant": r.k.Tenant(), "subject": subject, "numbers": numbers, "refs": refs,
		"sealed": sealed, "times": times, "now": r.d.clock.Now(),
	})
	if err != nil {
		return fmt.Errorf("admitting sessions: %w", err)
	}
	return nil
}

func bytesOf(refs map[memd.Ref]bool) [][]byte {
	out := make([][]byte, 0, len(refs))
	for r := range refs {
		out = append(out, r[:])
	}
	return out
}

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
