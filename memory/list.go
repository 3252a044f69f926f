package memory

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

const sqlList = sqlMemoryColumns + sqlVisible + `
  AND (@kinds::smallint[] IS NULL OR m.kind = ANY (@kinds))
  AND (@from::timestamptz IS NULL OR coalesce(m.source_time, m.created_at) >= @from)
  AND (@to::timestamptz IS NULL OR coalesce(m.source_time, m.created_at) < @to)
  AND (m.created_at, m.memory_id) > (@after_time::timestamptz, @after_id::uuid)
ORDER BY m.created_at, m.memory_id LIMIT @limit`

const sqlFenceUp = `
SELECT EXISTS (SELECT FROM memd.fence_states f WHERE f.tenant_no = @tenant AND f.user_ref = @ref AND f.state IN (1, 2))`

// Page is one page of a List.
type Page struct {
	Memories []Memory
	// Next continues the list; "" at its end.
	Next string
	// Fenced says that the user is being erased; the page is empty then.
	Fenced bool
}

// List returns a scope's memories in the order in which they were added, at
// most size (1 to memd.MaxPageSize) from where token left off. The order does
// not change under updates; rows added while a list is read come at its end.
func (s *Service) List(ctx context.Context, t Tenant, scope memd.Scope, f Filter, size int, token string, vectors bool) (Page, error) {
	if err := validateScope(scope); err != nil {
		return Page{}, err
	}
	if err := validateFilter(scope, f); err != nil {
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
	err = s.again(ctx, t, func(k *shred.Keys) ([]memd.Ref, error) {
		out = Page{}
		sel, err := s.selection(ctx, k, scope, f)
		if err != nil {
			return nil, err
		}
		ref := provenance.RefOf(k, scope)
		return []memd.Ref{ref}, s.Pool.With(ctx, func(db pg.DB) error {
			err := db.QueryRow(ctx, sqlFenceUp, pg.Args{"tenant": t.No, "ref": ref[:]}).Scan(&out.Fenced)
			if err != nil || out.Fenced {
				return err
			}
			out, err = s.page(ctx, db, k, scope, f, &sel, size, after, vectors)
			return err
		})
	})
	return out, err
}

// sparseBatch is how many rows are read at a time, at least, when not all of
// them will match.
const sparseBatch = 256

// page reads until the page is full or the scope ends: sessions and metadata
// can only be compared after a row was read.
func (s *Service) page(ctx context.Context, db pg.DB, k *shred.Keys, scope memd.Scope, f Filter, sel *selection, size int, after cursor, vectors bool) (Page, error) {
	ref := provenance.RefOf(k, scope)
	var kinds []int16
	for _, kind := range f.Kinds {
		kinds = append(kinds, int16(kind))
	}
	limit := size + 1 // one more tells whether there is a next page
	if sel.bySession || len(sel.hashes) > 0 {
		limit = max(limit, sparseBatch)
	}
	var page Page
	for {
		rows, err := db.Query(ctx, sqlList, pg.Args{
			"tenant": k.Tenant(), "ref": ref[:], "now": s.Clock.Now(), "kinds": kinds,
			"from": optional(f.From), "to": optional(f.To),
			"after_time": after.created, "after_id": after.id, "limit": limit,
		})
		if err != nil {
			return page, fmt.Errorf("listing memories: %w", err)
		}
		batch, err := pgx.CollectRows(rows, scanMemory)
		if err != nil {
			return page, fmt.Errorf("listing memories: %w", err)
		}
		var all []memd.Contribution
		for _, r := range batch {
			all = append(all, firstSessions(r.contributions)...)
		}
		names, err := s.Directory.SessionIDs(ctx, db, k, all)
		if err != nil {
			return page, err
		}
		for _, r := range batch {
			if len(page.Memories) == size {
				page.Next = after.String()
				return page, nil
			}
			if sel.bySession && r.owner != sel.subject {
				return page, memd.ErrStale // the sessions are those of an earlier life
			}
			after = cursor{r.createdAt, r.id}
			m, err := s.opened(k, scope, r, names, vectors)
			if shreddedIsGone(err) == memd.ErrNotFound {
				continue
			} else if err != nil {
				return page, err
			}
			e := entryOf(r)
			e.hashes = hashes(m.Metadata)
			if sel.matches(&e) {
				page.Memories = append(page.Memories, m)
			}
		}
		if len(batch) < limit {
			return page, nil
		}
	}
}

// cursor is the last row that a page gave out.
type cursor struct {
	created time.Time
	id      uuid.UUID
}

// String encodes the cursor: a time and a row id, nothing of anybody's.
func (c cursor) String() string {
	b := binary.BigEndian.AppendUint64(nil, uint64(c.created.UnixMicro()))
	return base64.RawURLEncoding.EncodeToString(append(b, c.id[:]...))
}

func parseCursor(token string) (cursor, error) {
	if token == "" {
		return cursor{created: time.Unix(0, 0).UTC()}, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) != 8+16 {
		return cursor{}, invalid("page_token", "is not one that a List returned")
	}
	micros := int64(binary.BigEndian.Uint64(b))
	if micros < 0 || micros > maxMicros {
		return cursor{}, invalid("page_token", "is not one that a List returned")
	}
	c := cursor{time.UnixMicro(micros).UTC(), uuid.UUID(b[8:])}
	if c.String() != token { // the decoder overlooks line ends and spare bits
		return cursor{}, invalid("page_token", "is not one that a List returned")
	}
	return c, nil
}

// maxMicros is the end of the year 9999, which PostgreSQL still knows.
const maxMicros = 253402300799_000000
