package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"forgettable.dev/memd"
	"forgettable.dev/memd/embed"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

// Change says what to change of a row. Nil fields stay as they are.
type Change struct {
	// Expected is the version that the caller read.
	Expected int64
	Text     *string
	// Vector replaces the vector; an empty one removes it. A new text without a
	// new vector is embedded again, if the tenant has an embedder.
	Vector   *[]float32
	Metadata *map[string]string
	// SourceTime is when the new words were spoken.
	SourceTime *time.Time
	ExpiresAt  *time.Time // zero: never
	// Sources say where new words came from. In a user's scope, none means the
	// user, outside any conversation; in a shared scope they are required,
	// unless the words are Impersonal.
	Sources    []Source
	Impersonal bool
}

func (c *Change) content() bool { return c.Text != nil || c.Vector != nil || c.Metadata != nil }

// Whether a fence is up, and whether there ever was one.
const sqlFence = `
SELECT coalesce(bool_or(f.state IN (1, 2)), false), count(*) > 0 FROM memd.fence_states f
WHERE f.tenant_no = @tenant AND f.user_ref = @ref`

const sqlUpdateMemory = `
UPDATE memd.memories SET month = @month, more_contributions = @more, source_time = @source_time, updated_at = @now,
  expires_at = @expires_at, edited = true, space = @space, dimension = @dimension, vector_format = @format,
  content_digest = @digest, sealed_text = @text, sealed_vector = @vector, sealed_metadata = @metadata,
  sealed_code = @code
WHERE tenant_no = @tenant AND memory_id = @id AND owner_no = @owner AND version = @expected`

// Update changes a row and returns it. The row keeps the contributions that it
// had and gains those of the sources; its month never moves later; every sealed
// column is sealed again with the key of them all. memd.ErrVersionConflict says
// that somebody else changed it since Expected was read; nothing was written.
func (s *Service) Update(ctx context.Context, t Tenant, scope memd.Scope, id uuid.UUID, c Change) (Memory, error) {
	now := s.Clock.Now()
	if err := validateChange(t, scope, &c, now); err != nil {
		return Memory{}, err
	}
	replaced, err := s.replacement(ctx, t, &c)
	if err != nil {
		return Memory{}, err
	}
	var out Memory
	err = s.again(ctx, t, func(k *shred.Keys) ([]memd.Ref, error) {
		p := plan([]Row{{Scope: scope, Sources: c.Sources, SourceTime: timeOf(c.SourceTime)}})
		err := s.Pool.With(ctx, func(db pg.DB) (err error) {
			out, err = s.update(ctx, db, k, t, scope, id, &c, p, replaced, now)
			return err
		})
		return p.refs(k, err), err
	})
	if err == nil {
		s.OnChange("updated", 1)
	}
	return out, err
}

func validateChange(t Tenant, scope memd.Scope, c *Change, now time.Time) error {
	if err := validateScope(scope); err != nil {
		return err
	}
	switch {
	case c.Expected < 1:
		return invalid("expected_version", "is required")
	case scope.Shared() && c.content() && c.Impersonal == (len(c.Sources) > 0):
		return invalid("sources", "are required for new words in a shared scope, unless they are impersonal")
	case !scope.Shared() && c.Impersonal:
		return invalid("impersonal", "belongs to a shared scope")
	case c.ExpiresAt != nil && !c.ExpiresAt.IsZero() && !c.ExpiresAt.After(now):
		return invalid("expires_at", "must lie in the future")
	}
	if err := validateSources(c.Sources); err != nil {
		return err
	}
	if err := validateSourceTime(timeOf(c.SourceTime), now); err != nil {
		return err
	}
	var text string
	var metadata map[string]string
	vector := make([]float32, t.Dimension) // what is not changed needs no check
	if c.Text != nil {
		text = *c.Text
	}
	if c.Metadata != nil {
		metadata = *c.Metadata
	}
	if c.Vector != nil && len(*c.Vector) > 0 {
		vector = *c.Vector
	}
	return validateContent(t, text, vector, metadata)
}

// replacement is what an Update puts in the place of the old vector.
type replacement struct {
	vector bool // replace it at all
	unit   []float32
	norm   float32
}

func (s *Service) replacement(ctx context.Context, t Tenant, c *Change) (replacement, error) {
	if c.Vector != nil {
		if len(*c.Vector) == 0 {
			return replacement{vector: true}, nil
		}
		unit, norm, err := normalise(*c.Vector)
		return replacement{true, unit, norm}, err
	}
	if c.Text == nil || t.Embedder == embed.NameNone {
		return replacement{}, nil
	}
	if !visible(*c.Text) {
		return replacement{vector: true}, nil
	}
	vs, err := s.embed(ctx, t, []string{*c.Text})
	if err != nil {
		return replacement{}, err
	}
	unit, norm, err := normalise(vs[0])
	if err != nil {
		return replacement{vector: true}, nil // a text without any feature, like one that shows nothing
	}
	return replacement{true, unit, norm}, nil
}

func (s *Service) update(ctx context.Context, db pg.DB, k *shred.Keys, t Tenant, scope memd.Scope, id uuid.UUID, c *Change, p *planning, r replacement, now time.Time) (Memory, error) {
	f, err := s.readForUpdate(ctx, db, k, scope, id, c, now)
	if err != nil {
		return Memory{}, err
	}
	inline := f.contributions[0]
	old, err := f.open(k, true)
	if err != nil {
		return Memory{}, shreddedIsGone(err)
	}
	drawn, err := s.drawChange(ctx, db, k, c, p, f.owner, scope, now)
	if err != nil {
		return Memory{}, err
	}
	d := draft{stored: f.stored, sources: drawn.lineage, sourceTime: f.sourceTime, expiresAt: f.expiresAt}
	if d.contributions, err = closure(append(drawn.contributions, f.contributions...)); err != nil {
		return Memory{}, err
	}
	if drawn.month > 0 {
		d.month = min(d.month, drawn.month)
	}
	if c.SourceTime != nil {
		d.sourceTime = *c.SourceTime
		m, err := memd.MonthOf(*c.SourceTime)
		if err != nil {
			return Memory{}, err
		}
		d.month = min(d.month, m)
	}
	if c.ExpiresAt != nil {
		d.expiresAt = *c.ExpiresAt
	}
	next := old
	if c.Text != nil {
		next.text = *c.Text
	}
	if c.Metadata != nil {
		if next.metadata = *c.Metadata; len(next.metadata) == 0 {
			next.metadata = nil // as it will be read
		}
	}
	if r.vector {
		next.unit, next.norm = r.unit, r.norm
		d.space = t.space()
	}
	if next.text == "" && next.unit == nil {
		return Memory{}, invalid("text", "or vector must remain")
	}
	d.dimension, d.format = len(next.unit), t.Format
	if next.unit == nil {
		d.format = FormatUnknown
	}
	if d.sealed, err = seal(k, d.owner, d.id, d.month, d.contributions, next, t.Format); err != nil {
		return Memory{}, err
	}
	// Names first: after the write nothing may fail that would have it repeated.
	names, err := s.Directory.SessionIDs(ctx, db, k, firstSessions(d.contributions))
	if err != nil {
		return Memory{}, err
	}
	if err := rewrite(ctx, db, t.No, &d, inline, c.Expected, now); err != nil {
		return Memory{}, err
	}
	m := Memory{
		ID: id, Scope: scope, Kind: f.kind, Text: next.text, Metadata: next.metadata, Version: c.Expected + 1,
		SourceTime: d.sourceTime.UTC(), CreatedAt: f.createdAt.UTC(), UpdatedAt: now.UTC(), ExpiresAt: d.expiresAt.UTC(),
	}
	m.attribute(d.contributions, names)
	return m, nil
}

// readForUpdate reads the row and refuses what no sealed column could tell the
// database: new words of somebody who was once erased, without a time.
func (s *Service) readForUpdate(ctx context.Context, db pg.DB, k *shred.Keys, scope memd.Scope, id uuid.UUID, c *Change, now time.Time) (*fetched, error) {
	ref := provenance.RefOf(k, scope)
	var fenced, erased bool
	err := db.QueryRow(ctx, sqlFence, pg.Args{"tenant": k.Tenant(), "ref": ref[:]}).Scan(&fenced, &erased)
	if err != nil {
		return nil, fmt.Errorf("reading a fence: %w", err)
	}
	if fenced {
		return nil, memd.ErrFenced
	}
	f, err := get(ctx, db, k, scope, id, now)
	if err != nil {
		return nil, err
	}
	if f.version != c.Expected {
		return nil, memd.ErrVersionConflict
	}
	if erased && c.content() && c.SourceTime == nil {
		return nil, memd.ErrSourceTimeRequired
	}
	return f, nil
}

// drawChange resolves where new words came from.
func (s *Service) drawChange(ctx context.Context, db pg.DB, k *shred.Keys, c *Change, p *planning, owner memd.Number, scope memd.Scope, now time.Time) (drawn, error) {
	if !c.content() && len(c.Sources) == 0 {
		return drawn{}, nil
	}
	found, err := s.Directory.Admit(ctx, db, k, p.wants)
	if err != nil {
		return drawn{}, err
	}
	read, err := readSources(ctx, db, k.Tenant(), []Row{{Sources: c.Sources}}, p, found, now)
	if err != nil {
		return drawn{}, err
	}
	d, err := read.draw(scope.App, c.Sources, p.rows[0].sessions, found)
	if len(c.Sources) == 0 && !scope.Shared() {
		d.contributions = append(d.contributions, memd.Contribution{Subject: owner, Session: memd.OwnScope})
	}
	return d, err
}

// rewrite stores an updated row in one round trip. The inline contribution
// stays; contributions only grow.
func rewrite(ctx context.Context, db pg.DB, tenant memd.TenantNo, d *draft, inline memd.Contribution, expected int64, now time.Time) error {
	subjects := map[memd.Number]bool{d.owner: true}
	further := []memd.Contribution{inline}
	for _, c := range d.contributions {
		subjects[c.Subject] = true
		if c != inline {
			further = append(further, c)
		}
	}
	if len(subjects) > memd.MaxSubjects {
		return invalid("sources", "draw on more than %d users", memd.MaxSubjects)
	}
	d.contributions = further
	var b pgx.Batch
	queueEnter(&b, tenant, subjects)
	queueSources(&b, tenant, []draft{*d})
	var updated int64
	b.Queue(sqlUpdateMemory, pg.Args{
		"tenant": tenant, "id": d.id, "owner": d.owner, "expected": expected, "now": now,
		"month": d.month, "more": int16(len(further) - 1), "source_time": optional(d.sourceTime), "expires_at": optional(d.expiresAt),
		"space": max(1, d.space), "dimension": int16(d.dimension), "format": int16(d.format), "digest": d.digest,
		"text": d.text, "vector": d.vector, "metadata": d.metadata, "code": d.code,
	}).Exec(func(tag pgconn.CommandTag) error {
		updated = tag.RowsAffected()
		return nil
	})
	queueLineage(&b, tenant, []draft{*d})
	if err := db.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("updating a memory: %w", err)
	}
	if updated == 0 {
		return memd.ErrVersionConflict
	}
	return nil
}
