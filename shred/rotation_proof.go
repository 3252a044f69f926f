package shred

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"forgettable.dev/memd"
)

// finish does steps 4 to 8 for the rotation that made the head, from wherever
// its journal stands. The head is proved each time: between the last attempt and
// this one the database may have been rolled back.
func (r *Rotator) finish(ctx context.Context, s *session, l line) error {
	before, err := r.victim(ctx, s, l)
	if errors.Is(err, errNothingToDestroy) {
		r.c.Logger.ErrorContext(ctx, "journal asks for the destruction of a version that must stay, nothing destroyed",
			"tenant", l.head.Tenant, "epoch", l.head.Epoch, "version", l.current.OldVersion)
		return r.move(ctx, s, l, step{to: RotationVoided})
	}
	if err != nil {
		return err
	}
	// Megabytes to open, while others are being written.
	old := r.openAhead(ctx, before, l.current.State == RotationSwitched)
	defer old.drop()
	// Before the state itself: a ledger that has the state and not the fact would
	// not show that the database was rolled back behind it.
	if err := r.c.Durable(ctx); err != nil {
		return fmt.Errorf("waiting for the facts of the rotation: %w", err)
	}
	if err := putEverywhere(ctx, r.c.Ledgers, l.head); err != nil {
		return err
	}
	tree, err := r.proveHead(ctx, s, l)
	if err != nil {
		return r.lostHead(ctx, s, l, before, err)
	}
	keys := NewKeys(tree)
	defer keys.Drop()
	if l.current.State == RotationSwitched {
		if err := r.proveCover(ctx, s, l, before, old, tree); err != nil {
			return err
		}
		if r.c.Sample != nil {
			if err := r.c.Sample(ctx, l.head.Tenant, keys); err != nil {
				return fmt.Errorf("opening live rows with the new keys alone: %w", err)
			}
		}
		if err := r.move(ctx, s, l, step{to: RotationProved}); err != nil {
			return err
		}
		l.current.State = RotationProved
	}
	keys.Drop()
	if l.current.State == RotationProved {
		if err := r.destroyOld(ctx, s, l, before); err != nil {
			return err
		}
		l.current.State = RotationDestroyed
	}
	if l.current.State == RotationDestroyed {
		if err := r.confirm(ctx, l, before); err != nil {
			return err
		}
		if err := r.move(ctx, s, l, step{to: RotationConfirmed}); err != nil {
			return err
		}
		l.current.State = RotationConfirmed
	}
	if err := r.awaitInstances(ctx, s, l.entry()); err != nil {
		return err
	}
	if err := r.move(ctx, s, l, step{to: RotationFinished}); err != nil {
		return err
	}
	r.c.OnFinish(l.head.Tenant, l.head.Epoch)
	return supersedeOlder(ctx, s, l.entry(), r.c.Clock.Now())
}

// move advances the journal of the head's rotation from where it stands.
func (r *Rotator) move(ctx context.Context, s *session, l line, to step) error {
	to.from = l.current.State
	return advanceJournal(ctx, s, l.entry(), to, r.c.Clock.Now())
}

var errNothingToDestroy = errors.New("no version to destroy")

// victim returns the predecessor of the head, whose version is the one to be
// destroyed. The journal's word for it is not enough: it may date from before
// the database was rolled back, and name the version that wraps the head.
func (r *Rotator) victim(ctx context.Context, s *session, l line) (treeRow, error) {
	if l.head.Epoch == 1 {
		return treeRow{}, errNothingToDestroy
	}
	before, err := readEpoch(ctx, s, l.head.Tenant, l.head.Epoch-1)
	if errors.Is(err, memd.ErrNotFound) || err == nil && !newer(l.head.Key, l.head.KMSVersion, before.KMSVersion) {
		return treeRow{}, errNothingToDestroy
	}
	if err != nil {
		return treeRow{}, err
	}
	if l.current.OldVersion != before.KMSVersion {
		r.c.Logger.ErrorContext(ctx, "journal names another version to destroy than the predecessor's, corrected",
			"tenant", l.head.Tenant, "epoch", l.head.Epoch,
			"journalled", l.current.OldVersion, "predecessor", before.KMSVersion)
		err = r.move(ctx, s, l, step{to: l.current.State, old: before.KMSVersion})
	}
	return before, err
}

// proveHead is the first half of step 5: database and every ledger hold the same
// head, as this attempt has read it, and nothing later, it opens now, and under an enabled version that is
// newer than the one to be destroyed. The caller zeroes the tree.
func (r *Rotator) proveHead(ctx context.Context, s *session, l line) (*Tree, error) {
	head := l.head
	now, err := readHeadEntry(ctx, s, head.Tenant)
	if err != nil {
		return nil, err
	}
	if now.Epoch != head.Epoch || now.KMSVersion != head.KMSVersion || now.Key != head.Key || !bytes.Equal(now.Digest, head.Digest) {
		return nil, errRestart
	}
	if err := sameEverywhere(ctx, r.c.Ledgers, head); err != nil {
		return nil, err
	}
	if err := r.ledgersBehind(ctx, s, l.nextEntry()); err != nil {
		return nil, err
	}
	tree, err := head.open(ctx, r.c.Worker)
	if err != nil {
		return nil, err
	}
	version, err := r.c.Worker.Get(ctx, head.KMSVersion)
	if err == nil && version.State != VersionEnabled {
		err = &VersionStateError{Version: version.Name, State: version.State}
	}
	if err != nil {
		tree.Zero()
		return nil, fmt.Errorf("asking for the head's version: %w", err)
	}
	return tree, nil
}

// lostHead handles a head that cannot be proved. When its version was destroyed
// while the predecessor still opens, the proof is refused, and the next epoch is
// made from the predecessor.
func (r *Rotator) lostHead(ctx context.Context, s *session, l line, before treeRow, cause error) error {
	if !errors.Is(cause, memd.ErrShredded) {
		return cause
	}
	if !doomedVersion(cause) {
		return unopenable(l.head, cause)
	}
	beforeState, err := rotationState(ctx, s, entry{before.Tenant, before.Epoch})
	if err != nil {
		return err
	}
	tree, err := r.expected(ctx, s, before, beforeState, maxRederive)
	if err != nil {
		return unopenable(l.head, err)
	}
	tree.Zero()
	r.c.Logger.ErrorContext(ctx, "version of the head was destroyed, going back to its predecessor",
		"tenant", l.head.Tenant, "epoch", l.head.Epoch, "version", l.head.KMSVersion)
	return r.move(ctx, s, l, step{to: RotationRefused})
}

// proveCover is the second half of step 5: the new state derives from the old
// one, and covers everything but what was punctured.
func (r *Rotator) proveCover(ctx context.Context, s *session, l line, before treeRow, ahead *opening, tree *Tree) error {
	graft, err := readGraft(ctx, s, l.entry())
	if err != nil {
		return err
	}
	beforeState, err := rotationState(ctx, s, entry{before.Tenant, before.Epoch})
	if err != nil {
		return err
	}
	old, err := ahead.take()
	if beforeState == RotationRefused || doomedVersion(err) {
		if old != nil {
			old.Zero()
		}
		old, err = r.expected(ctx, s, before, beforeState, maxRederive)
	}
	if doomedVersion(err) {
		// Another rotator proved and destroyed it, and did not get to say so.
		// There is nothing left that a proof could save.
		r.c.Logger.WarnContext(ctx, "old version is destroyed already, cover not proved again",
			"tenant", l.head.Tenant, "epoch", l.head.Epoch, "version", before.KMSVersion)
		return nil
	}
	if err != nil {
		return unopenable(before, err)
	}
	defer old.Zero()
	if graft != nil {
		return r.proveGraft(ctx, s, l, *graft, old, tree)
	}
	paths, err := AppliedPunctures(ctx, s, l.head.Tenant, l.head.Epoch)
	if err != nil {
		return err
	}
	err = ProveCover(old, tree, paths)
	if errors.Is(err, memd.ErrCorrupt) {
		r.c.Logger.ErrorContext(ctx, "new key tree does not cover what it must, nothing destroyed",
			"tenant", l.head.Tenant, "epoch", l.head.Epoch)
		return errors.Join(err, r.move(ctx, s, l, step{to: RotationRefused}))
	}
	return err
}

// destroyOld is step 6. All that it needs to be safe was read by proveHead in
// the same attempt: the head is under a version with a higher number.
func (r *Rotator) destroyOld(ctx context.Context, s *session, l line, before treeRow) error {
	if err := r.c.Allowed(ctx); err != nil {
		return err
	}
	version, err := r.c.Shredder.Destroy(ctx, before.KMSVersion)
	if err != nil {
		return fmt.Errorf("destroying the old version: %w", err)
	}
	if !version.State.Doomed() {
		return fmt.Errorf("destroying the old version: it is %v: %w", version.State, memd.ErrErasureUnfinished)
	}
	now := r.c.Clock.Now()
	to := step{to: RotationDestroyed, destroyed: &now, due: dueOf(version)}
	if err := r.move(ctx, s, l, to); err != nil {
		return err
	}
	r.c.Logger.InfoContext(ctx, "key version destroyed",
		"tenant", l.head.Tenant, "epoch", l.head.Epoch, "version", before.KMSVersion)
	return nil
}

// dueOf is when the key material goes, or went.
func dueOf(v Version) *time.Time {
	due := v.DestroyAt
	if v.State == VersionDestroyed {
		due = v.DestroyedAt
	}
	if due.IsZero() {
		return nil
	}
	return &due
}
