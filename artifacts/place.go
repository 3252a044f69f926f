package artifacts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

// No row: nobody of that name, or a fence is up, or the session was erased.
const sqlPlaces = `
SELECT o.subject_no, o.session_no FROM memd.artifact_owners o
WHERE o.tenant_no = @tenant AND o.user_ref = @ref
  AND (o.session_ref = @session::bytea OR (@own AND o.session_no = 1099511627777))
ORDER BY o.session_no`

const sqlContentMonth = `
SELECT month FROM memd.content_months WHERE tenant_no = @tenant AND subject_no = @subject AND session_no = @session`

const sqlFenceUp = `
SELECT EXISTS (SELECT FROM memd.fence_states f WHERE f.tenant_no = @tenant AND f.user_ref = @ref AND f.state IN (1, 2))`

// userRef is the keyed digest by which the owner's user is looked up.
func userRef(k *shred.Keys, o Owner) memd.Ref { return k.UserRef(o.App, o.UserID) }

// places returns where the owner's artifacts are: with own, the user's own
// scope, and with a session id the session. What may not be read is missing.
func places(ctx context.Context, db pg.DB, k *shred.Keys, o Owner, own bool) ([]place, error) {
	ref := userRef(k, o)
	var session []byte
	if o.SessionID != "" {
		sref := k.SessionRef(ref, o.SessionID)
		session = sref[:]
	}
	rows, err := db.Query(ctx, sqlPlaces, pg.Args{"tenant": k.Tenant(), "ref": ref[:], "session": session, "own": own})
	if err != nil {
		return nil, fmt.Errorf("finding an owner: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p place, err error) {
		err = row.Scan(&p.Subject, &p.Session)
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("finding an owner: %w", err)
	}
	return out, nil
}

// placeOf returns where a name is kept, or memd.ErrNotFound.
func placeOf(ctx context.Context, db pg.DB, k *shred.Keys, o Owner, name string) (place, error) {
	own := ofUser(name)
	if own {
		o.SessionID = "" // plays no part, not even by being erased
	}
	found, err := places(ctx, db, k, o, own)
	if err != nil {
		return place{}, err
	}
	if len(found) != 1 {
		return place{}, memd.ErrNotFound
	}
	return found[0], nil
}

// admit returns where a name is to be kept, and enters the user and the session
// into the directory if they are new.
func (s *Service) admit(ctx context.Context, db pg.DB, k *shred.Keys, o Owner, name string, f File, now time.Time) (place, error) {
	want := provenance.Want{Scope: memd.Scope{App: o.App, UserID: o.UserID}, Session: o.SessionID, SourceTime: f.SourceTime}
	since := now
	if !f.SourceTime.IsZero() {
		since = f.SourceTime
	}
	if ofUser(name) {
		want.Session = ""
	}
	found, err := s.Directory.Admit(ctx, db, k, []provenance.Want{want})
	if err != nil {
		return place{}, err
	}
	p := place{Contribution: found[0]}
	if p.Session != memd.OwnScope {
		err := db.QueryRow(ctx, sqlContentMonth, pg.Args{"tenant": k.Tenant(), "subject": p.Subject, "session": p.Session}).Scan(&p.month)
		if errors.Is(err, pgx.ErrNoRows) {
			return place{}, memd.ErrStale
		} else if err != nil {
			return place{}, fmt.Errorf("dating a session: %w", err)
		}
		return p, nil
	}
	p.month, err = memd.MonthOf(since)
	return p, err
}
