package shred

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// maxRederive bounds how many epochs back a lost state is derived again from.
// Each failure needs a new epoch, so one is the rule and more are bad luck.
const maxRederive = 3

// expected returns the state that the row stands for, which is the stored one
// unless that is wrong or lost: a state whose proof was refused, and one whose
// version was destroyed before its predecessor's, are derived again from the
// predecessor and the punctures recorded for the epoch. Puncturing has one
// result, so a lost state comes out bit for bit, and its recorded digest says
// so. The caller zeroes the tree.
//
// It returns memd.ErrShredded when neither the state nor a predecessor opens.
func (r *Rotator) expected(ctx context.Context, db pg.DB, row treeRow, state RotationState, depth int) (*Tree, error) {
	if state != RotationRefused {
		t, err := row.open(ctx, r.c.Worker)
		if err == nil || !doomedVersion(err) || depth == 0 || row.Epoch == 1 {
			return t, err
		}
	}
	if depth == 0 || row.Epoch == 1 {
		return nil, corrupt("key tree was refused and has no predecessor")
	}
	before, err := readEpoch(ctx, db, row.Tenant, row.Epoch-1)
	if err != nil {
		return nil, err
	}
	beforeState, err := rotationState(ctx, db, entry{row.Tenant, row.Epoch - 1})
	if err != nil {
		return nil, err
	}
	old, err := r.expected(ctx, db, before, beforeState, depth-1)
	if err != nil {
		return nil, err
	}
	defer old.Zero()
	paths, err := AppliedPunctures(ctx, db, row.Tenant, row.Epoch)
	if err != nil {
		return nil, err
	}
	t, err := old.Next(paths)
	if err != nil {
		return nil, fmt.Errorf("deriving tree %s/%d again: %w", row.Tenant, row.Epoch, err)
	}
	digest := t.Digest()
	if state != RotationRefused && !bytes.Equal(digest[:], row.Digest) {
		t.Zero()
		return nil, corrupt("key tree derived again has another digest than the lost one")
	}
	r.c.Logger.WarnContext(ctx, "key tree derived again from its predecessor",
		"tenant", row.Tenant, "epoch", row.Epoch, "state", state.String())
	return t, nil
}

// unopenable turns the refusal of a key version that must be usable into an
// error that nobody takes for the success of an erasure.
func unopenable(row treeRow, err error) error {
	if !errors.Is(err, memd.ErrShredded) {
		return err
	}
	if doomedVersion(err) {
		return fmt.Errorf("tree %s/%d and those before it are lost unless %s is restored before it is due: %w (%v)",
			row.Tenant, row.Epoch, row.KMSVersion, memd.ErrCorrupt, err)
	}
	return fmt.Errorf("tree %s/%d needs %s, which is not enabled: %w (%v)",
		row.Tenant, row.Epoch, row.KMSVersion, memd.ErrKeyUnavailable, err)
}
