package memory

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/viterin/vek/vek32"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory/codes"
)

// A coded scope is searched inside one transaction that reads from one snapshot:
// what changed is read first, then the codes say which rows may be among the
// nearest, and those rows' vectors are read, opened and ranked exactly.

// The ids are looked up one by one, whatever the planner believes of them. A row
// that is short comes with all that a hit needs: reading the hits once more would
// take longer than sending some bytes of those that become none.
const sqlCandidates = `
SELECT u.at, m.version, m.dimension, m.vector_format, m.sealed_vector, CASE WHEN m.short OR @metadata THEN m.sealed_metadata END,
  m.short, CASE WHEN m.short THEN m.sealed_text END, m.source_time, m.created_at, m.updated_at, m.expires_at
FROM unnest(@ids::uuid[]) WITH ORDINALITY AS u (id, at) CROSS JOIN LATERAL (
  SELECT c.*, coalesce(octet_length(c.sealed_text), 0) + coalesce(octet_length(c.sealed_metadata), 0) <= 512 AS short
  FROM memd.memories c WHERE c.tenant_no = @tenant AND c.memory_id = u.id
  OFFSET 0) m`

const sqlDress = `
SELECT m.memory_id, m.sealed_text, m.sealed_metadata, m.source_time, m.created_at, m.updated_at, m.expires_at FROM memd.memories m
WHERE m.tenant_no = @tenant AND m.memory_id = ANY (@ids)`

// errOvertaken says that another search brought a coded scope to a later snapshot
// than this one reads from. It begins again, with a later one still.
var errOvertaken = errors.New("scope is in memory as of a later snapshot")

// narrowed is what the codes of a scope say to a query, and as of when.
type narrowed struct {
	*codes.Narrowing
	rows    []narrow // the candidates
	groups  []group
	subject memd.Number
	edited  snapshot
}

// narrow is what has to be known of a candidate to open its vector.
type narrow struct {
	id             uuid.UUID
	version, group uint32
}

// narrow asks the codes. Rows whose time is up leave first: they must not keep
// others out.
func (v *view) narrow(p probe) (*narrowed, error) {
	r := v.r
	r.mu.RLock()
	if c := r.coded; c != nil && c.expiry != 0 && c.expiry <= p.now.UnixMicro() {
		r.mu.RUnlock()
		r.removeExpired(p.now)
		r.mu.RLock()
	}
	defer r.mu.RUnlock()
	c := r.coded
	if r.dead || c == nil || r.dim != len(p.query) {
		return nil, errEvicted
	}
	n := &narrowed{subject: r.subject, edited: r.edited, groups: c.groups}
	n.Narrowing = c.codes.Narrow(c.rotation.Query(p.query), codes.Wanted{
		K: p.top.k, Least: p.top.least(), All: v.s.exhaustive || len(p.sel.hashes) > 0, Admits: c.admits(&p.sel),
	})
	n.Number(func(row int) int {
		b, i := c.at(row)
		n.rows = append(n.rows, narrow{b.ids[i], b.versions[i], b.groups[i]})
		return len(n.rows) - 1
	})
	return n, nil
}

// rank brings a coded scope up to what the filler has read from db's snapshot, asks
// its codes, unless that was done, and reads candidates from the database, as many as
// the data needs.
func (v *view) rank(ctx context.Context, db pg.DB, f *filler, n *narrowed, p probe, scope int) error {
	v.scanned, v.worded = true, false
	if err := v.settle(p.k, f); err != nil || v.fenced || v.subject == 0 {
		return err
	}
	if n == nil {
		var err error
		if n, err = v.narrow(p); err != nil {
			return err
		}
	}
	if f.h.snap.before(n.edited) {
		return errOvertaken
	}
	s := scorer{probe: p, n: n, scope: scope}
	for {
		least := p.top.least()
		if v.s.exhaustive {
			least = float32(math.Inf(-1))
		}
		batch := n.Next(least)
		if len(batch) == 0 {
			return nil
		}
		if err := s.read(ctx, db, batch); err != nil {
			return err
		}
	}
}

// scorer opens candidates and scores them.
type scorer struct {
	probe
	n     *narrowed
	scope int

	buffer []float32
	opened []byte
}

func (s *scorer) read(ctx context.Context, db pg.DB, batch []codes.Candidate) error {
	ids := make([]uuid.UUID, len(batch))
	for i, c := range batch {
		ids[i] = s.n.rows[c.Row].id
	}
	rows, err := db.Query(ctx, sqlCandidates, pg.Args{"tenant": s.k.Tenant(), "ids": ids, "metadata": len(s.sel.hashes) > 0})
	if err != nil {
		return fmt.Errorf("reading candidates: %w", err)
	}
	defer rows.Close()
	if err := checkFormat(rows); err != nil {
		return err
	}
	for rows.Next() {
		c := columns{values: rows.RawValues()}
		candidate := batch[c.int64()-1]
		row := &s.n.rows[candidate.Row]
		g := &s.n.groups[row.group]
		version := c.int64()
		m := fetched{version: version, stored: stored{
			id: row.id, owner: s.n.subject, kind: g.kind, month: g.month, contributions: g.contributions,
			dimension: int(c.int16()), format: VectorFormat(c.int16()),
		}}
		m.vector, m.metadata = c.next(-1), c.next(-1)
		short := c.bool()
		m.text, m.sourceTime, m.createdAt, m.updatedAt, m.expiresAt = c.next(-1), c.time(), c.time(), c.time(), c.time()
		switch {
		case c.err != nil:
			return c.err
		case uint32(version) != row.version || m.dimension != len(s.query):
			return errOvertaken
		}
		if err := s.score(candidate, &m, short); err != nil {
			return err
		}
	}
	if rows.Err() != nil {
		return fmt.Errorf("reading candidates: %w", rows.Err())
	}
	return nil
}

// score scores a candidate, and offers it with all that a hit needs if that came.
func (s *scorer) score(c codes.Candidate, m *fetched, dressed bool) error {
	key, err := s.k.Row(m.month, m.contributions)
	if errors.Is(err, memd.ErrMonthExpired) {
		return nil // It is yet to be deleted.
	}
	if err != nil {
		return err
	}
	var norm float32
	if s.buffer, norm, err = m.openVector(s.k, key, s.buffer[:0], &s.opened); err != nil {
		return err
	}
	score := vek32.Dot(s.query, s.buffer)
	s.n.Score(c, score)
	if !s.top.wants(score) {
		return nil
	}
	e := entryOf(m)
	if len(s.sel.hashes) > 0 && m.metadata != nil {
		if e.hashes, err = m.hashMetadata(s.k, key); err != nil {
			return err
		}
	}
	if s.sel.has(e.hashes) { // the rest was looked at before
		e.norm, e.vector = norm, s.top.keep(s.buffer)
		e.text, e.metadata = m.kept()
		s.top.offer(candidate{scope: s.scope, owner: s.n.subject, score: score, entry: e, bare: !dressed})
	}
	return nil
}

// dress reads what a hit needs besides its score, for candidates that came without.
func (t *topK) dress(ctx context.Context, db pg.DB, tenant memd.TenantNo) error {
	var ids []uuid.UUID
	at := map[uuid.UUID]*candidate{}
	for i := range t.heap {
		if c := &t.heap[i]; c.bare {
			ids = append(ids, c.entry.id)
			at[c.entry.id] = c
			c.bare = false
		}
	}
	if len(ids) == 0 {
		return nil
	}
	rows, err := db.Query(ctx, sqlDress, pg.Args{"tenant": tenant, "ids": ids})
	if err != nil {
		return fmt.Errorf("reading hits: %w", err)
	}
	var id uuid.UUID
	var text, metadata []byte
	var created, updated time.Time
	var source, expires *time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &text, &metadata, &source, &created, &updated, &expires}, func() error {
		m := fetched{sourceTime: timeOf(source), createdAt: created, updatedAt: updated, expiresAt: timeOf(expires)}
		e := &at[id].entry
		e.time(&m)
		e.text, e.metadata = text, metadata
		text, metadata = nil, nil
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading hits: %w", err)
	}
	return nil
}

// least is the score that a row has to reach to get in.
func (t *topK) least() float32 {
	least := float32(math.Inf(-1))
	if t.min != nil {
		least = *t.min
	}
	if len(t.heap) == t.k {
		least = max(least, t.heap[0].score)
	}
	return least
}
