package memory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

// Add stores up to memd.MaxBatch rows, all or none, and returns one outcome for
// each in the same order. When it returns, the rows are durable and every
// replica's next Search finds them.
//
// A row with an event id is upserted: adding it again is safe however often
// and however late. A re-add neither reverts an Update nor brings back a
// Delete. Rows without an event id are new each time.
//
// Errors: an *memd.InvalidError naming the row and field; memd.ErrFenced,
// memd.ErrSessionForgotten, memd.ErrErasedBefore, memd.ErrSourceTimeRequired
// for somebody who is or was erased; memd.ErrSourceGone; transient ones. In
// all of them nothing was written.
func (s *Service) Add(ctx context.Context, t Tenant, rows []Row) ([]Added, error) {
	now := s.Clock.Now()
	if err := validateRows(t, rows, now); err != nil {
		return nil, err
	}
	contents, err := s.contents(ctx, t, rows)
	if err != nil {
		return nil, err
	}
	var out []Added
	err = s.again(ctx, t, func(k *shred.Keys) ([]memd.Ref, error) {
		p := plan(rows)
		err := s.Pool.With(ctx, func(db pg.DB) error {
			found, err := s.Directory.Admit(ctx, db, k, p.wants)
			if err != nil {
				return err
			}
			drafts, err := s.drafts(ctx, db, k, t, rows, p, found, contents, now)
			if err != nil {
				return err
			}
			out, err = write(ctx, db, t.No, drafts, now)
			return err
		})
		if errors.Is(err, memd.ErrMemoryDeleted) {
			err = memd.ErrStale // deleted while this call was under way: the next try leaves it out
		}
		return p.refs(k, err), err
	})
	if err == nil {
		var counts [StatusDeleted + 1]int
		for _, a := range out {
			counts[a.Status]++
		}
		s.OnChange("added", counts[StatusCreated])
		s.OnChange("updated", counts[StatusUpdated])
	}
	return out, err
}

// contents embeds what has no vector, in one call for the whole batch.
func (s *Service) contents(ctx context.Context, t Tenant, rows []Row) ([]content, error) {
	out := make([]content, len(rows))
	var texts []string
	var at []int
	for i, r := range rows {
		out[i] = content{text: r.Text, metadata: r.Metadata}
		if r.Vector == nil {
			if visible(r.Text) { // what is not has nothing to embed: it is kept without a vector
				texts, at = append(texts, r.Text), append(at, i)
			}
			continue
		}
		var err error
		if out[i].unit, out[i].norm, err = normalise(r.Vector); err != nil {
			return nil, inRow(i, err)
		}
	}
	vectors, err := s.embed(ctx, t, texts)
	if err != nil {
		return nil, err
	}
	for j, v := range vectors {
		unit, norm, err := normalise(v)
		if err != nil {
			continue // a text without any feature likewise
		}
		out[at[j]].unit, out[at[j]].norm, out[at[j]].embedded = unit, norm, true
	}
	return out, nil
}

// visible reports whether there is anything to see in a text.
func visible(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return unicode.IsGraphic(r) && !unicode.IsSpace(r) })
}

// embed turns texts into vectors with the tenant's embedder.
func (s *Service) embed(ctx context.Context, t Tenant, texts []string) ([][]float32, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	e, err := s.Embedder(t.Embedder, t.Dimension)
	if err != nil {
		return nil, err
	}
	vectors, err := e.Embed(ctx, texts)
	if err != nil {
		return nil, fmt.Errorf("embedding: %w", err)
	}
	return vectors, nil
}

// planned says which of the wants are a row's owner, its own contributor (or
// -1) and its session sources.
type planned struct {
	owner, base int
	sessions    []int
}

// planning collects the subjects and sessions that a batch needs, each once.
type planning struct {
	wants []provenance.Want
	rows  []planned
	index map[wantKey]int
}

type wantKey struct {
	scope   memd.Scope
	session string
}

func (p *planning) want(scope memd.Scope, session string, at time.Time) int {
	key := wantKey{scope, session}
	i, ok := p.index[key]
	if !ok {
		i = len(p.wants)
		p.index[key] = i
		p.wants = append(p.wants, provenance.Want{Scope: scope, Session: session, SourceTime: at})
	}
	if at.After(p.wants[i].SourceTime) {
		p.wants[i].SourceTime = at
	}
	return i
}

// refs are the subjects whose numbers may be out of date after err: none after
// nil.
func (p *planning) refs(k *shred.Keys, err error) []memd.Ref {
	if err == nil {
		return nil
	}
	out := make([]memd.Ref, len(p.wants))
	for i, w := range p.wants {
		out[i] = provenance.RefOf(k, w.Scope)
	}
	return out
}

func plan(rows []Row) *planning {
	p := &planning{index: map[wantKey]int{}}
	for _, r := range rows {
		l := planned{owner: p.want(r.Scope, "", r.SourceTime), base: -1}
		switch {
		case r.Contributor != nil:
			l.base = p.want(memd.Scope{App: r.Scope.App, UserID: r.Contributor.UserID}, r.Contributor.SessionID, r.SourceTime)
		case r.SessionID != "":
			l.base = p.want(r.Scope, r.SessionID, r.SourceTime)
		case len(r.Sources) == 0:
			l.base = l.owner
		}
		for _, src := range r.Sources {
			if src.MemoryID == uuid.Nil {
				l.sessions = append(l.sessions, p.want(memd.Scope{App: r.Scope.App, UserID: src.UserID}, src.SessionID, r.SourceTime))
			}
		}
		p.rows = append(p.rows, l)
	}
	return p
}

// draft is a row ready to be written.
type draft struct {
	stored
	sourceTime, expiresAt time.Time
	sources               []lineage
	event                 bool // has an event id, so that it may be there already
}

// drafts resolves the rows' provenance, names them and seals them.
func (s *Service) drafts(ctx context.Context, db pg.DB, k *shred.Keys, t Tenant, rows []Row, p *planning, found []memd.Contribution, contents []content, now time.Time) ([]draft, error) {
	read, err := readSources(ctx, db, t.No, rows, p, found, now)
	if err != nil {
		return nil, err
	}
	out := make([]draft, len(rows))
	for i := range rows {
		if out[i], err = draftOf(k, &rows[i], p.rows[i], found, read, now); err != nil {
			return nil, inRow(i, err)
		}
	}
	if err := keepMonths(ctx, db, t.No, out); err != nil {
		return nil, err
	}
	for i := range out {
		d, c := &out[i], contents[i]
		if c.unit != nil {
			d.space, d.dimension, d.format = t.space(), len(c.unit), t.Format
		}
		if d.sealed, err = seal(k, d.owner, d.id, d.month, d.contributions, c, t.Format); err != nil {
			return nil, err
		}
	}
	return out, nil
}

const sqlEventMonths = `SELECT memory_id, month FROM memd.memories WHERE tenant_no = @tenant AND memory_id = ANY (@ids)`

// keepMonths gives events that are there already the month that they have: an
// event that comes again in a later month without a source time is the same
// event, and its month never moves later.
func keepMonths(ctx context.Context, db pg.DB, tenant memd.TenantNo, drafts []draft) error {
	var ids []uuid.UUID
	at := map[uuid.UUID]int{}
	for i := range drafts {
		if drafts[i].event {
			ids = append(ids, drafts[i].id)
			at[drafts[i].id] = i
		}
	}
	if len(ids) == 0 {
		return nil
	}
	rows, err := db.Query(ctx, sqlEventMonths, pg.Args{"tenant": tenant, "ids": ids})
	if err != nil {
		return fmt.Errorf("reading months: %w", err)
	}
	var id uuid.UUID
	var month memd.Month
	_, err = pgx.ForEachRow(rows, []any{&id, &month}, func() error {
		d := &drafts[at[id]]
		d.month = min(d.month, month)
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading months: %w", err)
	}
	return nil
}

// draftOf resolves a row's provenance and names it.
func draftOf(k *shred.Keys, r *Row, l planned, found []memd.Contribution, read sourceRows, now time.Time) (draft, error) {
	d := draft{sourceTime: r.SourceTime, expiresAt: r.ExpiresAt, event: r.EventID != ""}
	d.owner, d.kind = found[l.owner].Subject, r.Kind
	spoken := r.SourceTime
	if spoken.IsZero() {
		spoken = now
	}
	var err error
	if d.month, err = memd.MonthOf(spoken); err != nil {
		return d, err
	}
	var cs []memd.Contribution
	if l.base >= 0 {
		cs = append(cs, found[l.base])
	}
	drawn, err := read.draw(r.Scope.App, r.Sources, l.sessions, found)
	if err != nil {
		return d, err
	}
	d.sources = drawn.lineage
	if drawn.month > 0 {
		d.month = min(d.month, drawn.month)
	}
	cs = append(cs, drawn.contributions...)
	if d.contributions, err = closure(withOwner(cs, d.owner, r.Scope.Shared())); err != nil {
		return d, err
	}
	d.id, err = d.name(k, r, l, found)
	return d, err
}

// withOwner makes sure that a user's own row cannot outlive the user, not even
// in a backup: a row in U's scope that was drawn from others only would have no
// key of U's in it. It adds U's own scope as a contributor.
func withOwner(cs []memd.Contribution, owner memd.Number, shared bool) []memd.Contribution {
	if shared {
		return cs
	}
	for _, c := range cs {
		if c.Subject == owner {
			return cs
		}
	}
	return append(cs, memd.Contribution{Subject: owner, Session: memd.OwnScope})
}

// name gives the row its id: random, or from its event under the key of the
// session that the event belongs to.
func (d *draft) name(k *shred.Keys, r *Row, l planned, found []memd.Contribution) (uuid.UUID, error) {
	if r.EventID == "" {
		return uuid.NewRandom()
	}
	session := memd.Contribution{Subject: d.owner, Session: memd.OwnScope}
	if l.base >= 0 {
		session = found[l.base]
	}
	id, err := k.EventID(session.Subject, session.Session, eventKey(d.owner, r.EventID))
	if err != nil {
		return id, fmt.Errorf("naming an event: %w", err)
	}
	return id, nil
}

// inRow prefixes the field of an InvalidError with the row's position.
func inRow(i int, err error) error {
	var bad *memd.InvalidError
	if errors.As(err, &bad) {
		return &memd.InvalidError{Field: fmt.Sprintf("rows[%d].%s", i, bad.Field), Problem: bad.Problem}
	}
	return err
}
