package export

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"filippo.io/age"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

// Bounds of a part: it ends with the subject that passes one of them.
const (
	PartBytes    = 64 << 20
	PartSubjects = 1000
	// subjectPage is how many subjects are read at once.
	subjectPage = 100
)

// errDisturbed: somebody was erased while a file was being written, which may hold
// them. It is written anew.
var errDisturbed = errors.New("an erasure came in between")

// maker makes one archive, under its lock.
type maker struct {
	WorkerConfig
	e          Export
	tenant     tenants.Tenant
	recipients []age.Recipient
}

const sqlBegun = `UPDATE memd.exports SET subjects = @subjects WHERE tenant_no = @tenant AND export_id = @id`

// run makes what is missing of the archive, file after file, until it is ready, or
// has ended.
func (m *maker) run(ctx context.Context) error {
	var err error
	if m.recipients, err = parseRecipients(m.e.Recipients); err != nil {
		return err
	}
	err = m.Pool.InTx(ctx, func(tx pgx.Tx) error {
		n, err := provenance.CountLiving(ctx, tx, m.e.Tenant, m.e.User)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, sqlBegun, pg.Args{"tenant": m.e.Tenant, "id": m.e.ID, "subjects": n})
		return err
	})
	if err != nil {
		return err
	}
	for {
		var next span
		err := m.Pool.With(ctx, func(db pg.DB) (err error) {
			if m.e, err = Get(ctx, db, m.e.Tenant, m.e.ID); err != nil || m.e.State != StateMaking {
				return err
			}
			if m.tenant, err = tenants.GetByNo(ctx, db, m.e.Tenant); err != nil {
				return err
			}
			next, err = m.next(ctx, db)
			return err
		})
		if err != nil || m.e.State != StateMaking {
			return err
		}
		if next.part == 0 {
			err = m.finish(ctx)
		} else {
			err = m.part(ctx, next)
		}
		switch {
		case errors.Is(err, errDisturbed):
			if err := m.clear(ctx, m.e.ID); err != nil {
				return err
			}
		case err != nil:
			return err
		}
	}
}

// span says which subjects a part is of: those above after, up to through; all
// when it is new, and ends where it is large enough.
type span struct {
	part           int
	after, through memd.Number
	again          bool
}

const sqlEmptyPart = `
SELECT part, after, through FROM memd.export_parts
WHERE tenant_no = @tenant AND export_id = @id AND object IS NULL ORDER BY part LIMIT 1`

const sqlLastPart = `
SELECT coalesce(max(part), 0), coalesce(max(through), 0) FROM memd.export_parts WHERE tenant_no = @tenant AND export_id = @id`

// next is the part that is to be made next, or none.
func (m *maker) next(ctx context.Context, db pg.DB) (span, error) {
	s := span{again: true}
	args := pg.Args{"tenant": m.e.Tenant, "id": m.e.ID}
	err := db.QueryRow(ctx, sqlEmptyPart, args).Scan(&s.part, &s.after, &s.through)
	if !errors.Is(err, pgx.ErrNoRows) {
		return s, err
	}
	s = span{through: all}
	if err := db.QueryRow(ctx, sqlLastPart, args).Scan(&s.part, &s.after); err != nil {
		return s, fmt.Errorf("reading the journal of an export: %w", err)
	}
	if s.after == all {
		return span{}, nil
	}
	s.part++
	return s, nil
}

const sqlBeginObject = `
INSERT INTO memd.export_objects (tenant_no, object, export_id)
SELECT tenant_no, @object, export_id FROM memd.exports WHERE tenant_no = @tenant AND export_id = @id AND state = 1
RETURNING (SELECT disturbed FROM memd.exports WHERE tenant_no = @tenant AND export_id = @id)`

const sqlDisturbed = `SELECT disturbed FROM memd.exports WHERE tenant_no = @tenant AND export_id = @id AND state = 1`

// written is a file that is durable.
type written struct {
	object uuid.UUID
	size   int64
	sha256 []byte
}

// seal writes a file into the store, sealed to the recipients, and then accept's
// transaction makes it count, unless an erasure came in between. Its row is there
// before it is.
func (m *maker) seal(ctx context.Context, write func(db pg.DB, w io.Writer, undisturbed func() error) error, accept func(tx pgx.Tx, f written) error) error {
	f := written{object: uuid.New()}
	of := pg.Args{"tenant": m.e.Tenant, "id": m.e.ID}
	var since int64
	err := m.Pool.InTx(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, sqlBeginObject, pg.Args{"tenant": m.e.Tenant, "id": m.e.ID, "object": f.object}).Scan(&since)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return errDisturbed
	}
	if err != nil {
		return fmt.Errorf("announcing a file: %w", err)
	}
	same := func(db pg.DB, sql string) error {
		var now int64
		err := db.QueryRow(ctx, sql, of).Scan(&now)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && now != since {
			return errDisturbed
		}
		return err
	}
	err = m.Pool.With(ctx, func(db pg.DB) error {
		return m.Store.Write(ctx, f.object, func(w io.Writer) error {
			sum := &summed{w: w, sum: sha256.New()}
			sealed, err := age.Encrypt(sum, m.recipients...)
			if err != nil {
				return fmt.Errorf("sealing a file: %w", err)
			}
			ahead := newAhead(sealed)
			err = write(db, ahead, func() error { return same(db, sqlDisturbed) })
			if err = errors.Join(err, ahead.Close()); err == nil {
				err = sealed.Close()
			}
			f.size, f.sha256 = sum.n, sum.sum.Sum(nil)
			return err
		})
	})
	if err != nil {
		return err
	}
	return m.Pool.InTx(ctx, func(tx pgx.Tx) error {
		// Whoever accepts an erasure changes the same row, before or after.
		if err := same(tx, sqlDisturbed+` FOR UPDATE`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlObjectWhole, pg.Args{"tenant": m.e.Tenant, "object": f.object, "size": f.size}); err != nil {
			return fmt.Errorf("noting a file: %w", err)
		}
		return accept(tx, f)
	})
}

const sqlObjectWhole = `UPDATE memd.export_objects SET size = @size WHERE tenant_no = @tenant AND object = @object`

const sqlJournalPart = `
INSERT INTO memd.export_parts (tenant_no, export_id, part, after, through, object, size, sha256, counts, members)
VALUES (@tenant, @id, @part, @after, @through, @object, @size, @sha256, @counts, @members)
ON CONFLICT (tenant_no, export_id, part) DO UPDATE SET object = excluded.object, size = excluded.size, sha256 = excluded.sha256,
  counts = excluded.counts, members = excluded.members`

const sqlGotOn = `UPDATE memd.exports SET tries = 0, failure = '' WHERE tenant_no = @tenant AND export_id = @id`

// part writes one part and journals it.
func (m *maker) part(ctx context.Context, s span) error {
	began := m.Clock.Now()
	keys, err := m.Keys(ctx, m.e.Tenant)
	if err != nil {
		return err
	}
	var p *packer
	err = m.seal(ctx, func(db pg.DB, w io.Writer, undisturbed func() error) error {
		p = newPacker(w, db, keys, provenance.New(m.Clock), m.window(began))
		if s.through, err = m.fill(ctx, db, keys, p, s, undisturbed); err != nil {
			return err
		}
		return p.tar.Close()
	}, func(tx pgx.Tx, f written) error {
		counts, err := json.Marshal(p.counts)
		if err != nil {
			return fmt.Errorf("noting counts: %w", err)
		}
		_, err = tx.Exec(ctx, sqlJournalPart, pg.Args{
			"tenant": m.e.Tenant, "id": m.e.ID, "part": s.part, "after": s.after, "through": s.through, "object": f.object,
			"size": f.size, "sha256": f.sha256, "counts": counts, "members": p.sorted(),
		})
		if err == nil {
			_, err = tx.Exec(ctx, sqlGotOn, pg.Args{"tenant": m.e.Tenant, "id": m.e.ID})
		}
		m.OnPart(f.size, p.counts)
		return err
	})
	if err != nil {
		return fmt.Errorf("part %d: %w", s.part, err)
	}
	m.Logger.InfoContext(ctx, "a part of an export is written", "tenant_no", m.e.Tenant, "export_id", m.e.ID, "part", s.part,
		"again", s.again, "subjects", p.counts.Subjects, "took", m.Clock.Now().Sub(began))
	return nil
}

// fill writes subjects until the part is large enough, and returns the last, or
// all when there are none behind.
func (m *maker) fill(ctx context.Context, db pg.DB, k *shred.Keys, p *packer, s span, undisturbed func() error) (memd.Number, error) {
	for after := s.after; ; {
		page, err := provenance.Living(ctx, db, k, m.e.User, after, s.through, subjectPage)
		if err != nil {
			return 0, err
		}
		for _, subject := range page {
			if err := p.subject(ctx, subject, m.e.Kind == KindUser); err != nil {
				return 0, err
			}
			if err := undisturbed(); err != nil {
				return 0, err
			}
			after = subject.Number
			if !s.again && (p.written() >= PartBytes || p.counts.Subjects >= int64(m.PartSubjects)) {
				// A part that is the last says so, and is followed by no empty one.
				rest, err := provenance.Living(ctx, db, k, m.e.User, after, s.through, 1)
				if err != nil || len(rest) > 0 {
					return after, err
				}
				return s.through, nil
			}
		}
		if len(page) < subjectPage {
			return s.through, nil
		}
	}
}

// window is what retention leaves, also where nothing is done on a schedule.
func (m *maker) window(now time.Time) window {
	return window{
		now: now, sessions: m.tenant.Policy.Retention(memd.ClassContent).Cutoff(now),
		memories: m.tenant.Policy.Retention(memd.ClassMemory).Cutoff(now),
	}
}

const sqlParts = `
SELECT part, object, size, sha256, counts FROM memd.export_parts
WHERE tenant_no = @tenant AND export_id = @id AND object IS NOT NULL ORDER BY part`

const sqlReady = `
UPDATE memd.exports SET state = 2, ready_at = @now, manifest = @object, manifest_sha256 = @sha256, manifest_size = @size, tries = 0, failure = ''
WHERE tenant_no = @tenant AND export_id = @id`

// finish writes the manifest, after which the archive is ready.
func (m *maker) finish(ctx context.Context) error {
	now := m.Clock.Now()
	return m.seal(ctx, func(db pg.DB, w io.Writer, _ func() error) error {
		files, err := partsOf(ctx, db, m.e)
		if err != nil {
			return err
		}
		win := m.window(now)
		manifest := Manifest{
			Format: Format, Tenant: m.tenant.Name, ExportID: m.e.ID.String(), Kind: m.e.Kind.String(), MadeAt: now.UTC(),
			SessionsAfter: monthName(win.sessions), MemoriesAfter: monthName(win.memories),
		}
		for _, f := range files {
			manifest.Parts = append(manifest.Parts, f.Part)
			manifest.Totals.add(f.Counts)
		}
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(manifest)
	}, func(tx pgx.Tx, f written) error {
		_, err := tx.Exec(ctx, sqlReady, pg.Args{
			"tenant": m.e.Tenant, "id": m.e.ID, "now": now, "object": f.object, "sha256": f.sha256, "size": f.size,
		})
		m.Logger.InfoContext(ctx, "an export is ready", "tenant_no", m.e.Tenant, "export_id", m.e.ID, "kind", m.e.Kind.String())
		return err
	})
}

func monthName(m memd.Month) string {
	if m < 1 {
		return ""
	}
	return m.Start().Format("2006-01")
}

// file is a file of an archive, and where it is.
type file struct {
	Part
	object uuid.UUID
}

func partsOf(ctx context.Context, db pg.DB, e Export) ([]file, error) {
	rows, err := db.Query(ctx, sqlParts, pg.Args{"tenant": e.Tenant, "id": e.ID})
	var files []file
	if err == nil {
		files, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (f file, err error) {
			var no int
			var sum []byte
			err = row.Scan(&no, &f.object, &f.Size, &sum, &f.Counts)
			f.Name, f.SHA256 = partName(no), hex.EncodeToString(sum)
			return f, err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("reading the parts of an export: %w", err)
	}
	return files, nil
}

// WorkerConfig says what a Worker works with. All fields are required but Store,
// without which nothing can be exported, and OnPart.
type WorkerConfig struct {
	// Pool reaches the database as memd_worker.
	Pool  *pg.Pool
	Keys  func(ctx context.Context, tenant memd.TenantNo) (*shred.Keys, error)
	Store Store
	Clock memd.Clock
	// Logger is told numbers.
	Logger *slog.Logger
	// PartSubjects is how many subjects a part has at most; PartSubjects if zero.
	PartSubjects int
	// OnPart is told of each part that is written.
	OnPart func(size int64, c Counts)
}
