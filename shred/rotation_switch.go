package shred

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// advance does steps 0 to 3 of a rotation: it journals the intent, makes a key
// version, seals the next state under it, and makes that state the head in the
// transaction that also says "destroy the old version".
func (r *Rotator) advance(ctx context.Context, s *session, l line) error {
	e := l.nextEntry()
	if err := r.ledgersBehind(ctx, s, e); err != nil {
		return err
	}
	old, err := r.expected(ctx, s, l.head, l.current.State, maxRederive)
	if err != nil {
		return unopenable(l.head, err)
	}
	defer old.Zero()
	j, err := r.intend(ctx, s, l)
	if err != nil {
		return err
	}
	if j.State == RotationIntended {
		if j, err = r.makeVersion(ctx, s, l, j); err != nil {
			return err
		}
	}
	paths, err := PendingPunctures(ctx, s, e.tenant)
	if err != nil {
		return err
	}
	row, err := r.sealNext(ctx, l, old, paths, j.NewVersion)
	if err != nil {
		return r.spoiltVersion(ctx, s, l, j, err)
	}
	return r.switchTo(ctx, s, l, row, paths, func(pgx.Tx) error { return nil })
}

// ledgersBehind makes sure that no ledger knows the epoch that is about to be
// made. The database gets an epoch first, so one that does belongs to a database
// that was rolled back since, or another rotator has just been quicker.
func (r *Rotator) ledgersBehind(ctx context.Context, db pg.DB, e entry) error {
	err := absentEverywhere(ctx, r.c.Ledgers, e.tenant, e.epoch)
	if !errors.Is(err, errLedgerAhead) {
		return err
	}
	now, asked := headEpoch(ctx, db, e.tenant)
	if asked != nil {
		return asked
	}
	if now >= e.epoch {
		return errRestart
	}
	return err
}

// intend is step 0. What the journal already says about this epoch stands, if
// it fits the head: the head is the truth, and the journal may come from before
// the database was rolled back.
func (r *Rotator) intend(ctx context.Context, s *session, l line) (journal, error) {
	e, now := l.nextEntry(), r.c.Clock.Now()
	stale := l.next.State != RotationUnknown && !fits(l)
	if stale {
		r.c.Logger.WarnContext(ctx, "journal does not fit the head of the key tree, beginning again",
			"tenant", e.tenant, "epoch", e.epoch, "state", l.next.State.String())
	}
	if stale || l.next.State == RotationUnknown {
		if err := journalIntent(ctx, s, e, l.head.KMSVersion, stale, now); err != nil {
			return journal{}, err
		}
	}
	entries, err := readJournal(ctx, s, e.tenant, e.epoch)
	if err != nil {
		return journal{}, err
	}
	if len(entries) == 0 || entries[0].Epoch != e.epoch {
		return journal{}, errRestart
	}
	return entries[0], nil
}

// fits reports whether a journalled rotation can go on from the head.
func fits(l line) bool {
	switch {
	case l.next.OldVersion != l.head.KMSVersion:
		return false
	case l.next.State == RotationIntended:
		return true
	case l.next.State == RotationVersioned:
		return newer(l.head.Key, l.next.NewVersion, l.head.KMSVersion)
	default:
		return false // A switch makes the epoch the head, so it cannot be ahead.
	}
}

// newer reports whether both versions are key's and the first was made later.
func newer(key, version, than string) bool {
	n, err := versionNumber(key, version)
	if err != nil {
		return false
	}
	m, err := versionNumber(key, than)
	return err == nil && n > m
}

// makeVersion is step 1. An intent that was there before may have been followed
// by a version whose name was never noted: the newest such version is used.
func (r *Rotator) makeVersion(ctx context.Context, s *session, l line, j journal) (journal, error) {
	var version string
	var err error
	if l.next.State == RotationIntended {
		if version, err = r.forgottenVersion(ctx, l.head); err != nil {
			return j, err
		}
	}
	if version == "" {
		if version, err = r.c.Worker.CreateVersion(ctx, l.head.Key); err != nil {
			return j, fmt.Errorf("making a key version: %w", err)
		}
	}
	if !newer(l.head.Key, version, l.head.KMSVersion) {
		return j, corrupt("the KMS made a version with a lower number than the current one's")
	}
	err = advanceJournal(ctx, s, l.nextEntry(), step{
		from: RotationIntended, to: RotationVersioned, new: version,
	}, r.c.Clock.Now())
	if err != nil {
		return j, err
	}
	j.State, j.NewVersion = RotationVersioned, version
	return j, nil
}

func (r *Rotator) forgottenVersion(ctx context.Context, head treeRow) (string, error) {
	versions, err := r.c.Worker.List(ctx, head.Key)
	if err != nil {
		return "", fmt.Errorf("listing the key versions: %w", err)
	}
	best := head.KMSVersion
	for _, v := range versions {
		if v.State == VersionEnabled && newer(head.Key, v.Name, best) {
			best = v.Name
		}
	}
	if best == head.KMSVersion {
		return "", nil
	}
	return best, nil
}

// spoiltVersion handles a new version that cannot be used: when it was
// destroyed or disabled, or the key service named one that there is not, the
// rotation begins again with another, and what is left of it is destroyed with
// the orphans.
func (r *Rotator) spoiltVersion(ctx context.Context, s *session, l line, j journal, cause error) error {
	if !errors.Is(cause, memd.ErrShredded) && !errors.Is(cause, memd.ErrNotFound) {
		return cause
	}
	r.c.Logger.WarnContext(ctx, "new key version is not usable, making another",
		"tenant", l.head.Tenant, "version", j.NewVersion)
	// The next intent must not find the version and take it up again; it will
	// not, because only enabled ones are.
	if err := journalIntent(ctx, s, l.nextEntry(), l.head.KMSVersion, true, r.c.Clock.Now()); err != nil {
		return err
	}
	return errRestart
}

// sealNext is step 2: the next state, sealed under the new version, opened again
// without any cache in between.
func (r *Rotator) sealNext(ctx context.Context, l line, old *Tree, paths []Path, version string) (treeRow, error) {
	next, err := r.derive(old, paths)
	if err != nil {
		return treeRow{}, fmt.Errorf("puncturing: %w", err)
	}
	defer next.Zero()
	// The proof that counts comes after the switch. This one keeps a wrong state
	// from ever becoming the head, and takes as long as the key service.
	proved := make(chan error, 1)
	go func() {
		if r.skipEarlyProof {
			proved <- nil
			return
		}
		proved <- ProveCover(old, next, paths)
	}()
	row, err := r.seal(ctx, l, next, version)
	if wrong := <-proved; wrong != nil {
		return treeRow{}, wrong
	}
	return row, err
}

// seal seals the state that is to follow the head.
func (r *Rotator) seal(ctx context.Context, l line, next *Tree, version string) (treeRow, error) {
	sealed, err := SealTree(ctx, r.c.Worker, version, next)
	if err != nil {
		return treeRow{}, err
	}
	digest, previous := next.Digest(), next.Previous()
	row := treeRow{
		Tenant: l.head.Tenant, Key: l.head.Key, Epoch: next.Epoch(), KMSVersion: version,
		Digest: digest[:], Previous: previous[:], Sealed: sealed,
	}
	opened, err := row.open(ctx, r.c.Worker)
	if err != nil {
		return treeRow{}, err
	}
	opened.Zero()
	return row, nil
}

const (
	sqlLockHead = `SELECT epoch FROM memd.tenant_keys WHERE tenant_no = @tenant FOR UPDATE`

	sqlRaiseHead = `UPDATE memd.tenant_keys SET epoch = @epoch WHERE tenant_no = @tenant AND epoch = @epoch - 1`

	sqlApplyPunctures = `
UPDATE memd.punctures SET epoch = @epoch
WHERE tenant_no = @tenant AND path = ANY(@paths::text[]) AND epoch IS NULL`

	sqlNotifyEpoch = `SELECT pg_notify(@channel, @payload)`
)

// switchTo is step 3, one transaction. Two rotators that got here with the same
// epoch meet at its primary key, and one of them starts over.
// also adds to the transaction.
func (r *Rotator) switchTo(ctx context.Context, s *session, l line, row treeRow, paths []Path, also func(tx pgx.Tx) error) error {
	e, now := l.nextEntry(), r.c.Clock.Now()
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		var head int64
		if err := tx.QueryRow(ctx, sqlLockHead, pg.Args{"tenant": e.tenant}).Scan(&head); err != nil {
			return fmt.Errorf("locking the head: %w", err)
		}
		if head != l.head.Epoch {
			return errRestart
		}
		changes := []struct {
			doing, sql string
			args       pg.Args
			rows       int64
		}{
			{"storing the tree", sqlInsertTree, row.insertArgs(now), 1},
			{"raising the epoch", sqlRaiseHead, pg.Args{"tenant": e.tenant, "epoch": e.epoch}, 1},
			{"applying punctures", sqlApplyPunctures, pg.Args{
				"tenant": e.tenant, "epoch": e.epoch, "paths": pathStrings(paths),
			}, int64(len(paths))},
		}
		for _, c := range changes {
			tag, err := tx.Exec(ctx, c.sql, c.args)
			if err != nil {
				return fmt.Errorf("%s: %w", c.doing, err)
			}
			if tag.RowsAffected() != c.rows {
				return errRestart
			}
		}
		// The new version in the condition: what is sealed under a version that
		// the journal does not name must not become the head.
		if err := switchJournal(ctx, tx, e, row.KMSVersion, now); err != nil {
			return err
		}
		if err := also(tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlNotifyEpoch, pg.Args{
			"channel": EpochChannel, "payload": fmt.Sprintf("%s %d", e.tenant, e.epoch),
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("switching to epoch %d: %w", e.epoch, err)
	}
	r.c.Logger.InfoContext(ctx, "key tree switched", "tenant", e.tenant, "epoch", e.epoch,
		"version", row.KMSVersion, "punctured", len(paths))
	return nil
}
