package memory

import (
	"context"
	"errors"
	"fmt"
	"math"
	gosync "sync"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory/codes"
	"forgettable.dev/memd/memory/sketches"
)

// A scope too large for memory that has sketches is searched inside one transaction
// that reads from one snapshot: the directory says up to which transaction the
// sketches go, the rows that changed since are scanned, and of the others those whose
// sketches are nearest are read and ranked exactly. It answers with rows of that
// snapshot only, and never with too few: where the sketches do not fill top_k, every
// row is read.

// Batches of candidates: the first is leastWidth, or so many for each hit that is
// wanted, and each is so many times the one before, up to mostWidth in all.
const (
	leastWidth  = 200
	widthForHit = 20
	widening    = 4
	mostWidth   = 12_800
)

// sketched is what one search knows of a scope's sketches.
type sketched struct {
	table  sketches.Table
	sketch []byte // the query's

	seen  map[uuid.UUID]int // the rows that were looked at, and the place among the candidates
	bare  bool              // rows come without their text
	half  int               // the first place of the later half of the candidates
	later int               // how many of the later half were scored
	best  float32           // and the best of them
}

// met reports whether a row was looked at before.
func (c *sketched) met(id uuid.UUID) bool {
	place, known := c.seen[id]
	if known && place >= 0 {
		c.seen[id] = -1 - place
		return false
	}
	if !known {
		c.seen[id] = math.MinInt
	}
	return known
}

// scored is told of the candidates' scores.
func (c *sketched) scored(id uuid.UUID, score float32) {
	if place := -1 - c.seen[id]; c.bare && place >= c.half {
		c.later++
		c.best = max(c.best, score)
	}
}

const sqlHidden = `
SELECT h.contributor_no, h.contributor_session FROM memd.hidden_contributions h
WHERE h.tenant_no = @tenant AND h.owner_no = @owner`

// lookUp looks whether the scope has sketches, and if so asks for what changed since
// and for all that is hidden.
func (c *scanner) lookUp(ctx context.Context, db pg.DB, t Tenant, a *asked) error {
	table, ok, err := sketches.Find(ctx, db, t.No, c.v.key.ref, t.Dimension)
	if err != nil || !ok {
		return err
	}
	rows, err := db.Query(ctx, sqlHidden, pg.Args{"tenant": t.No, "owner": table.Owner})
	if err != nil {
		return fmt.Errorf("reading what is hidden: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var h memd.Contribution
		if err := rows.Scan(&h.Subject, &h.Session); err != nil {
			return fmt.Errorf("reading what is hidden: %w", err)
		}
		c.hides = append(c.hides, h)
	}
	if rows.Err() != nil {
		return fmt.Errorf("reading what is hidden: %w", rows.Err())
	}
	r, err := rotation(c.k, table.Owner, t.Dimension)
	if err != nil {
		return err
	}
	defer r.Zero()
	c.sketched = &sketched{table: table, sketch: codes.SketchOf(r.Encode(c.query)), seen: map[uuid.UUID]int{}}
	a.known, a.since = table.Owner, table.Since
	return nil
}

// widen ranks candidates until those that came last had no chance any more. With a
// filter that few rows pass, or a query that the sketches tell little of, that does not
// happen: then all rows are scanned.
func (c *scanner) widen(ctx context.Context, db pg.DB, t Tenant) error {
	s := c.sketched
	for width := max(leastWidth, widthForHit*c.top.k); ; width *= widening {
		width = min(width, mostWidth)
		ids, err := sketches.Nearest(ctx, db, s.table, s.sketch, width)
		if errors.Is(err, sketches.ErrGone) {
			return errOvertaken
		}
		if err != nil {
			return err
		}
		s.half, s.later, s.best = len(ids)/2, 0, float32(math.Inf(-1))
		var fresh []uuid.UUID
		for i, id := range ids {
			if _, known := s.seen[id]; !known {
				s.seen[id] = i
				fresh = append(fresh, id)
			}
		}
		if err := c.read(ctx, db, fresh); err != nil {
			return err
		}
		switch full := len(c.top.heap) == c.top.k; {
		case (full || c.top.min != nil) && s.later >= c.top.k && s.best < c.top.least():
			return nil
		case len(ids) == width && width < mostWidth:
			continue
		case full && !c.filtered():
			return nil
		}
		s.bare = false
		return sync(ctx, db, t.No, nil, []asked{{ref: c.v.key.ref}}, []sink{c})
	}
}

func (c *scanner) filtered() bool { return c.sel.narrows() || len(c.sel.hashes) > 0 }

// What has changed since the sketches was looked at already.
const sqlSketched = `
SELECT m.owner_no, m.memory_id, m.contributor_no, m.contributor_session, m.more, m.kind, m.month, m.source_time, m.created_at, m.updated_at,
  m.expires_at, m.version, m.space, m.dimension, m.vector_format,
  NULL::bytea, m.sealed_vector, CASE WHEN @metadata THEN m.sealed_metadata END, NULL::bytea
FROM unnest(@ids::uuid[]) AS u (id) CROSS JOIN LATERAL (
  SELECT m.*, CASE WHEN m.more_contributions > 0 THEN ARRAY(
      SELECT unnest(ARRAY[c.contributor_no, c.contributor_session]) FROM memd.memory_contributions c
      WHERE c.tenant_no = m.tenant_no AND c.memory_id = m.memory_id) END AS more
  FROM memd.memories m
  WHERE m.tenant_no = @tenant AND m.memory_id = u.id AND m.owner_no = @owner AND m.changed_xid < @since
  OFFSET 0) m`

// read gives candidates to the scanner.
func (c *scanner) read(ctx context.Context, db pg.DB, ids []uuid.UUID) error {
	s := c.sketched
	s.bare = true
	rows, err := db.Query(ctx, sqlSketched, pg.Args{
		"tenant": c.k.Tenant(), "owner": s.table.Owner, "since": s.table.Since, "ids": ids, "metadata": len(c.sel.hashes) > 0,
	})
	if err != nil {
		return fmt.Errorf("reading candidates: %w", err)
	}
	defer rows.Close()
	if err := checkFormat(rows); err != nil {
		return err
	}
	var r syncRow
	for rows.Next() {
		if err := r.memory(&columns{values: rows.RawValues()}); err != nil {
			return err
		}
		if err := c.row(&r.fetched); err != nil {
			return err
		}
	}
	if rows.Err() != nil {
		return fmt.Errorf("reading candidates: %w", rows.Err())
	}
	return nil
}

// size is about how many rows the scope has, and bytes if they were in memory: of
// sketches that is not known, and more than fits.
func (c *scanner) size() (rows int, bytes int64) {
	if c.sketched == nil {
		return c.seen, c.bytes
	}
	return int(c.sketched.table.Rows), math.MaxInt64
}

// How often a process says that it would use a scope's sketches, and that it does.
const (
	wishAgain = time.Minute
	wantAgain = 10 * time.Minute
)

// wishes is when this process last said so.
type wishes struct {
	mu   gosync.Mutex
	last map[residentKey]time.Time
}

// due reports whether it is time to say so again, and notes that it was.
func (w *wishes) due(key residentKey, now time.Time, every time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.last[key]) < every {
		return false
	}
	if w.last == nil || len(w.last) >= maxWishes {
		w.last = map[residentKey]time.Time{}
	}
	w.last[key] = now
	return true
}

// maxWishes bounds what is remembered.
const maxWishes = 1 << 16

// want says that the scope's sketches are wanted. That they cannot be asked for is no
// reason to fail a search that has its answer.
func (s *Service) want(ctx context.Context, t Tenant, key residentKey, inUse bool) {
	every := wishAgain
	if inUse {
		every = wantAgain
	}
	now := s.Clock.Now()
	if !s.wishes.due(key, now, every) {
		return
	}
	err := s.Pool.With(ctx, func(db pg.DB) error { return sketches.Want(ctx, db, t.No, key.ref, t.Dimension, now) })
	if err != nil {
		s.Logger.WarnContext(ctx, "sketches of a large scope could not be asked for", "error", err)
	}
}
