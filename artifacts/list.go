package artifacts

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// The names of a session and the user's own together, in the order in which
// they were made: that order holds from page to page, whatever is added or
// deleted meanwhile. Names that have a complete version only: all have, since
// both are made in one transaction.
const sqlListNames = `
SELECT a.subject_no, a.session_no, a.artifact_id, a.sealed_name, a.month, a.created_at, coalesce((
  SELECT max(v.version) FROM memd.artifact_versions v WHERE v.tenant_no = a.tenant_no AND v.subject_no = a.subject_no
    AND v.session_no = a.session_no AND v.artifact_id = a.artifact_id), 0)
FROM memd.artifact_owners o
JOIN memd.artifacts a ON a.tenant_no = o.tenant_no AND a.subject_no = o.subject_no AND a.session_no = o.session_no
WHERE o.tenant_no = @tenant AND o.user_ref = @ref AND o.subject_no = @subject AND o.session_no = ANY (@sessions::bigint[])
  AND (a.created_at, a.artifact_id) > (@after_time::timestamptz, @after_id::uuid)
ORDER BY a.created_at, a.artifact_id LIMIT @limit`

const sqlListVersions = sqlVersionColumns + sqlVisibleVersions + ` AND v.version > @after ORDER BY v.version LIMIT @limit`

// Name is one artifact of a List.
type Name struct {
	// Name with its UserPrefix if it is the user's.
	Name string
	// Latest is the highest version number.
	Latest int64
	// CreatedAt is when the name's first version was complete.
	CreatedAt time.Time
}

// Names is one page of a List.
type Names struct {
	Names []Name
	// Next continues the list; "" at its end.
	Next string
	// Fenced says that the user is being erased; the page is empty then.
	Fenced bool
}

// List returns the names of the owner's session, and the user's own with every
// session and with none, oldest first, at most size (1 to memd.MaxPageSize) from
// where token left off. A session that is not there has none of its own.
func (s *Service) List(ctx context.Context, t Tenant, o Owner, size int, token string) (Names, error) {
	if err := validateOwner(o); err != nil {
		return Names{}, err
	}
	if size < 1 || size > memd.MaxPageSize {
		return Names{}, invalid("page_size", "must be 1 to %d", memd.MaxPageSize)
	}
	after, err := parseCursor(token)
	if err != nil {
		return Names{}, err
	}
	var out Names
	err = s.again(ctx, t, o, func(k *shred.Keys) error {
		return s.Pool.With(ctx, func(db pg.DB) (err error) {
			out, err = listNames(ctx, db, k, o, size, after)
			return err
		})
	})
	return out, err
}

func listNames(ctx context.Context, db pg.DB, k *shred.Keys, o Owner, size int, after cursor) (Names, error) {
	var out Names
	ref := userRef(k, o)
	if err := db.QueryRow(ctx, sqlFenceUp, pg.Args{"tenant": k.Tenant(), "ref": ref[:]}).Scan(&out.Fenced); err != nil || out.Fenced {
		return out, err
	}
	found, err := places(ctx, db, k, o, true)
	if err != nil || len(found) == 0 {
		return out, err
	}
	var sessions []memd.Number
	for _, p := range found {
		sessions = append(sessions, p.Session)
	}
	rows, err := db.Query(ctx, sqlListNames, pg.Args{
		"tenant": k.Tenant(), "ref": ref[:], "subject": found[0].Subject, "sessions": sessions,
		"after_time": after.created, "after_id": after.id, "limit": size + 1,
	})
	if err != nil {
		return out, fmt.Errorf("listing artifacts: %w", err)
	}
	var p place
	var id uuid.UUID
	var sealed []byte
	var created time.Time
	var latest int64
	var last cursor
	_, err = pgx.ForEachRow(rows, []any{&p.Subject, &p.Session, &id, &sealed, &p.month, &created, &latest}, func() error {
		if len(out.Names) == size {
			out.Next = last.String()
			return nil
		}
		last = cursor{created, id}
		name, err := openName(k, p, id, sealed)
		if errors.Is(err, memd.ErrShredded) {
			return nil
		}
		out.Names = append(out.Names, Name{Name: name, Latest: latest, CreatedAt: created.UTC()})
		return err
	})
	if err != nil {
		return out, fmt.Errorf("listing artifacts: %w", err)
	}
	return out, nil
}

func openName(k *shred.Keys, p place, id uuid.UUID, sealed []byte) (string, error) {
	sealer, err := p.content(k)
	if err != nil {
		return "", err
	}
	name, err := sealer.Open(sealed, shred.AADArtifactName(k.Tenant(), p.Contribution, id))
	return string(name), err
}

// ListVersions describes the versions of a name, by number, at most size (1 to
// memd.MaxPageSize) of those above after; Latest (-1) begins. It returns none
// for what is not there, is another's, or belongs to somebody who is being
// erased.
func (s *Service) ListVersions(ctx context.Context, t Tenant, o Owner, name string, size int, after int64) ([]Version, error) {
	if err := validateName(o, name); err != nil {
		return nil, err
	}
	if size < 1 || size > memd.MaxPageSize {
		return nil, invalid("page_size", "must be 1 to %d", memd.MaxPageSize)
	}
	var out []Version
	err := s.again(ctx, t, o, func(k *shred.Keys) error {
		out = nil
		return s.Pool.With(ctx, func(db pg.DB) (err error) {
			out, err = listVersions(ctx, db, k, o, name, size, after)
			return err
		})
	})
	if errors.Is(shreddedIsGone(err), memd.ErrNotFound) {
		return nil, nil
	}
	return out, err
}

func listVersions(ctx context.Context, db pg.DB, k *shred.Keys, o Owner, name string, size int, after int64) ([]Version, error) {
	p, err := placeOf(ctx, db, k, o, name)
	if err != nil {
		return nil, err
	}
	digest, err := p.digest(k, name)
	if err != nil {
		return nil, err
	}
	ref := userRef(k, o)
	rows, err := db.Query(ctx, sqlListVersions, pg.Args{
		"tenant": k.Tenant(), "ref": ref[:], "subject": p.Subject, "session": p.Session, "digest": digest, "after": after, "limit": size,
	})
	if err != nil {
		return nil, fmt.Errorf("listing versions: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanStored)
	if err != nil {
		return nil, fmt.Errorf("listing versions: %w", err)
	}
	out := make([]Version, len(found))
	for i := range found {
		if out[i], _, err = found[i].open(k, name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// cursor is the last name that a page gave out, without the name.
type cursor struct {
	created time.Time
	id      uuid.UUID
}

// String encodes the cursor: a time and a row id, nothing of anybody's.
func (c cursor) String() string {
	b := binary.BigEndian.AppendUint64(nil, uint64(c.created.UnixMicro()))
	return base64.RawURLEncoding.EncodeToString(append(b, c.id[:]...))
}

// maxMicros is the end of the year 9999, which PostgreSQL still knows.
const maxMicros = 253402300799_000000

func parseCursor(token string) (cursor, error) {
	if token == "" {
		return cursor{created: time.Unix(0, 0).UTC()}, nil
	}
	bad := invalid("page_token", "is not one that this list gave out")
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) != 8+16 {
		return cursor{}, bad
	}
	micros := int64(binary.BigEndian.Uint64(b))
	if micros < 0 || micros > maxMicros {
		return cursor{}, bad
	}
	c := cursor{time.UnixMicro(micros).UTC(), uuid.UUID(b[8:])}
	if c.String() != token { // the decoder overlooks line ends and spare bits
		return cursor{}, bad
	}
	return c, nil
}
