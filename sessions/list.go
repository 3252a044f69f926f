package sessions

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

const sqlReadable = `
  AND EXISTS (SELECT FROM memd.readable_sessions r
              WHERE r.tenant_no = h.tenant_no AND r.subject_no = h.subject_no AND r.session_no = h.session_no)`

// By the heads' key, whose numbers rise: another index that begins like it would
// be taken for it.
const sqlListUser = `
SELECT h.subject_no, h.session_no, h.month, h.created_at, h.updated_at, h.events
FROM memd.readable_subjects s JOIN memd.session_heads h ON h.tenant_no = s.tenant_no AND h.subject_no = s.subject_no
WHERE s.tenant_no = @tenant AND s.user_ref = @ref` + sqlReadable + `
  AND h.session_no > @after_session ORDER BY h.session_no LIMIT @limit`

const sqlListApp = `
SELECT h.subject_no, h.session_no, h.month, h.created_at, h.updated_at, h.events
FROM memd.session_heads h WHERE h.tenant_no = @tenant AND h.app = @app` + sqlReadable + `
  AND (h.created_at, h.subject_no, h.session_no) > (@after_time::timestamptz, @after_subject::bigint, @after_session::bigint)
ORDER BY h.created_at, h.subject_no, h.session_no LIMIT @limit`

const sqlFenceUp = `
SELECT EXISTS (SELECT FROM memd.fence_states f WHERE f.tenant_no = @tenant AND f.user_ref = @ref AND f.state IN (1, 2))`

// Page is one page of a List: sessions without state and events.
type Page struct {
	Sessions []Session
	// Next continues the list; "" at its end.
	Next string
	// Fenced says that the user is being erased; the page is empty then.
	Fenced bool
}

// List returns the sessions of a user, or with an empty user those of all users
// of an app, in the order in which they were created, at most size (1 to
// memd.MaxPageSize) from where token left off. Sessions created while a list is
// read come at its end. A user's session that was heard of before it was
// created, by an artifact or a memory, has its place from then.
func (s *Service) List(ctx context.Context, t Tenant, app, user string, size int, token string) (Page, error) {
	named := user
	if named == "" {
		named = "nobody in particular"
	}
	if err := validateUser(app, named); err != nil {
		return Page{}, err
	}
	if size < 1 || size > memd.MaxPageSize {
		return Page{}, invalid("page_size", "must be 1 to %d", memd.MaxPageSize)
	}
	after, err := parseCursor(token)
	if err != nil {
		return Page{}, err
	}
	var out Page
	err = s.again(ctx, t, nil, func(k *shred.Keys) error {
		return s.Pool.With(ctx, func(db pg.DB) (err error) {
			out, err = s.list(ctx, db, k, app, user, size, after)
			return err
		})
	})
	return out, err
}

type listed struct {
	Subject, Session memd.Number
	Month            memd.Month
	Created, Updated time.Time
	Events           int64
}

func (l listed) of() memd.Contribution {
	return memd.Contribution{Subject: l.Subject, Session: l.Session}
}

func (s *Service) list(ctx context.Context, db pg.DB, k *shred.Keys, app, user string, size int, after cursor) (Page, error) {
	var out Page
	sql := sqlListApp
	args := pg.Args{
		"tenant": k.Tenant(), "after_session": after.of.Session,
		"limit": size + 1, // one more tells whether there is a next page
	}
	if user == "" {
		args["app"], args["after_time"], args["after_subject"] = app, after.created, after.of.Subject
	} else {
		ref := provenance.RefOf(k, memd.Scope{App: app, UserID: user})
		err := db.QueryRow(ctx, sqlFenceUp, pg.Args{"tenant": k.Tenant(), "ref": ref[:]}).Scan(&out.Fenced)
		if err != nil || out.Fenced {
			return out, err
		}
		sql, args["ref"] = sqlListUser, ref[:]
	}
	rows, err := db.Query(ctx, sql, args)
	if err != nil {
		return out, fmt.Errorf("listing sessions: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[listed])
	if err != nil {
		return out, fmt.Errorf("listing sessions: %w", err)
	}
	if len(found) > size {
		found = found[:size]
		out.Next = cursor{found[size-1].Created, found[size-1].of()}.String()
	}
	out.Sessions, err = s.named(ctx, db, k, app, user, found)
	return out, err
}

// named gives sessions their ids. Whoever was erased since is left out, and so are
// sessions whose month has expired and that are yet to be deleted.
func (s *Service) named(ctx context.Context, db pg.DB, k *shred.Keys, app, user string, found []listed) ([]Session, error) {
	sessions, subjects := make([]memd.Contribution, len(found)), make([]memd.Number, len(found))
	for i, l := range found {
		sessions[i], subjects[i] = l.of(), l.Subject
	}
	ids, err := s.Directory.SessionIDs(ctx, db, k, sessions)
	if err != nil {
		return nil, err
	}
	users := map[memd.Number]memd.Scope{}
	if user == "" {
		if users, err = s.Directory.Scopes(ctx, db, k, subjects); err != nil {
			return nil, err
		}
	}
	out := make([]Session, 0, len(found))
	for _, l := range found {
		id, ok := ids[l.of()]
		whose := user
		if user == "" {
			whose = users[l.Subject].UserID
		}
		if !ok || whose == "" || k.Expired(memd.ClassContent, l.Month) {
			continue
		}
		out = append(out, Session{
			ID: ID{App: app, UserID: whose, SessionID: id}, CreatedAt: l.Created.UTC(), UpdatedAt: l.Updated.UTC(), EventCount: l.Events,
		})
	}
	return out, nil
}

// cursor is the last session that a page gave out.
type cursor struct {
	created time.Time
	of      memd.Contribution
}

// String encodes the cursor: a time and two numbers, nothing of anybody's.
func (c cursor) String() string {
	b := binary.BigEndian.AppendUint64(nil, uint64(c.created.UnixMicro()))
	b = binary.BigEndian.AppendUint64(b, uint64(c.of.Subject))
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64(b, uint64(c.of.Session)))
}

// maxMicros is the end of the year 9999, which PostgreSQL still knows.
const maxMicros = 253402300799_000000

func parseCursor(token string) (cursor, error) {
	if token == "" {
		return cursor{created: time.Unix(0, 0).UTC()}, nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != 24 {
		return cursor{}, invalid("page_token", "is not one that a List returned")
	}
	micros := int64(binary.BigEndian.Uint64(b))
	c := cursor{time.UnixMicro(micros).UTC(), memd.Contribution{
		Subject: memd.Number(binary.BigEndian.Uint64(b[8:])), Session: memd.Number(binary.BigEndian.Uint64(b[16:])),
	}}
	if micros < 0 || micros > maxMicros || !c.of.Subject.Valid() || !c.of.Session.Valid() || c.String() != token {
		return cursor{}, invalid("page_token", "is not one that a List returned")
	}
	return c, nil
}
