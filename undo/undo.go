package undo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/journal"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/ledger"
	"forgettable.dev/memd/tenants"
)

// Config says what an Undoer works with. All fields are required.
type Config struct {
	// Pool reaches the database as its owner, not behind a gate.
	Pool *pg.Pool
	// Ledgers are all the places outside the database, in the order that the
	// other processes have.
	Ledgers []ledger.Ledger
	// Worker opens and seals key trees, Shredder destroys versions.
	Worker, Shredder shred.KMS
	// Restorer is an operator's identity at the key service.
	Restorer shred.Restorer
	Clock    memd.Clock
	Logger   *slog.Logger
}

// Undoer takes erasures back.
type Undoer struct {
	c    Config
	auth *auth.Authenticator
}

// New makes an Undoer.
func New(c Config) (*Undoer, error) {
	if c.Pool == nil || len(c.Ledgers) == 0 || c.Worker == nil || c.Shredder == nil || c.Restorer == nil || c.Clock == nil || c.Logger == nil {
		return nil, errors.New("undo: Config needs all of its fields")
	}
	a, err := auth.New(auth.Config{Pool: c.Pool, Clock: c.Clock, Logger: c.Logger})
	return &Undoer{c: c, auth: a}, err
}

// Request asks for the keys of an erasure back, by an API key of the role
// operator. It returns until when the key service can give them. A request that
// was not carried out is replaced.
//
// memd.ErrInvalid: the erasure is of a tenant, is not done, or the same user was
// erased again after it. memd.ErrPermissionDenied, memd.ErrUnauthenticated: the
// key. *shred.LostKeysError: it is too late.
func (u *Undoer) Request(ctx context.Context, secret, tenant string, request uuid.UUID, reason string) (until time.Time, err error) {
	t, by, err := u.who(ctx, secret, tenant, auth.Operator)
	if err != nil {
		return until, err
	}
	if reason == "" || len(reason) > 1024 {
		return until, &memd.InvalidError{Field: "reason", Problem: "is required, and at most 1,024 bytes long"}
	}
	err = u.c.Pool.With(ctx, func(db pg.DB) error {
		if err := check(ctx, db, t, request); err != nil {
			return err
		}
		source, err := shred.UndoSource(ctx, db, u.c.Worker, t, request)
		if err != nil {
			return err
		}
		until = source.DestroyAt
		return shred.RequestUndo(ctx, db, u.c.Worker, t, request, by, reason, u.c.Clock.Now())
	})
	return until, err
}

// Asked returns who asks for the keys of an erasure back, and why, to an API key of
// the role approver, or memd.ErrNotFound.
func (u *Undoer) Asked(ctx context.Context, secret, tenant string, request uuid.UUID) (r shred.UndoRequest, err error) {
	t, _, err := u.who(ctx, secret, tenant, auth.Approver)
	if err != nil {
		return r, err
	}
	err = u.c.Pool.With(ctx, func(db pg.DB) (err error) {
		r, err = shred.ReadUndoRequest(ctx, db, u.c.Worker, t, request)
		return err
	})
	return r, err
}

// Approve approves a request, by an API key of the role approver that is another
// than the requester's, and carries it out. Safe to repeat from wherever it
// stopped.
func (u *Undoer) Approve(ctx context.Context, secret, tenant string, request uuid.UUID) (shred.Undo, error) {
	t, by, err := u.who(ctx, secret, tenant, auth.Approver)
	if err != nil {
		return shred.Undo{}, err
	}
	j, err := journal.Open(ctx, journal.Config{Pool: u.c.Pool, Ledgers: u.c.Ledgers, Logger: u.c.Logger})
	if err != nil {
		return shred.Undo{}, err
	}
	defer j.Close()
	err = u.c.Pool.With(ctx, func(db pg.DB) error {
		if err := check(ctx, db, t, request); err != nil {
			return err
		}
		return shred.ApproveUndo(ctx, db, t, request, by, u.c.Clock.Now())
	})
	if err != nil {
		return shred.Undo{}, err
	}
	rotator, err := shred.NewRotator(shred.RotatorConfig{
		Pool: u.c.Pool, Worker: u.c.Worker, Shredder: u.c.Shredder, Ledgers: u.c.Ledgers, Clock: u.c.Clock, Logger: u.c.Logger,
		Allowed: j.Released, Durable: j.Flush,
	})
	if err != nil {
		return shred.Undo{}, err
	}
	return rotator.Undo(ctx, t, request, u.c.Restorer)
}

// who returns the tenant, and whose key it is, if it has the role there.
func (u *Undoer) who(ctx context.Context, secret, tenant string, role auth.Roles) (memd.TenantNo, uuid.UUID, error) {
	p, err := u.auth.Authenticate(ctx, secret)
	if err != nil {
		return 0, uuid.Nil, err
	}
	var t tenants.Tenant
	err = u.c.Pool.With(ctx, func(db pg.DB) (err error) {
		t, err = tenants.Get(ctx, db, tenant)
		return err
	})
	switch {
	case err != nil:
		return 0, uuid.Nil, err
	case p.Tenant != auth.Installation && p.Tenant != t.No:
		return 0, uuid.Nil, fmt.Errorf("tenant %s: %w", tenant, memd.ErrNotFound)
	case !p.Roles.Any(role):
		return 0, uuid.Nil, fmt.Errorf("the API key needs the role %s: %w", role, memd.ErrPermissionDenied)
	}
	return t.No, p.Key, nil
}

// check refuses what cannot be undone, or would bring back somebody who was
// forgotten rightly.
func check(ctx context.Context, db pg.DB, tenant memd.TenantNo, request uuid.UUID) error {
	j, err := erasure.Read(ctx, db, tenant, request)
	if err != nil {
		return err
	}
	switch {
	case j.Kind == erasure.KindTenant:
		return &memd.InvalidError{Field: "erasure", Problem: "is a tenant's, which an operator of the key service restores as a whole"}
	case j.State < erasure.StateDone:
		return &memd.InvalidError{Field: "erasure", Problem: "is not done: set a hold to stop it"}
	}
	other, err := erasure.Another(ctx, db, j)
	if err == nil && other {
		err = &memd.InvalidError{Field: "erasure", Problem: "is not the last one of this user, who has to stay forgotten"}
	}
	return err
}
