package provenance

import (
	"context"
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

const sqlNextSubject = `SELECT memd.next_subject_no(@tenant)`

const sqlInsertSubject = `
INSERT INTO memd.subjects (tenant_no, subject_no, app, kind, user_ref, sealed_user_id, first_source_time, admitted_at)
VALUES (@tenant, @subject, @app, @kind, @ref, @sealed, @time, @now)
ON CONFLICT DO NOTHING`

const sqlNextSessions = `SELECT memd.next_session_nos(@tenant, @subject, @n)`

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
	if new, err := r.admitSessions(ctx, db); err != nil {
		return nil, err
	} else if new {
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
	rows, err := db.Query(ctx, sqlFindSubjects, pgx.StrictNamedArgs{"tenant": r.k.Tenant(), "refs": bytesOf(missing)})
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
	rows, err := db.Query(ctx, sqlFindSessions, pgx.StrictNamedArgs{"tenant": r.k.Tenant(), "subjects": subjects, "refs": refs})
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
		var no memd.Number
		if err := db.QueryRow(ctx, sqlNextSubject, pgx.StrictNamedArgs{"tenant": r.k.Tenant()}).Scan(&no); err != nil {
			return false, fmt.Errorf("numbering a subject: %w", err)
		}
		sealed, err := r.k.SealUserID(no, w.Scope.UserID)
		if err != nil {
			return false, fmt.Errorf("sealing a user id: %w", err)
		}
		latest := w.SourceTime
		for j, other := range r.wants {
			if r.refs[j] == r.refs[i] && other.SourceTime.After(latest) {
				latest = other.SourceTime
			}
		}
		kind := kindUser
		if w.Scope.Shared() {
			kind = kindShared
		}
		_, err = db.Exec(ctx, sqlInsertSubject, pgx.StrictNamedArgs{
			"tenant": r.k.Tenant(), "subject": no, "app": w.Scope.App, "kind": kind,
			"ref": r.refs[i][:], "sealed": sealed, "time": optional(latest), "now": r.d.clock.Now(),
		})
		if err != nil {
			return false, fmt.Errorf("admitting a subject: %w", err)
		}
	}
	return len(done) > 0, nil
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
		var first memd.Number
		err := db.QueryRow(ctx, sqlNextSessions, pgx.StrictNamedArgs{
			"tenant": r.k.Tenant(), "subject": subject, "n": len(sessions),
		}).Scan(&first)
		if err != nil {
			return false, fmt.Errorf("numbering sessions: %w", err)
		}
		var numbers []memd.Number
		var refs, sealed [][]byte
		var times []*time.Time
		for ref, w := range sessions {
			no := first + memd.Number(len(numbers))
			s, err := r.k.SealSessionID(subject, no, w.Session)
			if err != nil {
				return false, fmt.Errorf("sealing a session id: %w", err)
			}
			numbers, refs, sealed = append(numbers, no), append(refs, ref[:]), append(sealed, s)
			times = append(times, optional(w.SourceTime))
		}
		_, err = db.Exec(ctx, sqlInsertSessions, pgx.StrictNamedArgs{
			"tenant": r.k.Tenant(), "subject": subject, "numbers": numbers, "refs": refs,
			"sealed": sealed, "times": times, "now": r.d.clock.Now(),
		})
		if err != nil {
			return false, fmt.Errorf("admitting sessions: %w", err)
		}
	}
	return len(bySubject) > 0, nil
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
