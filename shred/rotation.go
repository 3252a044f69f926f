package shred

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred/ledger"
)

// Defaults of a RotatorConfig.
const (
	DefaultConfirmWait  = 5 * time.Second
	DefaultInstanceWait = DefaultLease + 5*time.Second
)

// RotatorConfig says what a Rotator works with.
type RotatorConfig struct {
	// Pool reaches the primary database, as the worker. A rotation keeps one
	// connection, not from a transaction-pooling proxy. Required.
	Pool *pg.Pool
	// Worker is the KMS identity that makes versions, wraps, unwraps and lists.
	// Required.
	Worker KMS
	// Shredder is the KMS identity that destroys versions, and does nothing
	// else. Required.
	Shredder KMS
	// Ledgers are all the places that keep trees outside the database, in the
	// same order in every process. At least one; two in production.
	Ledgers []ledger.Ledger
	// Sample opens some of the tenant's live rows with keys of the new state
	// alone and returns an error when one does not open that should. Nothing is
	// destroyed then. It must not keep the keys. Nil samples nothing.
	Sample func(ctx context.Context, tenant memd.TenantNo, k *Keys) error
	// Allowed says whether a rotation may begin, or go on; its error ends it. Nil
	// allows all. It is asked again just before a version is destroyed.
	Allowed func(ctx context.Context) error
	// Durable returns nil when all that was committed before it, the punctures
	// and the new state among it, would outlive a rollback of the database. It is
	// called before the new state is written to the ledgers, and so before the
	// old version is destroyed. Nil means that everything is.
	Durable func(ctx context.Context) error
	// Clock dates the journal. Required.
	Clock memd.Clock
	// ConfirmWait bounds the wait until the KMS refuses the destroyed version,
	// which takes it a minute at times. Zero means DefaultConfirmWait.
	ConfirmWait time.Duration
	// InstanceWait bounds the wait for processes that hold the old epoch. Zero
	// means DefaultInstanceWait, which outlasts the lease of one that hangs.
	InstanceWait time.Duration
	// OnFinish, if set, is called when a rotation that this Rotator worked on has
	// come to its end.
	OnFinish func(tenant memd.TenantNo, epoch int64)
	// Logger is told what cannot be told by an error. Required.
	Logger *slog.Logger
}

func (c *RotatorConfig) validate() error {
	switch {
	case c.Pool == nil:
		return errors.New("shred.RotatorConfig: Pool is not set")
	case c.Worker == nil:
		return errors.New("shred.RotatorConfig: Worker is not set")
	case c.Shredder == nil:
		return errors.New("shred.RotatorConfig: Shredder is not set")
	case len(c.Ledgers) == 0:
		return errors.New("shred.RotatorConfig: Ledgers is empty")
	case c.Clock == nil:
		return errors.New("shred.RotatorConfig: Clock is not set")
	case c.Logger == nil:
		return errors.New("shred.RotatorConfig: Logger is not set")
	case c.ConfirmWait < 0 || c.InstanceWait < 0:
		return errors.New("shred.RotatorConfig: ConfirmWait or InstanceWait is negative")
	}
	if c.ConfirmWait == 0 {
		c.ConfirmWait = DefaultConfirmWait
	}
	if c.InstanceWait == 0 {
		c.InstanceWait = DefaultInstanceWait
	}
	if c.Allowed == nil {
		c.Allowed = func(context.Context) error { return nil }
	}
	if c.Durable == nil {
		c.Durable = func(context.Context) error { return nil }
	}
	if c.OnFinish == nil {
		c.OnFinish = func(memd.TenantNo, int64) {}
	}
	return nil
}

// Rotator takes tenants' key trees from one epoch to the next, and destroys the
// key version under which the one before was sealed. That is the moment at
// which what was punctured is gone, from every backup too.
//
// Every step is journalled before or in the transaction that makes it count, and
// each can be repeated, so a rotation that stopped anywhere goes on with the
// next Rotate of anybody. An advisory lock keeps rotators of one tenant apart,
// which saves work. Nothing depends on it: the primary key of the new epoch, and
// journal steps that only happen from the state they begin at, decide which of
// two rotators goes on, and a version that wraps the head is never destroyed,
// because a version is destroyed only when the head, read and unwrapped just
// before, is under another one with a higher number.
type Rotator struct {
	c     RotatorConfig
	gates gates

	// derive makes the next state. Tests make it wrong on purpose; then the
	// check before the switch can be left out, to reach the one behind it.
	derive         func(old *Tree, punctured []Path) (*Tree, error)
	skipEarlyProof bool
	// lockPurpose is pg.LockRotate. Tests give rotators different ones, to show
	// that nothing but work is lost without the lock.
	lockPurpose pg.LockID
}

// NewRotator makes a Rotator, which is safe for concurrent use.
func NewRotator(c RotatorConfig) (*Rotator, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Rotator{c: c, derive: (*Tree).Next, lockPurpose: pg.LockRotate}, nil
}

// maxRestarts bounds how often one Rotate starts over because of others.
const maxRestarts = 16

// Rotate finishes a rotation that was begun and, when punctures are pending,
// makes another that applies all of them. With neither it does nothing and
// returns the last one. When it returns nil, every puncture that was committed
// before the call is done: its keys cannot be derived from the database, its
// backups, the ledgers and the KMS, nor from the memory of any process.
//
// On an error the journal is intact and the call is safe to repeat. The error is
// memd.Transient when that alone may help: the KMS, a ledger or the database is
// away, the KMS does not refuse the old version yet, or a process still holds
// the old epoch. memd.ErrNotFound is a tenant without keys. memd.ErrCorrupt means
// that a proof failed and nothing was destroyed; when the new state was at
// fault, the next call derives it again.
func (r *Rotator) Rotate(ctx context.Context, tenant memd.TenantNo) (Rotation, error) {
	return r.rotate(ctx, tenant, false)
}

// ForceRotate is Rotate that makes a new epoch under a new key version even when
// nothing is to be punctured.
func (r *Rotator) ForceRotate(ctx context.Context, tenant memd.TenantNo) (Rotation, error) {
	return r.rotate(ctx, tenant, true)
}

func (r *Rotator) rotate(ctx context.Context, tenant memd.TenantNo, force bool) (Rotation, error) {
	s, err := r.lock(ctx, tenant)
	if err != nil {
		return Rotation{}, err
	}
	done, err := r.run(ctx, s, tenant, force)
	if released := s.unlock(ctx); released != nil {
		r.c.Logger.WarnContext(ctx, "giving up the lock of a rotation", "tenant", tenant, "error", released)
	}
	if err != nil {
		return Rotation{}, fmt.Errorf("rotating the keys of tenant %s: %w", tenant, err)
	}
	return done, nil
}

// run does whatever comes next until nothing is left.
func (r *Rotator) run(ctx context.Context, s *session, tenant memd.TenantNo, force bool) (Rotation, error) {
	for range maxRestarts {
		l, err := readLine(ctx, s, tenant)
		if err != nil {
			return Rotation{}, err
		}
		settled := l.current.State == RotationUnknown || l.current.State.settled()
		if settled && !force && !l.pending && l.next.State == RotationUnknown && l.current.State != RotationRefused {
			return ReadRotation(ctx, s, tenant, l.head.Epoch)
		}
		if err := r.c.Allowed(ctx); err != nil {
			return Rotation{}, err
		}
		if err := l.readState(ctx, s); err != nil {
			return Rotation{}, err
		}
		switch {
		case !settled:
			err = r.finish(ctx, s, l)
		default:
			if err = r.advance(ctx, s, l); err == nil {
				force = false
			}
		}
		if err != nil && !errors.Is(err, errRestart) && !r.movedOn(ctx, s, l) {
			return Rotation{}, err
		}
	}
	return Rotation{}, errRestart
}

// movedOn reports whether the head is another than it was: then an error may be
// no more than the trace of a quicker rotator, which destroyed what this one was
// about to open.
func (r *Rotator) movedOn(ctx context.Context, db pg.DB, l line) bool {
	now, err := headEpoch(ctx, db, l.head.Tenant)
	return err == nil && now != l.head.Epoch
}

// line is where a tenant's line of trees stands.
type line struct {
	head    treeRow // without its sealed state, until that is read
	current journal // of the rotation that made the head; state unknown if none
	next    journal // of the one that is to follow; state unknown if none
	pending bool    // punctures wait
}

// readState reads the sealed state of the head, which may have megabytes.
func (l *line) readState(ctx context.Context, db pg.DB) (err error) {
	l.head, err = readEpoch(ctx, db, l.head.Tenant, l.head.Epoch)
	return err
}

func (l line) entry() entry     { return entry{l.head.Tenant, l.head.Epoch} }
func (l line) nextEntry() entry { return entry{l.head.Tenant, l.head.Epoch + 1} }

func readLine(ctx context.Context, db pg.DB, tenant memd.TenantNo) (line, error) {
	head, err := readHeadEntry(ctx, db, tenant)
	if err != nil {
		return line{}, err
	}
	l := line{head: head}
	entries, err := readJournal(ctx, db, tenant, head.Epoch)
	if err != nil {
		return line{}, err
	}
	for _, j := range entries {
		switch j.Epoch {
		case head.Epoch:
			l.current = j
		case head.Epoch + 1:
			l.next = j
		}
	}
	pending, err := PendingPunctures(ctx, db, tenant)
	l.pending = len(pending) > 0
	return l, err
}
