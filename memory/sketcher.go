package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory/codes"
	"forgettable.dev/memd/memory/sketches"
	"forgettable.dev/memd/shred"
)

// Sketcher builds the sketches that searches asked for, brings them up to date, and
// drops those that nobody may or wants to use. Any number may run; one of them works.
type Sketcher struct {
	// Pool is of the worker's role, and reads rows. Maintain is of memd_maintain, and
	// writes sketches. Both, and the others, are required.
	Pool, Maintain *pg.Pool
	Keys           func(ctx context.Context, tenant memd.TenantNo) (*shred.Keys, error)
	Clock          memd.Clock
	Logger         *slog.Logger
	// Interval is how often it looks what there is to do. Zero is 5 s.
	Interval time.Duration
	// ManyChanged is how many rows have to have changed since a table was brought up to
	// date for that to be done again: until then each search reads them. Zero is 1,000.
	ManyChanged int64

	inUse, asked, rows atomic.Int64
}

const (
	sketchInterval = 5 * time.Second
	manyChanged    = 1000
	// longChanged is after how long a table is brought up to date whatever changed.
	longChanged = 10 * time.Minute
	// A table is built anew when more than so many rows have changed, and a quarter of
	// it: adding to an index takes longer than building it.
	tooManyChanged = 20_000
	// sketchBatch is how many sketches are written at once.
	sketchBatch = 2048
)

// Run works until ctx ends, and breaks off what it is at.
func (s *Sketcher) Run(ctx context.Context) {
	tick := time.NewTicker(cmp.Or(s.Interval, sketchInterval))
	defer tick.Stop()
	for {
		if err := s.Round(ctx); err != nil && ctx.Err() == nil {
			s.Logger.ErrorContext(ctx, "building sketches broke off and will begin again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Building returns how many scopes have sketches in use, how many wait for theirs, and
// how many rows of the one that is being built are there so far.
func (s *Sketcher) Building() (inUse, asked, rows int64) {
	return s.inUse.Load(), s.asked.Load(), s.rows.Load()
}

// Round does all that is to be done, unless somebody else is at it. What goes wrong with
// one scope leaves the others alone.
func (s *Sketcher) Round(ctx context.Context) (err error) {
	conn, err := s.Maintain.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	held, err := pg.TryLock(ctx, conn.Conn(), pg.LockSketches)
	if err != nil || !held {
		return err
	}
	defer func() { err = errors.Join(err, pg.Unlock(ctx, conn.Conn(), pg.LockSketches)) }()
	if err := sketches.Restart(ctx, conn); err != nil {
		return err
	}
	directory, err := s.tidy(ctx, conn)
	if err != nil {
		return err
	}
	var failed []error
	for _, e := range directory {
		if ctx.Err() != nil {
			break
		}
		var err error
		switch e.State {
		case sketches.StateInUse:
			err = s.follow(ctx, e)
		default:
			err = s.build(ctx, e)
		}
		if errors.Is(err, sketches.ErrGone) {
			err = nil // Somebody was forgotten; the next round begins again.
		}
		failed = append(failed, err)
	}
	_, err = sketches.Drop(ctx, conn)
	return errors.Join(append(failed, err, ctx.Err())...)
}

// tidy takes out of the directory who is to have no sketches, or none any more, and
// returns the others: those that were wanted last have the places.
func (s *Sketcher) tidy(ctx context.Context, conn pg.DB) (kept []sketches.Entry, err error) {
	var all []sketches.Entry
	err = s.Pool.With(ctx, func(db pg.DB) (err error) {
		all, err = sketches.Directory(ctx, db)
		return err
	})
	if err != nil {
		return nil, err
	}
	now := s.Clock.Now()
	var inUse, places int
	for _, e := range all {
		if e.State == sketches.StateInUse {
			inUse++
		}
	}
	var asked int64
	for _, e := range all {
		unwanted := now.Sub(e.Wanted)
		forsaken := e.Ref == memd.Ref{} || !e.Allowed || unwanted > sketches.Unwanted
		// Who asks waits until somebody's place is free, and gets it from who has not
		// been searched for a while.
		crowded := e.State == sketches.StateInUse && places >= sketches.MaxTables && unwanted > sketches.Settled
		if forsaken || crowded {
			if err := sketches.Forsake(ctx, conn, e); err != nil {
				return nil, err
			}
			if e.State == sketches.StateInUse {
				inUse--
			}
			continue
		}
		places++
		if e.State != sketches.StateInUse {
			asked++
			if places > sketches.MaxTables || inUse >= sketches.MaxTables {
				continue
			}
			inUse++
		}
		kept = append(kept, e)
	}
	s.asked.Store(asked)
	s.inUse.Store(int64(inUse))
	return kept, nil
}

// build makes the sketches of a scope and puts them to use.
func (s *Sketcher) build(ctx context.Context, e sketches.Entry) error {
	bits := codes.Bits(e.Dimension)
	began := s.Clock.Now()
	var t sketches.Table
	var ok bool
	err := s.Maintain.InTx(ctx, func(tx pgx.Tx) (err error) {
		t, ok, err = sketches.Create(ctx, tx, e, bits)
		return err
	})
	if err != nil || !ok {
		return err
	}
	defer s.rows.Store(0)
	r := &sketching{keep: func(batch []sketches.Sketch) error {
		s.rows.Add(int64(len(batch)))
		return s.Maintain.InTx(ctx, func(tx pgx.Tx) error { return sketches.Copy(ctx, tx, t, batch) })
	}}
	if err := s.read(ctx, e, asked{ref: e.Ref, coded: true}, r); err != nil {
		return err
	}
	if r.owner != e.Owner {
		return s.Maintain.With(ctx, func(db pg.DB) error { return sketches.Forsake(ctx, db, e) })
	}
	t.Since, t.Rows = r.snap.xmin, r.kept
	err = s.Maintain.InTx(ctx, func(tx pgx.Tx) error { return sketches.Index(ctx, tx, t, t.Rows, bits) })
	if err != nil {
		return err
	}
	err = s.Maintain.With(ctx, func(db pg.DB) (err error) {
		ok, err = sketches.Publish(ctx, db, e, t, s.Clock.Now())
		return err
	})
	if ok {
		s.Logger.InfoContext(ctx, "sketches of a scope are in use", "tenant", e.Tenant, "rows", t.Rows, "took", s.Clock.Now().Sub(began))
	}
	return err
}

// follow brings sketches up to date, when that is worth it.
func (s *Sketcher) follow(ctx context.Context, e sketches.Entry) error {
	most := max(tooManyChanged, e.Table.Rows/4)
	n, err := s.changed(ctx, e, most+1)
	if err != nil {
		return err
	}
	switch few := s.ManyChanged; {
	case n > most:
		if err := s.Maintain.With(ctx, func(db pg.DB) error { return sketches.Again(ctx, db, e) }); err != nil {
			return err
		}
		return s.build(ctx, e)
	case n < few || few == 0 && n < manyChanged:
		if s.Clock.Now().Sub(e.Built) < longChanged {
			return nil
		}
	}
	var rows []sketches.Sketch
	r := &sketching{track: true, keep: func(batch []sketches.Sketch) error { rows = append(rows, batch...); return nil }}
	if err := s.read(ctx, e, asked{ref: e.Ref, known: e.Owner, since: e.Table.Since, coded: true}, r); err != nil {
		return err
	}
	if r.owner != e.Owner {
		return s.Maintain.With(ctx, func(db pg.DB) error { return sketches.Forsake(ctx, db, e) })
	}
	return s.Maintain.InTx(ctx, func(tx pgx.Tx) error {
		ok, err := sketches.Advance(ctx, tx, e, r.snap.xmin, r.changed, rows, s.Clock.Now())
		if err == nil && !ok {
			return sketches.ErrGone
		}
		return err
	})
}

const sqlChangedSince = `
SELECT count(*) FROM (
  SELECT FROM memd.memories m WHERE m.tenant_no = @tenant AND m.owner_no = @owner AND m.changed_xid >= @since
  UNION ALL
  SELECT FROM memd.deleted_memories x WHERE x.tenant_no = @tenant AND x.owner_no = @owner AND x.changed_xid >= @since
  LIMIT @limit) c`

func (s *Sketcher) changed(ctx context.Context, e sketches.Entry, limit int64) (n int64, err error) {
	err = s.Pool.With(ctx, func(db pg.DB) error {
		return db.QueryRow(ctx, sqlChangedSince, pg.Args{
			"tenant": e.Tenant, "owner": e.Owner, "since": e.Table.Since, "limit": limit,
		}).Scan(&n)
	})
	if err != nil {
		return 0, fmt.Errorf("counting what changed since sketches: %w", err)
	}
	return n, nil
}

// read gives a scope's rows to a sketching, from one snapshot.
func (s *Sketcher) read(ctx context.Context, e sketches.Entry, ask asked, r *sketching) error {
	k, err := s.Keys(ctx, e.Tenant)
	if err != nil {
		return err
	}
	r.k, r.dim = k, e.Dimension
	defer r.release()
	err = s.Pool.Look(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlLoadTimeout); err != nil {
			return fmt.Errorf("preparing to read a scope: %w", err)
		}
		return sync(ctx, tx, e.Tenant, nil, []asked{ask}, []sink{r})
	})
	if err != nil {
		return err
	}
	return r.flush()
}

// sketching is the sink that makes sketches of rows.
type sketching struct {
	k    *shred.Keys
	dim  int
	keep func(batch []sketches.Sketch) error

	owner    memd.Number // zero: nobody, or fenced
	snap     snapshot
	hides    []memd.Contribution
	track    bool        // note the ids
	changed  []uuid.UUID // of what came, and what went
	kept     int64
	batch    []sketches.Sketch
	rotation *codes.Rotation
	buffer   []byte
}

func (r *sketching) begin(h header, hides []memd.Contribution, deleted []uuid.UUID) (bool, error) {
	r.snap, r.hides = h.snap, hides
	if r.track {
		r.changed = deleted
	}
	if h.epoch > r.k.Epoch() {
		return false, newerEpoch(h.epoch)
	}
	if h.fenced() || h.subject == 0 {
		return false, nil
	}
	r.owner = h.subject
	var err error
	r.rotation, err = rotation(r.k, h.subject, r.dim)
	return err == nil, err
}

func (r *sketching) row(m *fetched) error {
	if r.track {
		r.changed = append(r.changed, m.id)
	}
	for _, h := range r.hides {
		if hidesRow(h, m.contributions, m.owner) {
			return nil
		}
	}
	if m.dimension != r.dim {
		return nil
	}
	s, err := r.k.Row(m.month, m.contributions)
	if errors.Is(err, memd.ErrMonthExpired) {
		return nil // It is yet to be deleted.
	}
	if err != nil {
		return err
	}
	code, err := m.openCode(r.k, s, r.rotation, &r.buffer)
	if err != nil {
		return err
	}
	defer clear(code)
	r.batch = append(r.batch, sketches.Sketch{ID: m.id, Bits: append([]byte(nil), codes.SketchOf(code)...)})
	if len(r.batch) == sketchBatch {
		return r.flush()
	}
	return nil
}

func (r *sketching) flush() error {
	if len(r.batch) == 0 {
		return nil
	}
	r.kept += int64(len(r.batch))
	err := r.keep(r.batch)
	r.batch = r.batch[:0]
	return err
}

func (r *sketching) release() {
	if r.rotation != nil {
		r.rotation.Zero()
	}
}
