package artifacts

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// The row lock keeps a save of the same name from finishing in between.
const sqlLockName = `
SELECT a.artifact_id FROM memd.artifact_owners o
JOIN memd.artifacts a ON a.tenant_no = o.tenant_no AND a.subject_no = o.subject_no AND a.session_no = o.session_no
WHERE o.tenant_no = @tenant AND o.user_ref = @ref AND o.subject_no = @subject AND o.session_no = @session
  AND a.name_digest = @digest FOR UPDATE OF a`

// At the epoch, the next sweep takes what this process leaves behind.
const sqlDetach = `
UPDATE memd.artifact_versions SET artifact_id = NULL, version = NULL, sealed_info = NULL, touched_at = 'epoch'
WHERE tenant_no = @tenant AND subject_no = @subject AND session_no = @session AND artifact_id = @artifact
  AND (@version::bigint = -1 OR version = @version)
RETURNING version_id`

const sqlDeleteName = `
DELETE FROM memd.artifacts a
WHERE a.tenant_no = @tenant AND a.subject_no = @subject AND a.session_no = @session AND a.artifact_id = @artifact
  AND NOT EXISTS (SELECT FROM memd.artifact_versions v WHERE v.tenant_no = a.tenant_no AND v.subject_no = a.subject_no
    AND v.session_no = a.session_no AND v.artifact_id = a.artifact_id)`

// A save that is about to become a version holds the lock; afterwards it is no
// longer without a number, and is left alone.
const sqlLockUnfinished = `
SELECT version_id FROM memd.artifact_versions
WHERE tenant_no = @tenant AND subject_no = @subject AND session_no = @session AND version_id = ANY (@saves::uuid[]) AND version IS NULL
ORDER BY version_id FOR UPDATE`

const sqlDeleteChunksOf = `
DELETE FROM memd.artifact_chunks c USING (
  SELECT x.version_id, x.chunk_no FROM memd.artifact_chunks x
  WHERE x.tenant_no = @tenant AND x.subject_no = @subject AND x.session_no = @session AND x.version_id = ANY (@saves::uuid[])
  ORDER BY x.version_id, x.chunk_no LIMIT @limit) d
WHERE c.tenant_no = @tenant AND c.subject_no = @subject AND c.session_no = @session
  AND c.version_id = d.version_id AND c.chunk_no = d.chunk_no`

const sqlDeleteUnfinished = `
DELETE FROM memd.artifact_versions
WHERE tenant_no = @tenant AND subject_no = @subject AND session_no = @session AND version_id = ANY (@saves::uuid[]) AND version IS NULL`

// deleteChunks is how many chunks one transaction deletes: 32 MiB.
const deleteChunks = 128

// Delete deletes one version of a name, or with All every version and the name,
// and returns how many versions it deleted. It is safe to repeat: what is gone,
// never was, or is another owner's or tenant's is no error, and these cannot be
// told apart. Nobody reads a deleted version from the moment that Delete's first
// transaction commits; its bytes are gone when it returns nil, and with the next
// sweep otherwise. It stays readable in backups until its owner is erased.
//
// memd.ErrFenced while the user is being erased, because that deletes it.
func (s *Service) Delete(ctx context.Context, t Tenant, o Owner, name string, version int64) (int64, error) {
	if err := validateName(o, name); err != nil {
		return 0, err
	}
	if version < All {
		return 0, invalid("version", "must not be negative")
	}
	var at place
	var saves []uuid.UUID
	err := s.again(ctx, t, o, func(k *shred.Keys) error {
		return s.Pool.InTx(ctx, func(tx pgx.Tx) (err error) {
			at, saves, err = detach(ctx, tx, k, o, name, version)
			return err
		})
	})
	if errors.Is(err, memd.ErrNotFound) || errors.Is(err, memd.ErrShredded) || errors.Is(err, memd.ErrSessionForgotten) || errors.Is(err, memd.ErrMonthExpired) {
		return 0, nil
	}
	if err != nil || len(saves) == 0 {
		return 0, err
	}
	return int64(len(saves)), s.discard(ctx, t.No, at.Contribution, saves)
}

// All asks Delete for every version.
const All int64 = -1

// detach takes the numbers away, and the name when it has no version left.
func detach(ctx context.Context, tx pgx.Tx, k *shred.Keys, o Owner, name string, version int64) (place, []uuid.UUID, error) {
	ref := userRef(k, o)
	var fenced bool
	if err := tx.QueryRow(ctx, sqlFenceUp, pg.Args{"tenant": k.Tenant(), "ref": ref[:]}).Scan(&fenced); err != nil {
		return place{}, nil, err
	}
	if fenced {
		return place{}, nil, memd.ErrFenced
	}
	p, err := placeOf(ctx, tx, k, o, name)
	if err != nil {
		return p, nil, err
	}
	digest, err := p.digest(k, name)
	if err != nil {
		return p, nil, err
	}
	if _, err := tx.Exec(ctx, sqlEnter, pg.Args{"tenant": k.Tenant(), "subjects": []memd.Number{p.Subject}}); err != nil {
		return p, nil, fmt.Errorf("deleting an artifact: %w", err)
	}
	var artifact uuid.UUID
	err = tx.QueryRow(ctx, sqlLockName, pg.Args{
		"tenant": k.Tenant(), "ref": ref[:], "subject": p.Subject, "session": p.Session, "digest": digest,
	}).Scan(&artifact)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, nil, memd.ErrNotFound
	} else if err != nil {
		return p, nil, fmt.Errorf("deleting an artifact: %w", err)
	}
	args := pg.Args{"tenant": k.Tenant(), "subject": p.Subject, "session": p.Session, "artifact": artifact, "version": version}
	rows, err := tx.Query(ctx, sqlDetach, args)
	if err != nil {
		return p, nil, fmt.Errorf("deleting an artifact: %w", err)
	}
	saves, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return p, nil, fmt.Errorf("deleting an artifact: %w", err)
	}
	delete(args, "version")
	if _, err := tx.Exec(ctx, sqlDeleteName, args); err != nil {
		return p, nil, fmt.Errorf("deleting a name: %w", err)
	}
	return p, saves, nil
}

// discard deletes saves that are no versions, in batches.
func (s *Service) discard(ctx context.Context, tenant memd.TenantNo, owner memd.Contribution, saves []uuid.UUID) error {
	for done := false; !done; {
		err := s.Pool.InTx(ctx, func(tx pgx.Tx) (err error) {
			done, err = discardBatch(ctx, tx, tenant, owner, saves)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// discardBatch deletes up to deleteChunks chunks, and the saves when none is
// left. It reports whether that was all.
func discardBatch(ctx context.Context, tx pgx.Tx, tenant memd.TenantNo, owner memd.Contribution, saves []uuid.UUID) (bool, error) {
	args := pg.Args{"tenant": tenant, "subject": owner.Subject, "session": owner.Session, "saves": saves}
	rows, err := tx.Query(ctx, sqlLockUnfinished, args)
	if err != nil {
		return false, fmt.Errorf("deleting a save: %w", err)
	}
	locked, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(locked) == 0 {
		return err == nil, err
	}
	args["saves"] = locked
	args["limit"] = deleteChunks
	tag, err := tx.Exec(ctx, sqlDeleteChunksOf, args)
	if err != nil {
		return false, fmt.Errorf("deleting chunks: %w", err)
	}
	if tag.RowsAffected() == deleteChunks {
		return false, nil
	}
	delete(args, "limit")
	if _, err := tx.Exec(ctx, sqlDeleteUnfinished, args); err != nil {
		return false, fmt.Errorf("deleting a save: %w", err)
	}
	return true, nil
}
