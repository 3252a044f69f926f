package shred

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Restorer is the identity of the key service that makes a version usable again
// which was destroyed and is still within its delay. None of memd's processes
// has it.
type Restorer interface {
	// Restore makes a version enabled. Safe to repeat. memd.ErrShredded: it is
	// destroyed for good.
	Restore(ctx context.Context, version string) (Version, error)
}

// Undo is what Rotator.Undo did.
type Undo struct {
	// Epoch is the state of the key tree in which the keys are there again, and
	// Source the one that they came from.
	Epoch, Source int64
	Paths         []Path
	// Version is the one that had been destroyed wrongly, was restored, and is
	// destroyed again.
	Version Version
}

const (
	sqlRequestUndo = `
INSERT INTO memd.undos (tenant_no, request_id, requested_by, requested_at, sealed_reason)
VALUES (@tenant, @request, @by, @now, @reason)
ON CONFLICT (tenant_no, request_id) DO UPDATE SET
  requested_by = excluded.requested_by, requested_at = excluded.requested_at, sealed_reason = excluded.sealed_reason,
  approved_by = NULL, approved_at = NULL
WHERE memd.undos.epoch IS NULL`

	sqlReadUndoRequest = `
SELECT requested_by, requested_at, sealed_reason FROM memd.undos WHERE tenant_no = @tenant AND request_id = @request`

	// Approved again by the same person when the first attempt did not get through.
	sqlApproveUndo = `
UPDATE memd.undos SET approved_by = @by, approved_at = @now
WHERE tenant_no = @tenant AND request_id = @request AND requested_by <> @by AND (epoch IS NULL OR approved_by = @by)`

	sqlReadUndo = `
SELECT coalesce(epoch, 0), coalesce(source, 0), coalesce(paths, '{}'), approved_by IS NOT NULL
FROM memd.undos WHERE tenant_no = @tenant AND request_id = @request`

	sqlReadGraft = `SELECT source, paths FROM memd.undos WHERE tenant_no = @tenant AND epoch = @epoch`

	// The branch of subjects: a job's own leaf stays dead.
	sqlPunctured = `
SELECT epoch, path FROM memd.punctures
WHERE tenant_no = @tenant AND request_id = @request AND epoch IS NOT NULL AND path LIKE '0%' ORDER BY path`

	sqlPuncturedBelow = `
SELECT DISTINCT p.path FROM memd.punctures p JOIN unnest(@paths::text[]) AS g (path) ON starts_with(p.path, g.path)
WHERE p.tenant_no = @tenant AND p.request_id <> @request AND p.epoch IS NOT NULL ORDER BY p.path`

	sqlPuncturedAbove = `
SELECT EXISTS (SELECT FROM memd.punctures p JOIN unnest(@paths::text[]) AS g (path) ON starts_with(g.path, p.path)
               WHERE p.tenant_no = @tenant AND p.request_id <> @request)`

	sqlGrafted = `
UPDATE memd.undos SET epoch = @epoch, source = @source, paths = @paths
WHERE tenant_no = @tenant AND request_id = @request AND epoch IS NULL AND approved_by IS NOT NULL`

	sqlUndoErasure = `SELECT memd.undo_erasure(@tenant, @request)`
)

// RequestUndo notes who asks to have the keys of an erasure back, and why, sealed; a
// request that was not carried out is replaced, and its approval void. The pool
// of db is the owner's, here and below. kms opens the tenant's keys.
func RequestUndo(ctx context.Context, db pg.DB, kms KMS, tenant memd.TenantNo, request, by uuid.UUID, reason string, now time.Time) error {
	var sealed []byte
	err := withNotes(ctx, db, kms, tenant, func(notes *Sealer) (err error) {
		sealed, err = notes.Seal([]byte(reason), AADUndoReason(tenant, request))
		return err
	})
	if err != nil {
		return fmt.Errorf("sealing why an erasure is undone: %w", err)
	}
	_, err = db.Exec(ctx, sqlRequestUndo, pg.Args{"tenant": tenant, "request": request, "by": by, "reason": sealed, "now": now})
	if err != nil {
		return fmt.Errorf("requesting an undo: %w", err)
	}
	return nil
}

// UndoRequest is what somebody asks to have approved.
type UndoRequest struct {
	By     uuid.UUID // an API key
	At     time.Time
	Reason string
}

// ReadUndoRequest returns who asks for an undo, and why, or memd.ErrNotFound.
func ReadUndoRequest(ctx context.Context, db pg.DB, kms KMS, tenant memd.TenantNo, request uuid.UUID) (UndoRequest, error) {
	var r UndoRequest
	var sealed []byte
	err := db.QueryRow(ctx, sqlReadUndoRequest, pg.Args{"tenant": tenant, "request": request}).Scan(&r.By, &r.At, &sealed)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, fmt.Errorf("nobody else asked for this undo: %w", memd.ErrNotFound)
	}
	if err != nil {
		return r, fmt.Errorf("reading who asks for an undo: %w", err)
	}
	return r, withNotes(ctx, db, kms, tenant, func(notes *Sealer) error {
		plain, err := notes.Open(sealed, AADUndoReason(tenant, request))
		r.Reason = string(plain)
		return err
	})
}

func withNotes(ctx context.Context, db pg.DB, kms KMS, tenant memd.TenantNo, use func(*Sealer) error) error {
	k, err := Head(ctx, db, kms, tenant)
	if err != nil {
		return err
	}
	defer k.Drop()
	notes, err := k.Notes()
	if err != nil {
		return err
	}
	return use(notes)
}

// ApproveUndo notes who approves. memd.ErrPermissionDenied: nobody asked, it is
// done, or it is who asked.
func ApproveUndo(ctx context.Context, db pg.DB, tenant memd.TenantNo, request, by uuid.UUID, now time.Time) error {
	tag, err := db.Exec(ctx, sqlApproveUndo, pg.Args{"tenant": tenant, "request": request, "by": by, "now": now})
	if err != nil {
		return fmt.Errorf("approving an undo: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("nobody else asked for this undo, or it is done: %w", memd.ErrPermissionDenied)
	}
	return nil
}

// Undo takes back what an erasure did to the keys, while the key service can
// restore the version that was destroyed after it: the version is restored, what
// the erasure punctured is grafted into a new state of the key tree under a new
// version, and the restored one is destroyed again, with the one before the new.
// Nobody else who was erased with it comes back, nor what was erased below it on
// its own account. The erasure's tombstones and fence go in the transaction that
// makes the new state the head. Rows that were deleted stay deleted; those of
// backups open again.
//
// It needs an approval, and a pool of the owner's. Safe to repeat from wherever
// it stopped; one that is done is returned again. memd.ErrNotFound: the erasure
// punctured nothing, or not yet. memd.ErrInvalid: another erasure took the same.
// *LostKeysError: the version was destroyed for good.
func (r *Rotator) Undo(ctx context.Context, tenant memd.TenantNo, request uuid.UUID, restorer Restorer) (Undo, error) {
	// What was begun ends first, and what is pending is punctured: it stays so.
	if _, err := r.Rotate(ctx, tenant); err != nil {
		return Undo{}, err
	}
	s, err := r.lock(ctx, tenant)
	if err != nil {
		return Undo{}, err
	}
	u, err := r.undo(ctx, s, tenant, request, restorer)
	if released := s.unlock(ctx); released != nil {
		r.c.Logger.WarnContext(ctx, "giving up the lock of a rotation", "tenant", tenant, "error", released)
	}
	if err != nil {
		return Undo{}, fmt.Errorf("undoing an erasure of tenant %s: %w", tenant, err)
	}
	return u, nil
}

func (r *Rotator) undo(ctx context.Context, s *session, tenant memd.TenantNo, request uuid.UUID, restorer Restorer) (Undo, error) {
	var u Undo
	var approved bool
	err := s.QueryRow(ctx, sqlReadUndo, pg.Args{"tenant": tenant, "request": request}).Scan(&u.Epoch, &u.Source, &u.Paths, &approved)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !approved {
		return u, fmt.Errorf("nobody approved it: %w", memd.ErrPermissionDenied)
	}
	if err != nil {
		return u, fmt.Errorf("reading an undo: %w", err)
	}
	if u.Epoch == 0 {
		if u, err = r.graft(ctx, s, tenant, request, restorer); err != nil {
			return u, err
		}
	} else if err := r.restoreSource(ctx, s, tenant, u.Source, restorer); err != nil {
		return u, err
	}
	if _, err := r.run(ctx, s, tenant, false); err != nil {
		return u, err
	}
	source, err := readEpoch(ctx, s, tenant, u.Source)
	if err != nil {
		return u, err
	}
	if u.Version, err = r.c.Worker.Get(ctx, source.KMSVersion); err == nil && !u.Version.State.Doomed() {
		err = fmt.Errorf("the restored version is %v: %w", u.Version.State, memd.ErrErasureUnfinished)
	}
	return u, err
}

// restoreSource restores the version of the source of a graft that is not proved
// yet; after that nobody needs it.
func (r *Rotator) restoreSource(ctx context.Context, db pg.DB, tenant memd.TenantNo, epoch int64, restorer Restorer) error {
	l, err := readLine(ctx, db, tenant)
	if err != nil || l.current.State != RotationSwitched {
		return err
	}
	tree, err := r.openSource(ctx, db, tenant, epoch, restorer)
	if err == nil {
		tree.Zero()
	}
	return err
}

// graft makes the new state and switches to it.
func (r *Rotator) graft(ctx context.Context, s *session, tenant memd.TenantNo, request uuid.UUID, restorer Restorer) (Undo, error) {
	l, err := readLine(ctx, s, tenant)
	if err == nil {
		err = l.readState(ctx, s)
	}
	if err != nil {
		return Undo{}, err
	}
	u, err := punctured(ctx, s, tenant, request)
	if err != nil {
		return u, err
	}
	e := l.nextEntry()
	u.Epoch = e.epoch
	if err := r.ledgersBehind(ctx, s, e); err != nil {
		return u, err
	}
	head, err := l.head.open(ctx, r.c.Worker)
	if err != nil {
		return u, unopenable(l.head, err)
	}
	defer head.Zero()
	source, err := r.source(ctx, s, tenant, request, u, restorer)
	if err != nil {
		return u, err
	}
	defer source.Zero()
	next, err := head.Graft(source, u.Paths)
	if err != nil {
		return u, err
	}
	defer next.Zero()
	if err := ProveGraft(head, source, next, u.Paths); err != nil {
		return u, err
	}
	j, err := r.intend(ctx, s, l)
	if err == nil && j.State == RotationIntended {
		j, err = r.makeVersion(ctx, s, l, j)
	}
	if err != nil {
		return u, err
	}
	row, err := r.seal(ctx, l, next, j.NewVersion)
	if err != nil {
		return u, r.spoiltVersion(ctx, s, l, j, err)
	}
	return u, r.switchTo(ctx, s, l, row, nil, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sqlGrafted, pg.Args{
			"tenant": tenant, "request": request, "epoch": u.Epoch, "source": u.Source, "paths": pathStrings(u.Paths),
		})
		if err == nil && tag.RowsAffected() != 1 {
			err = errRestart
		}
		if err == nil {
			_, err = tx.Exec(ctx, sqlUndoErasure, pg.Args{"tenant": tenant, "request": request})
		}
		return err
	})
}

// punctured finds what an erasure punctured, and from which state.
func punctured(ctx context.Context, db pg.DB, tenant memd.TenantNo, request uuid.UUID) (u Undo, err error) {
	rows, err := db.Query(ctx, sqlPunctured, pg.Args{"tenant": tenant, "request": request})
	if err != nil {
		return u, fmt.Errorf("reading punctures: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
		Epoch int64
		Path  Path
	}])
	if err != nil {
		return u, fmt.Errorf("reading punctures: %w", err)
	}
	for _, f := range found {
		if u.Source != 0 && u.Source != f.Epoch-1 {
			return u, corrupt("erasure punctured in two rotations")
		}
		u.Source, u.Paths = f.Epoch-1, append(u.Paths, f.Path)
	}
	if len(found) == 0 {
		return u, fmt.Errorf("punctures of an erasure: %w", memd.ErrNotFound)
	}
	var others bool
	err = db.QueryRow(ctx, sqlPuncturedAbove, pg.Args{"tenant": tenant, "request": request, "paths": pathStrings(u.Paths)}).Scan(&others)
	if err == nil && others {
		err = &memd.InvalidError{Field: "erasure", Problem: "is of something that went with another erasure too"}
	}
	return u, err
}

// UndoSource returns the version that an undo of an erasure would restore, as the
// key service has it. memd.ErrNotFound: the erasure punctured nothing, or not
// yet; memd.ErrInvalid: another erasure took the same; *LostKeysError: it is
// destroyed for good.
func UndoSource(ctx context.Context, db pg.DB, kms KMS, tenant memd.TenantNo, request uuid.UUID) (Version, error) {
	u, err := punctured(ctx, db, tenant, request)
	if err != nil {
		return Version{}, err
	}
	_, version, err := sourceVersion(ctx, db, kms, tenant, u.Source)
	return version, err
}

func sourceVersion(ctx context.Context, db pg.DB, kms KMS, tenant memd.TenantNo, epoch int64) (treeRow, Version, error) {
	row, err := readEpoch(ctx, db, tenant, epoch)
	if err != nil {
		return row, Version{}, err
	}
	version, err := kms.Get(ctx, row.KMSVersion)
	if err != nil {
		return row, version, fmt.Errorf("asking for the version to be restored: %w", err)
	}
	if version.State == VersionDestroyed {
		err = &LostKeysError{Tenant: tenant, Epoch: epoch, Version: version}
	}
	return row, version, err
}

// source opens the state from before the erasure, without what others erased
// below its paths. The caller zeroes the tree.
func (r *Rotator) source(ctx context.Context, db pg.DB, tenant memd.TenantNo, request uuid.UUID, u Undo, restorer Restorer) (*Tree, error) {
	dead, err := readPaths(ctx, db, sqlPuncturedBelow, pg.Args{"tenant": tenant, "request": request, "paths": pathStrings(u.Paths)})
	if err != nil {
		return nil, err
	}
	tree, err := r.openSource(ctx, db, tenant, u.Source, restorer)
	if err != nil || len(dead) == 0 {
		return tree, err
	}
	defer tree.Zero()
	return tree.Next(dead)
}

// openSource restores a version and opens what it wraps. A version that was just
// restored may be refused for a while yet.
func (r *Rotator) openSource(ctx context.Context, db pg.DB, tenant memd.TenantNo, epoch int64, restorer Restorer) (*Tree, error) {
	row, _, err := sourceVersion(ctx, db, r.c.Worker, tenant, epoch)
	if err != nil {
		return nil, err
	}
	if _, err := restorer.Restore(ctx, row.KMSVersion); err != nil {
		return nil, fmt.Errorf("restoring a key version: %w", err)
	}
	limited, cancel := context.WithTimeout(ctx, r.c.ConfirmWait)
	defer cancel()
	for poll := confirmPollMin; ; {
		tree, err := row.open(limited, r.c.Worker)
		if err == nil || !errors.Is(err, memd.ErrShredded) {
			return tree, err
		}
		if pause(limited, &poll, confirmPollMax) != nil {
			return nil, unopenable(row, err)
		}
	}
}

// graftOf is what the journal of undos says of a state.
type graftOf struct {
	source int64
	paths  []Path
}

func readGraft(ctx context.Context, db pg.DB, e entry) (*graftOf, error) {
	var g graftOf
	err := db.QueryRow(ctx, sqlReadGraft, pg.Args{"tenant": e.tenant, "epoch": e.epoch}).Scan(&g.source, &g.paths)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, pg.Classify(fmt.Errorf("reading an undo: %w", err))
	}
	return &g, nil
}

// proveGraft is the second half of step 5 for a state that was made by an undo.
func (r *Rotator) proveGraft(ctx context.Context, s *session, l line, g graftOf, old, tree *Tree) error {
	row, err := readEpoch(ctx, s, l.head.Tenant, g.source)
	if err != nil {
		return err
	}
	source, err := row.open(ctx, r.c.Worker)
	if errors.Is(err, memd.ErrShredded) {
		return fmt.Errorf("an undo broke off, run it again: %w (%v)", memd.ErrErasureUnfinished, err)
	}
	if err != nil {
		return err
	}
	defer source.Zero()
	// The erasure's own punctures are gone since the switch.
	dead, err := readPaths(ctx, s, sqlPuncturedBelow, pg.Args{"tenant": l.head.Tenant, "request": uuid.Nil, "paths": pathStrings(g.paths)})
	if err != nil {
		return err
	}
	cut, err := source.Next(dead)
	if err != nil {
		return err
	}
	defer cut.Zero()
	err = ProveGraft(old, cut, tree, g.paths)
	if errors.Is(err, memd.ErrCorrupt) {
		return errors.Join(err, r.move(ctx, s, l, step{to: RotationRefused}))
	}
	return err
}
