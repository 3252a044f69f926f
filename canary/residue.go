package canary

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// contentTables are those with sealed content, whose files are searched, with
// their TOAST tables and indexes. Partitions of events come with their parent.
var contentTables = []string{
	"memories", "session_events", "session_state", "user_state", "app_state", "artifacts", "artifact_versions", "artifact_chunks",
}

const sqlRelations = `
SELECT r.oid::bigint, r.oid::regclass::text, t.relname, r.relkind::text, pg_relation_size(r.oid)
FROM pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace AND n.nspname = 'memd'
LEFT JOIN pg_inherits h ON h.inhrelid = t.oid LEFT JOIN pg_class p ON p.oid = h.inhparent
CROSS JOIN LATERAL (
  SELECT t.oid UNION SELECT t.reltoastrelid WHERE t.reltoastrelid <> 0
  UNION SELECT i.indexrelid FROM pg_index i WHERE i.indrelid IN (t.oid, t.reltoastrelid)) AS x (oid)
JOIN pg_class r ON r.oid = x.oid
WHERE t.relkind = 'r' AND (t.relname = ANY (@tables) OR p.relname = ANY (@tables)) AND pg_relation_size(r.oid) > 0
ORDER BY t.relname, r.oid`

const sqlPageInspect = `SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pageinspect')`

// Pages as they are in the server's buffers, or, without the extension, as they
// are in the files after a checkpoint.
const (
	sqlInspect = `
SELECT string_agg(get_raw_page(@name, 'main', g::bigint), ''::bytea ORDER BY g) FROM generate_series(@first::bigint, @last::bigint) AS g`
	sqlCheckpoint = `CHECKPOINT`
	sqlReadFile   = `
SELECT coalesce(pg_read_binary_file(pg_relation_filepath(@oid::bigint::oid::regclass) || @segment, @offset, @bytes, true), '')`
)

// sqlPageOf finds the page of one row: to come by it takes long in a large table.
const sqlPageOf = `SELECT (ctid::text::point)[0]::bigint FROM memd.memories WHERE tenant_no = @tenant AND memory_id = @id`

const (
	pageBytes    = 8192
	pagesAtOnce  = 128
	segmentPages = 1 << 30 / pageBytes
	// denied: no right to read pages.
	denied = "42501"
)

// errDenied: the connection may not read raw pages.
var errDenied = errors.New("no right to read raw pages")

type relation struct {
	oid   int64
	name  string // as the server spells it
	table string // whose it is
	kind  string // r heap, t TOAST, i index
	size  int64
}

func (r relation) ref(n int64) memd.RowRef {
	what := map[string]string{"r": "heap", "t": "toast", "i": "index"}[r.kind]
	return memd.RowRef{Table: r.table, ID: what + "/" + strconv.FormatInt(n, 10)}
}

// residue is what raw pages still hold.
type residue struct {
	hits          int64
	pages, unread int64
	where         []memd.RowRef // by relation, with how many
}

// searchPages looks for nonces in the raw pages of the content's tables: in all
// that the budget allows, or until any is found, and then first in the page of a
// memory, if one is given.
func (v *Verifier) searchPages(ctx context.Context, e *exam, nonces []byte, any bool, memory ...uuid.UUID) (residue, error) {
	var out residue
	set := newNonceSet(nonces)
	err := v.c.Pages.With(ctx, func(db pg.DB) error {
		var inspect bool
		if err := db.QueryRow(ctx, sqlPageInspect).Scan(&inspect); err != nil {
			return err
		}
		if !inspect {
			if _, err := db.Exec(ctx, sqlCheckpoint); err != nil {
				return fmt.Errorf("writing pages out: %w", err)
			}
		}
		rows, err := db.Query(ctx, sqlRelations, pg.Args{"tables": contentTables})
		if err != nil {
			return err
		}
		relations, err := pgx.CollectRows(rows, func(c pgx.CollectableRow) (r relation, err error) {
			return r, c.Scan(&r.oid, &r.name, &r.table, &r.kind, &r.size)
		})
		if err != nil {
			return err
		}
		for _, r := range relations {
			if len(memory) == 0 || r.table != "memories" || r.kind != "r" {
				continue
			}
			var page int64
			err := db.QueryRow(ctx, sqlPageOf, pg.Args{"tenant": e.Tenant, "id": memory[0]}).Scan(&page)
			if err != nil && !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			n, _, err := searchRelation(ctx, db, r, inspect, set, page, 1, true)
			if err != nil || n > 0 {
				out.hits += n
				return err
			}
		}
		left := v.budget(e).PageBytes / pageBytes
		for _, r := range relations {
			n, read, err := searchRelation(ctx, db, r, inspect, set, 0, left, any)
			if err != nil || any && n > 0 {
				out.hits += n
				return err
			}
			left -= read
			out.pages += read
			out.unread += max(0, r.size/pageBytes-read)
			out.hits += n
			if n > 0 {
				out.where = append(out.where, r.ref(n))
			}
		}
		return nil
	})
	if pg.SQLState(err) == denied {
		err = errDenied
	}
	if err != nil && !errors.Is(err, errDenied) {
		err = fmt.Errorf("reading raw pages: %w", err)
	}
	return out, err
}

// searchRelation looks at no more pages than limit, beginning with one of them.
func searchRelation(ctx context.Context, db pg.DB, r relation, inspect bool, set *nonceSet, first, limit int64, any bool) (hits, read int64, err error) {
	pages := min(r.size/pageBytes, first+limit)
	for first < pages && (!any || hits == 0) {
		last := min(first+pagesAtOnce, pages, first-first%segmentPages+segmentPages)
		var raw []byte
		if inspect {
			err = db.QueryRow(ctx, sqlInspect, pg.Args{"name": r.name, "first": first, "last": last - 1}).Scan(&raw)
		} else {
			segment := ""
			if n := first / segmentPages; n > 0 {
				segment = "." + strconv.FormatInt(n, 10)
			}
			err = db.QueryRow(ctx, sqlReadFile, pg.Args{
				"oid": r.oid, "segment": segment, "offset": first % segmentPages * pageBytes, "bytes": (last - first) * pageBytes,
			}).Scan(&raw)
		}
		if err != nil {
			return hits, read, err
		}
		hits += set.count(raw)
		read += last - first
		first = last
	}
	return hits, read, nil
}

// nonceSet finds any of many nonces in one pass.
type nonceSet struct {
	filter [1 << 15]uint64 // by the first four bytes
	all    map[[nonceBytes]byte]bool
}

func newNonceSet(nonces []byte) *nonceSet {
	s := &nonceSet{all: make(map[[nonceBytes]byte]bool, len(nonces)/nonceBytes)}
	for ; len(nonces) >= nonceBytes; nonces = nonces[nonceBytes:] {
		s.all[[nonceBytes]byte(nonces)] = true
		bit := slot(nonces)
		s.filter[bit>>6] |= 1 << (bit & 63)
	}
	return s
}

func slot(b []byte) uint32 { return binary.LittleEndian.Uint32(b) * 2654435761 >> 11 }

func (s *nonceSet) count(raw []byte) (n int64) {
	for i := 0; i+nonceBytes <= len(raw); i++ {
		bit := slot(raw[i:])
		if s.filter[bit>>6]&(1<<(bit&63)) != 0 && s.all[[nonceBytes]byte(raw[i:])] {
			n++
		}
	}
	return n
}

// drawResidue shows that the search finds nonces while their rows are there.
func (v *Verifier) drawResidue(ctx context.Context, e *exam, d *drawn, before map[string]int64) error {
	if v.c.Pages == nil || len(d.Nonces) == 0 {
		return nil
	}
	memories, err := v.targetMemories(ctx, e)
	if err != nil {
		return err
	}
	found, err := v.searchPages(ctx, e, d.Nonces, true, memories...)
	if errors.Is(err, errDenied) {
		return nil
	}
	before[CheckResidue] = found.hits
	return err
}

// checkResidue counts what is left of deleted rows in raw pages: sealed bytes
// whose key is gone, until a vacuum and a rewrite. That is a number to be told,
// not a failure.
func (v *Verifier) checkResidue(ctx context.Context, e *exam, before map[string]int64, d *drawn) (memd.Check, error) {
	began := time.Now()
	switch {
	case v.c.Pages == nil:
		return notRun(CheckResidue, reasonNotSet, before[CheckResidue]), nil
	case d == nil || len(d.Nonces) == 0:
		return notRun(CheckResidue, reasonNothing, before[CheckResidue]), nil
	}
	found, err := v.searchPages(ctx, e, d.Nonces, false)
	if errors.Is(err, errDenied) {
		return notRun(CheckResidue, reasonNoRight, before[CheckResidue]), nil
	}
	if err != nil {
		return memd.Check{}, err
	}
	c := judge(CheckResidue, before[CheckResidue], found.hits, reasonResidue)
	switch {
	case c.Result == memd.ResultFail:
		c.Result = memd.ResultReview
	case c.Result == memd.ResultPass && found.unread > 0:
		c.Result, c.Reason = memd.ResultNotRun, reasonBudget
	}
	c.Rows, c.Scanned, c.Unscanned, c.Duration = found.where, found.pages, found.unread, time.Since(began)
	return c, nil
}
