package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

const sqlEnter = `SELECT memd.enter(@tenant, @subjects::bigint[])`

const sqlBeginSave = `
INSERT INTO memd.artifact_versions (tenant_no, subject_no, session_no, version_id, month, source_time, created_at, touched_at)
VALUES (@tenant, @subject, @session, @save, @month, @source_time, @now, @now)`

const sqlInsertChunks = `
INSERT INTO memd.artifact_chunks (tenant_no, subject_no, session_no, version_id, chunk_no, sealed)
SELECT @tenant, @subject, @session, @save, c.chunk_no, c.sealed
FROM unnest(@numbers::int[], @sealed::bytea[]) AS c (chunk_no, sealed)`

const sqlTouch = `
UPDATE memd.artifact_versions SET touched_at = @now
WHERE tenant_no = @tenant AND subject_no = @subject AND session_no = @session AND version_id = @save AND version IS NULL`

// The row lock of the name puts saves of one name in order.
const sqlNextVersion = `
INSERT INTO memd.artifacts AS a (tenant_no, subject_no, session_no, artifact_id, name_digest, sealed_name, month, source_time, created_at)
VALUES (@tenant, @subject, @session, @artifact, @digest, @name, @month, @source_time, @now)
ON CONFLICT (tenant_no, subject_no, session_no, name_digest) DO UPDATE SET last_version = a.last_version + 1
RETURNING artifact_id, last_version`

// No row when the save was swept away, or chunks of it.
const sqlFinishSave = `
UPDATE memd.artifact_versions v SET artifact_id = @artifact, version = @version, sealed_info = @info,
  size = @size, chunks = @chunks, created_at = @now, touched_at = @now
WHERE v.tenant_no = @tenant AND v.subject_no = @subject AND v.session_no = @session AND v.version_id = @save
  AND v.version IS NULL AND @chunks = (
    SELECT count(*) FROM memd.artifact_chunks c WHERE c.tenant_no = v.tenant_no AND c.subject_no = v.subject_no
      AND c.session_no = v.session_no AND c.version_id = v.version_id)`

// touchEvery is how often a save under way says so: well within Abandoned.
const touchEvery = time.Minute

// cleanupTimeout bounds the deletion of a save that broke off, whose caller may
// be gone.
const cleanupTimeout = 10 * time.Second

// stateForeignKey: there is no save any more that a chunk could belong to.
const stateForeignKey = "23503"

// errSwept: the save was so slow that the sweep took it for abandoned.
var errSwept = fmt.Errorf("the save was swept away: %w", memd.ErrStale)

// Save reads r to its end and stores it as the next version of a name. It holds
// neither a transaction nor a connection while it waits for r, and a few chunks
// in memory, whatever the size. When it returns, the version is durable and
// every replica finds it. Not safe to repeat: each save makes a version.
//
// Errors: an *memd.InvalidError; memd.ErrFenced, memd.ErrSessionForgotten,
// memd.ErrErasedBefore, memd.ErrSourceTimeRequired for somebody who is or was
// erased, at whatever point of the save; r's own, wrapped; transient ones. In
// all of them nothing can be read of what was saved, and what was written is
// deleted, at once or by Sweep.
func (s *Service) Save(ctx context.Context, t Tenant, o Owner, name string, f File, r io.Reader) (Version, error) {
	now := s.Clock.Now()
	if err := validateName(o, name); err != nil {
		return Version{}, err
	}
	if err := validateFile(f, now); err != nil {
		return Version{}, err
	}
	u := &upload{s: s, t: t, o: o, name: name, file: f, touched: now}
	var err error
	if u.save, err = uuid.NewRandom(); err != nil {
		return Version{}, fmt.Errorf("naming a save: %w", err)
	}
	if err := u.begin(ctx, now); err != nil {
		return Version{}, err
	}
	v, err := u.run(ctx, r)
	if err != nil {
		// What is left, if this fails, is the sweep's.
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		_ = s.discard(cleanup, t.No, u.Contribution, []uuid.UUID{u.save})
	}
	return v, err
}

// upload is one save under way.
type upload struct {
	s    *Service
	t    Tenant
	o    Owner
	name string
	file File
	place
	save uuid.UUID

	size    int64
	chunks  int32
	touched time.Time
	pending [][]byte // sealed, and not yet written
}

func (u *upload) args(more pg.Args) pg.Args {
	a := pg.Args{"tenant": u.t.No, "subject": u.Subject, "session": u.Session, "save": u.save}
	for name, v := range more {
		a[name] = v
	}
	return a
}

func (u *upload) begin(ctx context.Context, now time.Time) error {
	return u.s.again(ctx, u.t, u.o, func(k *shred.Keys) error {
		return u.s.Pool.With(ctx, func(db pg.DB) (err error) {
			if u.place, err = u.s.admit(ctx, db, k, u.o, u.name, u.file, now); err != nil {
				return err
			}
			_, err = db.Exec(ctx, sqlBeginSave, u.args(pg.Args{"month": u.month, "source_time": optional(u.file.SourceTime), "now": now}))
			if err != nil {
				return fmt.Errorf("beginning a save: %w", err)
			}
			return nil
		})
	})
}

// run reads one chunk ahead, because a chunk has to know whether it is the
// last.
func (u *upload) run(ctx context.Context, r io.Reader) (Version, error) {
	current, next := make([]byte, u.s.chunk), make([]byte, u.s.chunk)
	n, err := u.fill(r, current)
	if err != nil {
		return Version{}, err
	}
	for {
		ahead := 0
		if n == len(current) {
			if ahead, err = u.fill(r, next); err != nil {
				return Version{}, err
			}
		}
		last := ahead == 0
		if err := u.add(ctx, current[:n], last); err != nil {
			return Version{}, err
		}
		if last {
			return u.finish(ctx)
		}
		current, next, n = next, current, ahead
	}
}

// fill reads until the buffer is full or r ends, and counts.
func (u *upload) fill(r io.Reader, b []byte) (int, error) {
	n, err := io.ReadFull(r, b)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, fmt.Errorf("reading what is to be saved: %w", err)
	}
	if u.size += int64(n); u.size > u.s.MaxBytes {
		return 0, invalid("data", "is longer than %d bytes", u.s.MaxBytes)
	}
	return n, nil
}

// add seals a chunk and writes the group when it is full.
func (u *upload) add(ctx context.Context, plain []byte, last bool) error {
	err := u.s.again(ctx, u.t, u.o, func(k *shred.Keys) error {
		sealer, err := u.content(k)
		if err != nil {
			return u.gone(err)
		}
		sealed, err := sealer.Seal(plain, shred.AADArtifactChunk(u.t.No, u.Contribution, u.save, u.chunks, last))
		if err == nil {
			u.pending = append(u.pending, sealed)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("sealing a chunk: %w", err)
	}
	u.chunks++
	if len(u.pending) < u.s.group && !last {
		return nil
	}
	return u.flush(ctx)
}

// gone: the owner's key was shredded in the middle of the save. The guard would
// say so by the fence or the tombstone, were there still something to write.
func (u *upload) gone(err error) error {
	switch {
	case !errors.Is(err, memd.ErrShredded), errors.Is(err, memd.ErrMonthExpired):
		return err
	case u.Session == memd.OwnScope:
		return memd.ErrFenced
	}
	return memd.ErrSessionForgotten
}

// flush writes the pending chunks in one transaction, a single round trip.
func (u *upload) flush(ctx context.Context) error {
	numbers := make([]int32, len(u.pending))
	for i := range numbers {
		numbers[i] = u.chunks - int32(len(u.pending)-i)
	}
	now := u.s.Clock.Now()
	err := u.s.Pool.With(ctx, func(db pg.DB) error {
		var b pgx.Batch
		b.Queue(sqlEnter, pg.Args{"tenant": u.t.No, "subjects": []memd.Number{u.Subject}})
		if now.Sub(u.touched) >= touchEvery {
			b.Queue(sqlTouch, u.args(pg.Args{"now": now})).Exec(func(tag pgconn.CommandTag) error {
				if tag.RowsAffected() == 0 {
					return errSwept
				}
				return nil
			})
		}
		b.Queue(sqlInsertChunks, u.args(pg.Args{"numbers": numbers, "sealed": u.pending}))
		return db.SendBatch(ctx, &b).Close()
	})
	if pg.SQLState(err) == stateForeignKey {
		return errSwept
	}
	if err != nil {
		return fmt.Errorf("writing chunks: %w", err)
	}
	if now.Sub(u.touched) >= touchEvery {
		u.touched = now
	}
	u.pending = u.pending[:0]
	return nil
}

// finish makes the save a version: the one transaction after which it can be
// read.
func (u *upload) finish(ctx context.Context) (Version, error) {
	i := info{Size: u.size, Chunks: u.chunks, Chunk: u.s.chunk, MimeType: u.file.MimeType, Metadata: u.file.Metadata}
	v := Version{Name: u.name, Size: u.size, File: u.file}
	err := u.s.again(ctx, u.t, u.o, func(k *shred.Keys) error {
		return u.s.Pool.InTx(ctx, func(tx pgx.Tx) error {
			v.CreatedAt = u.s.Clock.Now()
			if _, err := tx.Exec(ctx, sqlEnter, pg.Args{"tenant": u.t.No, "subjects": []memd.Number{u.Subject}}); err != nil {
				return fmt.Errorf("finishing a save: %w", err)
			}
			artifact, number, err := u.next(ctx, tx, k, v.CreatedAt)
			if err != nil {
				return err
			}
			v.Number = number
			sealed, err := i.seal(k, u.place, artifact, number, u.save)
			if err != nil {
				return u.gone(err)
			}
			tag, err := tx.Exec(ctx, sqlFinishSave, u.args(pg.Args{
				"artifact": artifact, "version": number, "info": sealed, "size": u.size, "chunks": u.chunks, "now": v.CreatedAt,
			}))
			if err != nil {
				return fmt.Errorf("finishing a save: %w", err)
			}
			if tag.RowsAffected() != 1 {
				return errSwept
			}
			return nil
		})
	})
	if err != nil {
		return Version{}, err
	}
	return v, nil
}

// next finds or makes the artifact and takes the next number of it.
func (u *upload) next(ctx context.Context, tx pgx.Tx, k *shred.Keys, now time.Time) (artifact uuid.UUID, number int64, err error) {
	if artifact, err = uuid.NewRandom(); err != nil {
		return artifact, 0, fmt.Errorf("naming an artifact: %w", err)
	}
	sealer, err := u.content(k)
	if err != nil {
		return artifact, 0, u.gone(err)
	}
	sealed, err := sealer.Seal([]byte(u.name), shred.AADArtifactName(u.t.No, u.Contribution, artifact))
	if err != nil {
		return artifact, 0, fmt.Errorf("sealing a name: %w", err)
	}
	digest, err := u.digest(k, u.name)
	if err != nil {
		return artifact, 0, err
	}
	err = tx.QueryRow(ctx, sqlNextVersion, pg.Args{
		"tenant": u.t.No, "subject": u.Subject, "session": u.Session, "artifact": artifact, "digest": digest,
		"name": sealed, "month": u.month, "source_time": optional(u.file.SourceTime), "now": now,
	}).Scan(&artifact, &number)
	if err != nil {
		return artifact, 0, fmt.Errorf("numbering a version: %w", err)
	}
	return artifact, number, nil
}
