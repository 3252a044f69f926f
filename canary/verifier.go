package canary

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/ledger"
)

// KeySource lends a tenant's keys: shred.Keyring does. f is repeated when the
// keys were dropped under it.
type KeySource interface {
	Do(ctx context.Context, tenant memd.TenantNo, minEpoch int64, f func(k *shred.Keys) error) error
}

// Config says what a Verifier works with.
type Config struct {
	// Pool reaches the primary database as the worker, who may read every table.
	// Required.
	Pool *pg.Pool
	// Keys opens rows. Its process must be listed among the instances, as that of
	// a shred.Keyring is. Required.
	Keys KeySource
	// KMS is the identity that unwraps and lists. It is asked anew each time.
	// Required.
	KMS shred.KMS
	// Ledgers are all places that keep key trees outside the database.
	Ledgers []ledger.Ledger
	// Pages reaches the database as somebody who may read raw pages, a superuser
	// as a rule. Without it residue is not searched for.
	Pages *pg.Pool
	// LogFiles are searched for ids of users and sessions. Without any, logs are
	// not checked.
	LogFiles []string
	// Budget bounds each search of the last look; fields that are zero are
	// DefaultBudget's. The looks before take less, see brief.
	Budget Budget
	// Clock dates the draw. The system's if nil.
	Clock memd.Clock
	// Logger is told what kept a check from running. Required.
	Logger *slog.Logger
}

func (c *Config) validate() error {
	switch {
	case c.Pool == nil:
		return errors.New("canary.Config: Pool is not set")
	case c.Keys == nil:
		return errors.New("canary.Config: Keys is not set")
	case c.KMS == nil:
		return errors.New("canary.Config: KMS is not set")
	case c.Logger == nil:
		return errors.New("canary.Config: Logger is not set")
	case c.Budget.Rows < 0 || c.Budget.Bytes < 0 || c.Budget.PageBytes < 0 || c.Budget.Time < 0:
		return errors.New("canary.Config: Budget is negative")
	}
	if c.Clock == nil {
		c.Clock = memd.SystemClock{}
	}
	if c.Budget.Rows == 0 {
		c.Budget.Rows = DefaultBudget.Rows
	}
	if c.Budget.Bytes == 0 {
		c.Budget.Bytes = DefaultBudget.Bytes
	}
	if c.Budget.PageBytes == 0 {
		c.Budget.PageBytes = DefaultBudget.PageBytes
	}
	if c.Budget.Time == 0 {
		c.Budget.Time = DefaultBudget.Time
	}
	return nil
}

// Verifier looks for what an erasure must have left nothing of. It changes
// nothing, keeps nothing between two calls, and is safe for concurrent use.
type Verifier struct{ c Config }

// New returns a Verifier.
func New(c Config) (*Verifier, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Verifier{c}, nil
}

// Draw looks before anything is deleted: it counts what is to go, takes probes
// from it, and shows that every look finds something, which is the control of
// Verify. The result is for the job to keep, with Sealed as it is and Before in
// clear. Safe to repeat; the last result counts.
//
// Errors are those of the database, of the key source and of the KMS. Nothing
// was drawn then, and the erasure must not begin: it is tried again when the
// error is memd.Transient.
func (v *Verifier) Draw(ctx context.Context, examination memd.Examination) (memd.Probes, error) {
	e := (*exam)(&examination)
	before, err := v.countNow(ctx, e)
	if err != nil {
		return memd.Probes{}, err
	}
	p := memd.Probes{Before: before}
	if !e.Job.Valid() {
		return p, nil
	}
	// Side by side: what is said takes the database and this process, and the keys
	// take the key service and the ledgers.
	d, keys, controls := drawn{At: v.c.Clock.Now()}, drawn{}, map[string]int64{}
	var drawing error
	g, within := errgroup.WithContext(ctx)
	if !e.Whole && e.Month == 0 { // Nothing could be opened afterwards, nor need be.
		g.Go(func() error { drawing = v.draw(within, e, &d); return drawing })
	}
	g.Go(func() error { return v.drawKeys(within, e, &keys, controls) })
	err = g.Wait()
	if errors.Is(drawing, memd.ErrShredded) {
		return p, nil // The job's leaf is gone: it is over.
	}
	if err != nil {
		return memd.Probes{}, fmt.Errorf("drawing probes: %w", err)
	}
	d.Epoch, d.Neighbours = keys.Epoch, keys.Neighbours
	maps.Copy(before, controls)
	for _, w := range d.Unique {
		before[CheckUnique] += w.Before
	}
	for _, w := range d.Shared {
		before[CheckShared] += w.Before
	}
	before[CheckVectors] = int64(len(d.Vectors))
	before[CheckShared] += int64(len(d.SharedVectors))
	holders, err := v.holders(ctx, e.Tenant, d.Epoch+1)
	if err != nil {
		return memd.Probes{}, err
	}
	before[CheckInstances] = int64(len(holders))
	if e.Whole {
		return p, nil
	}
	if e.Month > 0 {
		p.Sealed, err = v.seal(ctx, e, &d)
		return p, err
	}
	if len(v.c.LogFiles) > 0 {
		if d.Identifiers, d.Unlooked, err = v.identifiers(ctx, e); err != nil {
			return memd.Probes{}, err
		}
	}
	if err := v.drawResidue(ctx, e, &d, before); err != nil {
		return memd.Probes{}, err
	}
	p.Sealed, err = v.seal(ctx, e, &d)
	return p, err
}

// Verify looks again. It takes what Draw returned; without Sealed, or once the
// job's leaf was punctured, what needs probes is not run, and without Before
// nothing has a control. The checks come in a fixed order.
//
// An error is the database's, or transient trouble of the key source: nothing
// was concluded. A KMS or a ledger that is away makes its checks not run.
func (v *Verifier) Verify(ctx context.Context, examination memd.Examination, p memd.Probes) ([]memd.Check, error) {
	e := (*exam)(&examination)
	if e.Month > 0 {
		return v.verifyMonth(ctx, e, p)
	}
	var d *drawn
	if !e.Whole {
		// A purged tenant has no keys that could open anything.
		var err error
		if d, err = v.unseal(ctx, e, p.Sealed); err != nil {
			return nil, err
		}
	}
	// Side by side, as none changes what another reads: the database, the key
	// service and this process each take about as long.
	var counts, probes, keys []memd.Check
	var fence, instances, residue memd.Check
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) { probes, err = v.checkProbes(ctx, e, p.Before, d); return err })
	g.Go(func() (err error) { residue, err = v.checkResidue(ctx, e, p.Before, d); return err })
	g.Go(func() (err error) {
		if counts, err = v.checkCounts(ctx, e, p.Before); err != nil {
			return err
		}
		if fence, err = v.checkFence(ctx, e); err != nil {
			return err
		}
		if keys, err = v.checkKeys(ctx, e, p.Before, d); err != nil {
			return err
		}
		instances, err = v.checkInstances(ctx, e, p.Before, d)
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	checks := append(counts, fence)
	checks = append(checks, probes...)
	checks = append(checks, keys...)
	return append(checks, instances, v.checkLogs(ctx, d), residue), nil
}
