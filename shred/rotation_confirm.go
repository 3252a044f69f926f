package shred

import (
	"context"
	"errors"
	"fmt"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Times between two looks at the KMS and at the instances. Short at first: what
// is waited for has happened already, as a rule.
const (
	confirmPollMin  = 5 * time.Millisecond
	confirmPollMax  = 250 * time.Millisecond
	instancePollMin = 2 * time.Millisecond
	instancePollMax = 20 * time.Millisecond
)

// confirm is step 7. Destroying is confirmed when the KMS refuses the old state
// because of its version, lists that version as destroyed or scheduled to be,
// and opens the head for the same caller; and when no version older than the
// head's is usable. Anything else is no confirmation: an outage refuses too.
func (r *Rotator) confirm(ctx context.Context, l line, before treeRow) error {
	if err := r.awaitRefusal(ctx, before); err != nil {
		return err
	}
	versions, err := r.destroyOrphans(ctx, l.head)
	if err != nil {
		return err
	}
	if err := checkVersions(versions, l.head, before.KMSVersion); err != nil {
		return err
	}
	tree, err := l.head.open(ctx, r.c.Worker)
	if err != nil {
		return unopenable(l.head, err)
	}
	tree.Zero()
	return nil
}

// awaitRefusal waits until the old state cannot be unwrapped. Cloud KMS may go
// on accepting a version for a minute or so after it was destroyed.
func (r *Rotator) awaitRefusal(ctx context.Context, before treeRow) error {
	limited, cancel := context.WithTimeout(ctx, r.c.ConfirmWait)
	defer cancel()
	poll := confirmPollMin
	for {
		tree, err := before.open(limited, r.c.Worker)
		switch {
		case err == nil:
			tree.Zero()
		case doomedVersion(err):
			return nil
		case limited.Err() == nil:
			return fmt.Errorf("confirming that the old version is destroyed: %w", err)
		}
		if err := pause(limited, &poll, confirmPollMax); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("confirming that the old version is destroyed: %w", ctx.Err())
			}
			return fmt.Errorf("the KMS still accepts the old version: %w", memd.ErrErasureUnfinished)
		}
	}
}

// destroyOrphans destroys every version that is older than the head's and not
// destroyed yet: what crashed attempts left behind. A younger one may belong to
// a rotation that is going on, and stays. It returns the versions as the KMS
// lists them afterwards.
func (r *Rotator) destroyOrphans(ctx context.Context, head treeRow) ([]Version, error) {
	versions, err := r.c.Worker.List(ctx, head.Key)
	if err != nil {
		return nil, fmt.Errorf("listing the key versions: %w", err)
	}
	found := false
	for _, v := range versions {
		if v.State.Doomed() || !newer(head.Key, head.KMSVersion, v.Name) {
			continue
		}
		found = true
		r.c.Logger.WarnContext(ctx, "destroying a version that a rotation left behind",
			"tenant", head.Tenant, "version", v.Name, "state", v.State.String())
		if _, err := r.c.Shredder.Destroy(ctx, v.Name); err != nil {
			return nil, fmt.Errorf("destroying a version left behind: %w", err)
		}
	}
	if found {
		if versions, err = r.c.Worker.List(ctx, head.Key); err != nil {
			return nil, fmt.Errorf("listing the key versions: %w", err)
		}
	}
	return versions, nil
}

// checkVersions checks a list of all versions: the head's is enabled, every older
// one is destroyed or waits to be, and the old one is among those.
func checkVersions(versions []Version, head treeRow, old string) error {
	var current, listed bool
	for _, v := range versions {
		switch {
		case v.Name == head.KMSVersion:
			current = v.State == VersionEnabled
		case !newer(head.Key, head.KMSVersion, v.Name):
			continue
		case !v.State.Doomed():
			return fmt.Errorf("an older version is %v: %w", v.State, memd.ErrErasureUnfinished)
		case v.Name == old:
			listed = true
		}
	}
	switch {
	case !current:
		return fmt.Errorf("head's version is not enabled: %w", memd.ErrKeyUnavailable)
	case !listed:
		return corrupt("the KMS does not list the version that was destroyed")
	}
	return nil
}

// sqlCountHolders counts who may still hold an older epoch. The lease is
// measured by the same clock that set its end.
const sqlCountHolders = `
SELECT count(*) FROM memd.instance_epochs e JOIN memd.instances i ON i.instance_id = e.instance_id
WHERE e.tenant_no = @tenant AND e.epoch < @epoch AND i.lease_until > clock_timestamp()`

// awaitInstances is step 8: every live process has dropped the old epoch, or its
// lease has ended. As a rule they all have by now, because they were notified
// when the head was switched.
func (r *Rotator) awaitInstances(ctx context.Context, db pg.DB, e entry) error {
	deadline := time.Now().Add(r.c.InstanceWait)
	poll := instancePollMin
	for {
		var holders int
		err := db.QueryRow(ctx, sqlCountHolders, pg.Args{
			"tenant": e.tenant, "epoch": e.epoch,
		}).Scan(&holders)
		if err != nil {
			return pg.Classify(fmt.Errorf("counting the holders of old keys: %w", err))
		}
		if holders == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes still hold an old epoch: %w", holders, memd.ErrErasureUnfinished)
		}
		if err := pause(ctx, &poll, instancePollMax); err != nil {
			return errors.Join(fmt.Errorf("%d processes still hold an old epoch: %w", holders, memd.ErrErasureUnfinished), err)
		}
	}
}
