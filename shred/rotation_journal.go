package shred

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// RotationState is how far a rotation got, as its journal says.
type RotationState int16

// The states of a rotation, in the order in which they are reached; the last
// two are ends off the way. Stored: new ones are appended, never inserted.
const (
	// RotationUnknown is the zero value and never stored.
	RotationUnknown RotationState = iota
	// RotationIntended: nothing done, the old version noted.
	RotationIntended
	// RotationVersioned: the new version was made, nothing is sealed under it
	// that counts.
	RotationVersioned
	// RotationSwitched: the new epoch is the head, and the old version is to be
	// destroyed.
	RotationSwitched
	// RotationProved: the new state is in every ledger and covers all that was
	// not to be erased.
	RotationProved
	// RotationDestroyed: the KMS was told to destroy the old version.
	RotationDestroyed
	// RotationConfirmed: the KMS refuses the old version, and no other is left.
	RotationConfirmed
	// RotationFinished: no process holds the old epoch. The end.
	RotationFinished
	// RotationRefused: the proof failed, so nothing was destroyed. The next
	// rotation derives the state again from the predecessor.
	RotationRefused
	// RotationSuperseded: a later rotation did what was left to do. An end.
	RotationSuperseded
	// RotationVoided: the journal asked for the destruction of a version that
	// must stay. Nothing was destroyed. An end.
	RotationVoided
)

var rotationStates = [...]string{
	"unknown", "intended", "versioned", "switched", "proved", "destroyed", "confirmed", "finished",
	"refused", "superseded", "voided",
}

// String returns the state's name.
func (s RotationState) String() string {
	if s < 0 || int(s) >= len(rotationStates) {
		return rotationStates[0]
	}
	return rotationStates[s]
}

// settled reports whether nothing is left to do for the rotation itself.
func (s RotationState) settled() bool { return s >= RotationFinished }

// Rotation is one step of a tenant's line of trees, as far as it got.
type Rotation struct {
	Tenant memd.TenantNo
	// Epoch is the new one. Epoch 1 was no rotation: it has no old version.
	Epoch int64
	State RotationState
	// OldVersion and NewVersion are KMS version names.
	OldVersion, NewVersion string
	// TreeBefore and TreeAfter are the states' digests.
	TreeBefore, TreeAfter [32]byte
	// DestroyedAt is when the KMS was told to destroy OldVersion, from when on
	// it refuses it; DestroyDue is when it deletes the key material. Zero until
	// then.
	DestroyedAt, DestroyDue time.Time
	// Punctured is the number of paths that it erased.
	Punctured int
}

const sqlSelectRotation = `
SELECT t.epoch, COALESCE(r.state, @finished::smallint) AS state, COALESCE(r.old_version, '') AS old_version,
       t.kms_version, t.previous, t.digest, r.destroyed_at, r.destroy_due,
       (SELECT count(*) FROM memd.punctures p WHERE p.tenant_no = t.tenant_no AND p.epoch = t.epoch) AS punctured
FROM memd.key_trees t
LEFT JOIN memd.rotations r ON r.tenant_no = t.tenant_no AND r.epoch = t.epoch
WHERE t.tenant_no = @tenant AND t.epoch = @epoch`

// ReadRotation returns the rotation that made an epoch, or memd.ErrNotFound.
func ReadRotation(ctx context.Context, db pg.DB, tenant memd.TenantNo, epoch int64) (Rotation, error) {
	r := Rotation{Tenant: tenant}
	var before, after []byte
	var destroyed, due *time.Time
	err := db.QueryRow(ctx, sqlSelectRotation, pg.Args{
		"tenant": tenant, "epoch": epoch, "finished": RotationFinished,
	}).Scan(&r.Epoch, &r.State, &r.OldVersion, &r.NewVersion, &before, &after, &destroyed, &due, &r.Punctured)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Rotation{}, fmt.Errorf("reading a rotation: %w", memd.ErrNotFound)
	case err != nil:
		return Rotation{}, pg.Classify(fmt.Errorf("reading a rotation: %w", err))
	case copy(r.TreeBefore[:], before) != 32 || copy(r.TreeAfter[:], after) != 32:
		return Rotation{}, corrupt("digest of a stored tree has another length")
	}
	if destroyed != nil {
		r.DestroyedAt = *destroyed
	}
	if due != nil {
		r.DestroyDue = *due
	}
	return r, nil
}

const sqlSelectFinishedEpoch = `
SELECT COALESCE(max(epoch), 0) FROM memd.rotations WHERE tenant_no = @tenant AND state = @finished`

// FinishedEpoch returns the latest epoch whose rotation is finished, or 0. What
// was punctured in it or before cannot be derived by anybody any more.
func FinishedEpoch(ctx context.Context, db pg.DB, tenant memd.TenantNo) (int64, error) {
	var epoch int64
	err := db.QueryRow(ctx, sqlSelectFinishedEpoch, pg.Args{
		"tenant": tenant, "finished": RotationFinished,
	}).Scan(&epoch)
	if err != nil {
		return 0, pg.Classify(fmt.Errorf("reading finished rotations: %w", err))
	}
	return epoch, nil
}

// journal is a stored rotation as the rotator needs it.
type journal struct {
	Epoch      int64         `db:"epoch"`
	State      RotationState `db:"state"`
	OldVersion string        `db:"old_version"`
	NewVersion string        `db:"new_version"`
}

// entry is the key of a journal row.
type entry struct {
	tenant memd.TenantNo
	epoch  int64
}

const sqlSelectJournal = `
SELECT epoch, state, old_version, new_version FROM memd.rotations
WHERE tenant_no = @tenant AND epoch >= @epoch ORDER BY epoch`

func readJournal(ctx context.Context, db pg.DB, tenant memd.TenantNo, from int64) ([]journal, error) {
	rows, err := db.Query(ctx, sqlSelectJournal, pg.Args{"tenant": tenant, "epoch": from})
	if err != nil {
		return nil, pg.Classify(fmt.Errorf("reading the journal: %w", err))
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[journal])
	if err != nil {
		return nil, pg.Classify(fmt.Errorf("reading the journal: %w", err))
	}
	return found, nil
}

const sqlInsertIntent = `
INSERT INTO memd.rotations (tenant_no, epoch, state, old_version, started_at, updated_at)
VALUES (@tenant, @epoch, @state, @old, @now, @now)
ON CONFLICT (tenant_no, epoch) DO NOTHING`

const sqlResetIntent = `
UPDATE memd.rotations SET state = @state, old_version = @old, new_version = '', updated_at = @now,
       destroyed_at = NULL, destroy_due = NULL
WHERE tenant_no = @tenant AND epoch = @epoch`

// journalIntent notes that epoch is about to be made. With reset, what the
// journal said about that epoch before is forgotten.
func journalIntent(ctx context.Context, db pg.DB, e entry, old string, reset bool, now time.Time) error {
	sql := sqlInsertIntent
	if reset {
		sql = sqlResetIntent
	}
	_, err := db.Exec(ctx, sql, pg.Args{
		"tenant": e.tenant, "epoch": e.epoch, "state": RotationIntended, "old": old, "now": now,
	})
	if err != nil {
		return pg.Classify(fmt.Errorf("journalling the intent: %w", err))
	}
	return nil
}

const sqlAdvanceRotation = `
UPDATE memd.rotations SET state = @to, updated_at = @now,
       old_version = COALESCE(NULLIF(@old, ''), old_version),
       new_version = COALESCE(NULLIF(@new, ''), new_version),
       destroyed_at = COALESCE(destroyed_at, @destroyed),
       destroy_due = COALESCE(@due, destroy_due)
WHERE tenant_no = @tenant AND epoch = @epoch AND state = @from`

// step is one move of the journal; empty fields leave theirs as they are.
type step struct {
	from, to       RotationState
	old, new       string
	destroyed, due *time.Time
}

// errRestart: another rotator was quicker. The caller looks again at where the
// tenant's line stands. It is memd.ErrStale, should it ever get out.
var errRestart = fmt.Errorf("rotation moved on elsewhere: %w", memd.ErrStale)

// advanceJournal makes the step, or returns errRestart when the journal is not
// where the step begins.
func advanceJournal(ctx context.Context, db pg.DB, e entry, s step, now time.Time) error {
	tag, err := db.Exec(ctx, sqlAdvanceRotation, pg.Args{
		"tenant": e.tenant, "epoch": e.epoch, "from": s.from, "to": s.to, "old": s.old, "new": s.new,
		"destroyed": s.destroyed, "due": s.due, "now": now,
	})
	if err != nil {
		return pg.Classify(fmt.Errorf("journalling %v: %w", s.to, err))
	}
	if tag.RowsAffected() != 1 {
		return errRestart
	}
	return nil
}

const sqlSupersedeRotations = `
UPDATE memd.rotations SET state = @superseded, updated_at = @now
WHERE tenant_no = @tenant AND epoch < @epoch AND NOT state = ANY(@settled::smallint[])`

// supersedeOlder closes what earlier rotations left open: the one that is
// finished has seen to every version below its own.
func supersedeOlder(ctx context.Context, db pg.DB, e entry, now time.Time) error {
	_, err := db.Exec(ctx, sqlSupersedeRotations, pg.Args{
		"tenant": e.tenant, "epoch": e.epoch, "superseded": RotationSuperseded, "now": now,
		"settled": []int16{int16(RotationFinished), int16(RotationSuperseded), int16(RotationVoided)},
	})
	if err != nil {
		return pg.Classify(fmt.Errorf("closing earlier rotations: %w", err))
	}
	return nil
}

const sqlSwitchRotation = `
UPDATE memd.rotations SET state = @to, updated_at = @now
WHERE tenant_no = @tenant AND epoch = @epoch AND state = @from AND new_version = @version`

// switchJournal says "destroy the old version", if the journal names the new one.
func switchJournal(ctx context.Context, db pg.DB, e entry, version string, now time.Time) error {
	tag, err := db.Exec(ctx, sqlSwitchRotation, pg.Args{
		"tenant": e.tenant, "epoch": e.epoch, "from": RotationVersioned, "to": RotationSwitched,
		"version": version, "now": now,
	})
	if err != nil {
		return pg.Classify(fmt.Errorf("journalling the switch: %w", err))
	}
	if tag.RowsAffected() != 1 {
		return errRestart
	}
	return nil
}

// rotationState returns how far the rotation to an epoch got.
func rotationState(ctx context.Context, db pg.DB, e entry) (RotationState, error) {
	entries, err := readJournal(ctx, db, e.tenant, e.epoch)
	if err != nil || len(entries) == 0 || entries[0].Epoch != e.epoch {
		return RotationUnknown, err
	}
	return entries[0].State, nil
}
