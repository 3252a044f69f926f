package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// Reembedder embeds the rows of tenants anew whose policy has another embedder or
// dimension than before. It writes as the application does, guard and all: a row of
// somebody who is being erased is refused and goes with the erasure. Searches answer
// from both spaces until no row is left in the former that has a text; then the tenant
// has left it. It passes through the rows in the order of their ids and notes after each
// batch how far it has come, so that whoever was killed is followed by another. Any
// number may run; one works for a tenant.
type Reembedder struct {
	Service *Service
	// Moving returns the tenants that are between two spaces, and Moved says that one
	// has left the former. Required.
	Moving func(ctx context.Context, db pg.DB) ([]Tenant, error)
	Moved  func(ctx context.Context, tx pgx.Tx, t Tenant) error
	// Interval is how often it looks for tenants: 5 s if it is zero.
	Interval time.Duration
	// OnBatch, if set, is called before a batch is written.
	OnBatch func()
}

const (
	reembedInterval = 5 * time.Second
	// reembedBatch is how many rows are embedded in one call and written in one
	// transaction.
	reembedBatch = 64
	// Grace is how old a change has to be when the last pass begins: by then whoever
	// wrote while it was made has ended.
	Grace = time.Minute
)

// Run works until ctx ends.
func (r *Reembedder) Run(ctx context.Context) {
	tick := time.NewTicker(cmp.Or(r.Interval, reembedInterval))
	defer tick.Stop()
	for {
		if err := r.Round(ctx); err != nil && ctx.Err() == nil {
			r.Service.Logger.ErrorContext(ctx, "embedding anew broke off and will be taken up again", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Round takes every tenant that is between spaces through the rest of a pass.
func (r *Reembedder) Round(ctx context.Context) error {
	var all []Tenant
	err := r.Service.Pool.With(ctx, func(db pg.DB) (err error) {
		all, err = r.Moving(ctx, db)
		return err
	})
	if err != nil {
		return err
	}
	var failed []error
	for _, t := range all {
		if err := r.tenant(ctx, t); err != nil {
			failed = append(failed, fmt.Errorf("tenant %d: %w", t.No, err))
		}
	}
	return errors.Join(failed...)
}

func (r *Reembedder) tenant(ctx context.Context, t Tenant) (err error) {
	conn, err := r.Service.Pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	lock := pg.LockReembed.ForTenant(t.No)
	held, err := pg.TryLock(ctx, conn.Conn(), lock)
	if err != nil || !held {
		return err
	}
	defer func() { err = errors.Join(err, pg.Unlock(ctx, conn.Conn(), lock)) }()
	p, err := r.begin(ctx, t)
	if err != nil {
		return err
	}
	for {
		more, err := r.batch(ctx, t, p)
		if err != nil {
			return err
		}
		if !more {
			return r.endPass(ctx, t, p)
		}
	}
}

// passage is how far a tenant has come.
type passage struct {
	started, began time.Time
	after          uuid.UUID
	found, done    int64
}

const (
	sqlBeginReembedding = `
INSERT INTO memd.reembeddings (tenant_no, space, started_at, pass_began) VALUES (@tenant, @space, @now, @now) ON CONFLICT DO NOTHING`
	sqlPassage = `
SELECT started_at, pass_began, after, found, done FROM memd.reembeddings WHERE tenant_no = @tenant AND space = @space`
	sqlNotePassage = `
UPDATE memd.reembeddings SET pass_began = @began, after = @after, found = @found, done = @done, finished_at = @finished
WHERE tenant_no = @tenant AND space = @space`
)

func (r *Reembedder) begin(ctx context.Context, t Tenant) (*passage, error) {
	var p passage
	err := r.Service.Pool.InTx(ctx, func(tx pgx.Tx) error {
		args := pg.Args{"tenant": t.No, "space": t.space()}
		if err := tx.QueryRow(ctx, sqlPassage, args).Scan(&p.started, &p.began, &p.after, &p.found, &p.done); !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		now := r.Service.Clock.Now()
		p = passage{started: now, began: now}
		_, err := tx.Exec(ctx, sqlBeginReembedding, pg.Args{"tenant": t.No, "space": t.space(), "now": now})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("beginning to embed anew: %w", err)
	}
	return &p, nil
}

func (r *Reembedder) note(ctx context.Context, tx pg.DB, t Tenant, p passage, finished time.Time) error {
	_, err := tx.Exec(ctx, sqlNotePassage, pg.Args{
		"tenant": t.No, "space": t.space(), "began": p.began, "after": p.after, "found": p.found, "done": p.done, "finished": optional(finished),
	})
	if err != nil {
		return fmt.Errorf("noting how far embedding anew is: %w", err)
	}
	return nil
}

// endPass begins the next one, or has the tenant leave its former space when the pass
// met no row that belongs into the new one.
func (r *Reembedder) endPass(ctx context.Context, t Tenant, p *passage) error {
	now := r.Service.Clock.Now()
	over := p.found == 0 && p.began.Sub(p.started) >= Grace
	p.began, p.after, p.found = now, uuid.Nil, 0
	return r.Service.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if !over {
			return r.note(ctx, tx, t, *p, time.Time{})
		}
		if err := r.Moved(ctx, tx, t); err != nil {
			return err
		}
		return r.note(ctx, tx, t, *p, now)
	})
}

const sqlFormerRows = sqlMemoryColumns + `
FROM memd.memories m
WHERE m.tenant_no = @tenant AND m.memory_id > @after AND m.space <> @space AND m.dimension > 0 AND m.sealed_text IS NOT NULL
ORDER BY m.memory_id LIMIT @limit`

// batch embeds the next rows, and reports whether there may be more.
func (r *Reembedder) batch(ctx context.Context, t Tenant, p *passage) (more bool, err error) {
	k, err := r.Service.Keyring.Keys(ctx, t.No, 0)
	if err != nil {
		return false, err
	}
	var rows []*fetched
	err = r.Service.Pool.With(ctx, func(db pg.DB) error {
		found, err := db.Query(ctx, sqlFormerRows, pg.Args{"tenant": t.No, "after": p.after, "space": t.space(), "limit": reembedBatch})
		if err == nil {
			rows, err = pgx.CollectRows(found, scanMemory)
		}
		if err != nil {
			return fmt.Errorf("reading rows of a former space: %w", err)
		}
		return nil
	})
	if err != nil || len(rows) == 0 {
		return false, err
	}
	anew, err := r.embed(ctx, k, t, rows)
	if err != nil {
		return false, err
	}
	if r.OnBatch != nil {
		r.OnBatch()
	}
	p.after = rows[len(rows)-1].id
	p.found += int64(len(anew))
	written, err := r.write(ctx, t, anew)
	if err != nil {
		return false, err
	}
	p.done += written
	err = r.Service.Pool.With(ctx, func(db pg.DB) error { return r.note(ctx, db, t, *p, time.Time{}) })
	return len(rows) == reembedBatch, err
}

// embed makes and seals new vectors and codes. Rows whose key is gone are left out:
// they are about to be deleted.
func (r *Reembedder) embed(ctx context.Context, k *shred.Keys, t Tenant, rows []*fetched) ([]draft, error) {
	var texts []string
	var of []*fetched
	for _, m := range rows {
		c, err := m.open(k, false)
		if errors.Is(err, memd.ErrShredded) || errors.Is(err, memd.ErrMonthExpired) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("opening a row: %w", err)
		}
		texts, of = append(texts, c.text), append(of, m)
	}
	contents, err := r.Service.contents(ctx, t, rowsOf(texts))
	if err != nil {
		return nil, err
	}
	var out []draft
	for i, m := range of {
		d := draft{stored: stored{id: m.id, owner: m.owner, contributions: m.contributions, space: t.space()}}
		if unit := contents[i].unit; unit != nil {
			s, err := k.Row(m.month, m.contributions)
			if err != nil {
				return nil, fmt.Errorf("deriving a row key: %w", err)
			}
			d.dimension, d.format = len(unit), t.Format
			d.vector, err = s.SealFast(encodeVector(unit, contents[i].norm, t.Format), shred.AADMemoryVector(t.No, m.owner, m.id))
			if err == nil {
				d.code, err = sealCode(k, s, m.owner, m.id, unit)
			}
			if err != nil {
				return nil, fmt.Errorf("sealing a vector: %w", err)
			}
		}
		d.sources = []lineage{{version: m.version}}
		out = append(out, d)
	}
	return out, nil
}

func rowsOf(texts []string) []Row {
	out := make([]Row, len(texts))
	for i, text := range texts {
		out[i].Text = text
	}
	return out
}

// The digest stays: the content is what it was, so nothing is buried that a restore
// would have to delete.
const sqlReembed = `
UPDATE memd.memories m SET space = @space, dimension = r.dimension, vector_format = r.format, sealed_vector = r.vector, sealed_code = r.code
FROM unnest(@ids::uuid[], @versions::bigint[], @dimensions::smallint[], @formats::smallint[], @vectors::bytea[], @codes::bytea[])
  AS r (memory_id, version, dimension, format, vector, code)
WHERE m.tenant_no = @tenant AND m.memory_id = r.memory_id AND m.version = r.version`

// write stores rows together, or one by one where the guard refuses one of them, and
// returns how many it stored. A row that changed meanwhile is met by the next pass.
func (r *Reembedder) write(ctx context.Context, t Tenant, rows []draft) (written int64, err error) {
	for len(rows) > 0 {
		subjects, n := map[memd.Number]bool{}, 0
		for ; n < len(rows); n++ {
			more := map[memd.Number]bool{rows[n].owner: true}
			for _, c := range rows[n].contributions {
				more[c.Subject] = true
			}
			for s := range subjects {
				more[s] = true
			}
			if len(more) > memd.MaxSubjects && n > 0 {
				break
			}
			subjects = more
		}
		stored, err := r.store(ctx, t, rows[:n], subjects)
		switch {
		case refused(err) && n > 1:
			for i := range rows[:n] {
				one, err := r.write(ctx, t, rows[i:i+1])
				written += one
				if err != nil {
					return written, err
				}
			}
		case refused(err):
		case err != nil:
			return written, err
		}
		written += stored
		rows = rows[n:]
	}
	return written, nil
}

// refused: for what is being erased, or whoever may not write now.
func refused(err error) bool {
	for _, class := range []error{memd.ErrFenced, memd.ErrSessionForgotten, memd.ErrErasedBefore, memd.ErrSourceTimeRequired, memd.ErrMonthExpired, memd.ErrTenantInactive, memd.ErrStale} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

func (r *Reembedder) store(ctx context.Context, t Tenant, rows []draft, subjects map[memd.Number]bool) (n int64, err error) {
	args := insertArgs(t.No, rows, time.Time{})
	versions := make([]int64, len(rows))
	for i := range rows {
		versions[i] = rows[i].sources[0].version
	}
	var b pgx.Batch
	queueEnter(&b, t.No, subjects)
	b.Queue(sqlReembed, pg.Args{
		"tenant": t.No, "space": t.space(), "ids": args["ids"], "versions": versions, "dimensions": args["dimensions"],
		"formats": args["formats"], "vectors": args["vectors"], "codes": args["codes"],
	}).Exec(func(tag pgconn.CommandTag) error {
		n = tag.RowsAffected()
		return nil
	})
	err = r.Service.Pool.With(ctx, func(db pg.DB) error { return db.SendBatch(ctx, &b).Close() })
	if err != nil {
		return 0, fmt.Errorf("writing new vectors: %w", err)
	}
	return n, nil
}

// Reembedding is how far a tenant has come into a space.
type Reembedding struct {
	StartedAt, FinishedAt time.Time
	// Done counts rows that were embedded anew, Left those that are yet to be, and
	// Textless those that cannot be: they came as vectors without a text. They are found
	// until the tenant has left the former space, and kept, but not found, after it.
	Done, Left, Textless int64
}

const sqlReembedding = `
SELECT r.started_at, r.finished_at, r.done, n.left, n.textless FROM memd.reembeddings r,
  LATERAL (SELECT count(*) FILTER (WHERE m.sealed_text IS NOT NULL) AS left, count(*) FILTER (WHERE m.sealed_text IS NULL) AS textless
           FROM memd.memories m WHERE m.tenant_no = r.tenant_no AND m.space <> r.space AND m.dimension > 0) n
WHERE r.tenant_no = @tenant AND r.space = @space`

// ReembeddingOf returns how far a tenant is in its space; ok is false if it never
// changed, or nobody has begun yet. It looks at all rows of the tenant.
func ReembeddingOf(ctx context.Context, db pg.DB, t Tenant) (out Reembedding, ok bool, err error) {
	var finished *time.Time
	err = db.QueryRow(ctx, sqlReembedding, pg.Args{"tenant": t.No, "space": t.space()}).Scan(&out.StartedAt, &finished, &out.Done, &out.Left, &out.Textless)
	if errors.Is(err, pgx.ErrNoRows) {
		return out, false, nil
	}
	if err != nil {
		return out, false, fmt.Errorf("reading how far embedding anew is: %w", err)
	}
	out.StartedAt, out.FinishedAt = out.StartedAt.UTC(), timeOf(finished)
	return out, true, nil
}
