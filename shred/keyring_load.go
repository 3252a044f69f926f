package shred

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// maxLoads bounds how often one load starts over because the head moved.
const maxLoads = 4

// flight is one load of a tenant's keys, which every caller of that time
// shares. While it lasts the tenant has no cached keys.
type flight struct {
	tenant memd.TenantNo
	// floor and doomed are guarded by the keyring's mu: the least epoch that may
	// still be used, and whether the lease ended meanwhile.
	floor  int64
	doomed bool

	done chan struct{} // closed when keys and err are set
	keys *Keys
	err  error
}

// load runs a flight to its end.
func (r *Keyring) load(f *flight) {
	ctx, cancel := context.WithTimeout(r.base, r.c.LoadTimeout)
	defer cancel()
	var err error
	for range maxLoads {
		var t *Tree
		if t, err = r.loadHead(ctx, f.tenant); err == nil {
			if err = r.land(f, t); err == nil {
				return
			}
		}
		if !errors.Is(err, memd.ErrStale) {
			break
		}
	}
	if r.base.Err() != nil {
		err = errKeyringClosed
	} else if ctx.Err() != nil && !errors.Is(err, memd.ErrDatabaseUnavailable) && !errors.Is(err, memd.ErrDatabaseBusy) {
		err = fmt.Errorf("loading the tenant's keys took too long: %w", memd.ErrKeyUnavailable)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finish(f, nil, err)
}

// land puts the loaded tree in the cache, unless what happened during the load
// forbids it: then the tree is zeroed. The epoch was reported before it was
// read, so a rotation that did not see the report is one whose epoch we saw.
func (r *Keyring) land(f *flight, t *Tree) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		t.Zero()
		return errKeyringClosed
	case f.doomed || r.c.Instance.Lapsed():
		t.Zero()
		return errLapsed
	case t.Epoch() < f.floor:
		t.Zero()
		return fmt.Errorf("loading the tenant's keys: %w", memd.ErrStale)
	}
	keys := NewKeys(t)
	r.cached.Add(f.tenant, keys)
	r.finish(f, keys, nil)
	return nil
}

// finish ends the flight. The caller holds mu.
func (r *Keyring) finish(f *flight, keys *Keys, err error) {
	delete(r.flights, f.tenant)
	f.keys, f.err = keys, err
	close(f.done)
	if len(r.dropped) > 0 {
		signal(r.report) // What the reporter left because of this flight.
	}
}

// loadHead reports the head's epoch as held by this process, reads the head
// and unwraps it. It returns memd.ErrStale when the head moved meanwhile.
//
// The order is what makes a rotation's last step sound. The report commits
// first, and the head is read afterwards with a fresh snapshot; the rotation
// commits the new head first, and reads the reports afterwards. So either the
// rotation sees the report and waits, or this sees the new head and starts over.
func (r *Keyring) loadHead(ctx context.Context, tenant memd.TenantNo) (*Tree, error) {
	var row treeRow
	err := r.c.Pool.With(ctx, func(db pg.DB) error {
		reported, err := r.reportHead(ctx, db, tenant)
		if err != nil {
			return err
		}
		if row, err = readHead(ctx, db, tenant); err != nil {
			return err
		}
		if row.Epoch != reported {
			return fmt.Errorf("key epoch moved: %w", memd.ErrStale)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	t, err := row.open(ctx, unwrapper{r.c.KMS})
	if !errors.Is(err, memd.ErrShredded) {
		return t, err
	}
	// The version may have been destroyed by a rotation that just ended; the
	// head it left behind is another one.
	var now int64
	asked := r.c.Pool.With(ctx, func(db pg.DB) error {
		var err error
		now, err = headEpoch(ctx, db, tenant)
		return err
	})
	if asked == nil && now != row.Epoch {
		return nil, fmt.Errorf("key epoch moved: %w", memd.ErrStale)
	}
	return nil, err
}

// unwrapper is the KMS as callers may see it. What it says of the process that
// asks (no valid credentials, no right to this key, no key of this name) has the
// same classes as what memd says of a caller, who would be told that their own
// API key or scope is at fault. The classes go, the text stays for the log.
type unwrapper struct{ KMS }

func (u unwrapper) Decrypt(ctx context.Context, key string, ciphertext, aad []byte) ([]byte, error) {
	plaintext, err := u.KMS.Decrypt(ctx, key, ciphertext, aad)
	switch {
	case err == nil:
		return plaintext, nil
	case errors.Is(err, memd.ErrShredded), errors.Is(err, memd.ErrCorrupt), errors.Is(err, memd.ErrKeyUnavailable):
		return nil, err
	}
	return nil, fmt.Errorf("%w: the key service refused this process: %v", memd.ErrKeyUnavailable, err)
}

const sqlReportHead = `
INSERT INTO memd.instance_epochs (tenant_no, instance_id, epoch)
SELECT tenant_no, @instance, epoch FROM memd.tenant_keys WHERE tenant_no = @tenant
ON CONFLICT (tenant_no, instance_id) DO UPDATE SET epoch = excluded.epoch
RETURNING epoch`

// foreignKeyViolation: the instance was removed from the list.
const foreignKeyViolation = "23503"

func (r *Keyring) reportHead(ctx context.Context, db pg.DB, tenant memd.TenantNo) (int64, error) {
	var epoch int64
	err := db.QueryRow(ctx, sqlReportHead, pg.Args{
		"tenant": tenant, "instance": r.c.Instance.ID(),
	}).Scan(&epoch)
	switch {
	case err == nil:
		return epoch, nil
	case errors.Is(err, pgx.ErrNoRows):
		return 0, r.missing(ctx, db, tenant)
	case pg.SQLState(err) == foreignKeyViolation:
		return 0, errLapsed
	}
	return 0, fmt.Errorf("reporting the key epoch: %w", err)
}

// missing says why a tenant has no keys.
func (r *Keyring) missing(ctx context.Context, db pg.DB, tenant memd.TenantNo) error {
	if r.c.Exists == nil {
		return fmt.Errorf("tenant has no keys: %w", memd.ErrNotFound)
	}
	exists, err := r.c.Exists(ctx, db, tenant)
	if err != nil {
		return err
	}
	if !exists {
		return fmt.Errorf("tenant has no keys: %w", memd.ErrNotFound)
	}
	return fmt.Errorf("tenant has no keys yet: %w", memd.ErrTenantInactive)
}
