package purge

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/eraser"
	"forgettable.dev/memd/shred"
)

// Mode says what is to be erased. The numbers are those of the erasures' kinds.
type Mode = eraser.Mode

// Modes, as the helper for targets has them.
const (
	ModeUser           = eraser.ModeUser
	ModeSession        = eraser.ModeSession
	ModeSessionContent = eraser.ModeSessionContent
	ModeTenant         = eraser.ModeTenant
)

// Request says what to count, erase or verify at a target.
type Request struct {
	// ID is the erasure's request id.
	ID   uuid.UUID
	Mode Mode
	// Tenant is the tenant's name.
	Tenant    string
	App       string
	UserID    string
	SessionID string
	// Round is from 1; the second sweep is another round than the first, because
	// a target remembers what it has done.
	Round int
	// Refs are further digests by which log files name the subject: those of a
	// user's sessions, or of a tenant's users. The user's own, or the session's,
	// need not be among them.
	Refs []memd.Ref
}

// String names the request and nobody in it.
func (r Request) String() string { return "erasure " + r.ID.String() }

// GoString implements fmt.GoStringer.
func (r Request) GoString() string { return r.String() }

// LogValue implements slog.LogValuer.
func (r Request) LogValue() slog.Value { return slog.StringValue(r.String()) }

func (r Request) subject() eraser.Request {
	return eraser.Request{ID: r.ID, Mode: r.Mode, Tenant: r.Tenant, App: r.App, UserID: r.UserID, SessionID: r.SessionID, Round: r.Round}
}

// Defaults of a Config.
const (
	DefaultConcurrency  = 8
	DefaultTries        = 4
	DefaultRetryWait    = 250 * time.Millisecond
	DefaultMaxRetryWait = 10 * time.Second
)

// Config says how targets are reached.
type Config struct {
	// Keys runs a function with a tenant's keys; it is safe to repeat. Required.
	Keys func(ctx context.Context, tenant memd.TenantNo, use func(*shred.Keys) error) error
	// AllowPrivate is the installation's word that targets may be at private and
	// loopback addresses. A target has to ask for it besides.
	AllowPrivate bool
	// LogDirs are the folders in which files may be targets, absolute. None: no
	// file may be.
	LogDirs []string
	// RootCAs verify the targets' certificates; nil means the system's.
	RootCAs *x509.CertPool
	// Concurrency bounds the calls of this process. Zero means
	// DefaultConcurrency.
	Concurrency int
	// Erasures bounds how many erasures may be in EraseAll at once, and
	// ErasuresPerTenant how many of one tenant. Zero means DefaultErasures and
	// DefaultErasuresPerTenant.
	Erasures, ErasuresPerTenant int
	// Tries is how often one call is tried at most, RetryWait the first wait in
	// between, which doubles, and MaxRetryWait the longest. A target that asks to
	// be left alone for longer ends the call.
	Tries        int
	RetryWait    time.Duration
	MaxRetryWait time.Duration
	// OnCall, if set, is told of every call when it has ended.
	OnCall func(k Kind, op Op, code Code, took time.Duration)
	// Clock is the system's if nil.
	Clock memd.Clock
}

func (c *Config) validate() error {
	switch {
	case c.Keys == nil:
		return errors.New("purge.Config: Keys is not set")
	case min(c.Concurrency, c.Erasures, c.ErasuresPerTenant, c.Tries) < 0 || min(c.RetryWait, c.MaxRetryWait) < 0:
		return errors.New("purge.Config: Concurrency, Erasures, ErasuresPerTenant, Tries, RetryWait or MaxRetryWait is negative")
	}
	for _, d := range c.LogDirs {
		if !filepath.IsAbs(d) || filepath.Clean(d) != d || d == "/" {
			return errors.New("purge.Config: LogDirs must be absolute folders below the root, without . or .. in them")
		}
	}
	setDefault(&c.Concurrency, DefaultConcurrency)
	setDefault(&c.Erasures, DefaultErasures)
	setDefault(&c.ErasuresPerTenant, DefaultErasuresPerTenant)
	setDefault(&c.Tries, DefaultTries)
	setDefault(&c.RetryWait, DefaultRetryWait)
	setDefault(&c.MaxRetryWait, DefaultMaxRetryWait)
	if c.Clock == nil {
		c.Clock = memd.SystemClock{}
	}
	if c.OnCall == nil {
		c.OnCall = func(Kind, Op, Code, time.Duration) {}
	}
	return nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Caller calls purge targets. It is safe for concurrent use.
type Caller struct {
	c       Config
	slots   chan struct{}
	bound   bound
	clients map[policy]*http.Client
	// fault, in tests, fails before a step on a file.
	fault func(step string) error
}

// NewCaller makes a Caller. The caller closes it.
func NewCaller(c Config) (*Caller, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	caller := &Caller{
		c: c, slots: make(chan struct{}, c.Concurrency), clients: map[policy]*http.Client{},
		fault: func(string) error { return nil },
	}
	// A connection that was admitted by one policy must not serve another.
	for _, p := range []policy{{}, {private: true}, {private: true, plain: true}} {
		caller.clients[p] = newClient(p, c.RootCAs)
	}
	return caller, nil
}

// Close lets connections go. Calls have ended before.
func (c *Caller) Close() {
	for _, client := range c.clients {
		client.CloseIdleConnections()
	}
}

// Count asks how much there is to erase, and changes nothing.
//
// The Ack is always filled in and may be recorded. The error is nil exactly when
// it is acknowledged, and otherwise
//
//   - a CallError, which is memd.ErrTargetUnavailable when the same call may
//     succeed later (memd.Transient) and memd.ErrTargetRefused when somebody has
//     to change something first;
//   - memd.ErrKeyUnavailable and what else the keys' source returns, when the
//     target's secret could not be opened;
//   - the context's;
//   - memd.ErrInvalid, when ids are missing that the mode needs.
func (c *Caller) Count(ctx context.Context, t Target, r Request) (Ack, error) {
	return c.call(ctx, t, OpCount, r)
}

// Erase erases at the target. Safe to repeat. Errors are those of Count.
func (c *Caller) Erase(ctx context.Context, t Target, r Request) (Ack, error) {
	return c.call(ctx, t, OpErase, r)
}

// Verify counts what is left, and fails with CodeRemaining unless that is
// nothing. A target that gives no number acknowledges with CodeUncounted, which
// proves nothing. Errors are those of Count.
func (c *Caller) Verify(ctx context.Context, t Target, r Request) (Ack, error) {
	return c.call(ctx, t, OpVerify, r)
}

// Test asks the target to count what there is of a user who does not exist.
func (c *Caller) Test(ctx context.Context, t Target, tenant string) (Ack, error) {
	nobody := uuid.NewString()
	return c.call(ctx, t, OpCount, Request{
		ID: uuid.New(), Mode: ModeUser, Tenant: tenant, App: "memd-target-test", UserID: "nobody-" + nobody, Round: 1,
	})
}

// outcome is what one try brought.
type outcome struct {
	n       int64
	counted bool
	pending bool
	// residual: the target acknowledges by its retention alone.
	residual bool
}

func (c *Caller) call(ctx context.Context, t Target, op Op, r Request) (Ack, error) {
	a := Ack{
		Target: t.ID, Name: t.Name, Kind: t.Kind, Order: t.Order, Required: t.Required,
		Op: op, Round: r.Round, At: c.c.Clock.Now(),
	}
	if err := r.subject().Validate(); err != nil {
		a.Code = CodeRefused
		return a, invalid("request", "must have the ids that its mode needs, and no others")
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		a.Code = CodeCanceled
		return a, fmt.Errorf("waiting to call a purge target: %w", ctx.Err())
	}
	start := c.c.Clock.Now()
	out, err := c.run(ctx, t, op, r, &a.Tries)
	a.At = c.c.Clock.Now()
	if err == nil {
		err = a.take(t, out)
	}
	if err != nil {
		a.Code = codeOf(ctx, err)
	}
	c.c.OnCall(t.Kind, op, a.Code, a.At.Sub(start))
	return a, err
}

// run carries the call out by the target's kind.
func (c *Caller) run(ctx context.Context, t Target, op Op, r Request, tries *int) (outcome, error) {
	switch t.Kind {
	case KindConnect, KindWebhook:
		secret, err := c.secret(ctx, t)
		if err != nil {
			return outcome{}, err
		}
		once := c.connect
		if t.Kind == KindWebhook {
			once = c.webhook
		}
		first := c.c.Clock.Now()
		return c.retry(ctx, t, tries, func(ctx context.Context, x *exchange) (outcome, error) {
			return once(ctx, x, t, secret, op, r.subject(), first)
		})
	case KindLogFile:
		*tries = 1
		return c.logFile(ctx, t, op, r)
	case KindRetention:
		*tries = 1
		return c.retention(t)
	}
	return outcome{}, failed(CodeUnimplemented)
}

// take fills in what an answer says, or says why it is no acknowledgement.
func (a *Ack) take(t Target, out outcome) error {
	if t.Retention > 0 {
		a.ResidualUntil = a.At.Add(t.Retention)
	}
	if out.counted {
		switch a.Op {
		case OpCount:
			a.Before = &out.n
		case OpErase:
			a.Erased = &out.n
		case OpVerify:
			a.After = &out.n
		}
	}
	switch {
	case out.pending:
		return failed(CodePending)
	case a.Op == OpVerify && out.n > 0:
		return failed(CodeRemaining)
	case out.residual:
		a.Code = CodeResidual
	case !out.counted:
		a.Code = CodeUncounted
	default:
		a.Code = CodeOK
	}
	a.Acknowledged = true
	return nil
}

// codeOf names any error of a call.
func codeOf(ctx context.Context, err error) Code {
	var e *CallError
	switch {
	case errors.As(err, &e):
		return e.Code
	case ctx.Err() != nil:
		return CodeCanceled
	}
	return CodeKey
}

// secret opens a target's secret.
func (c *Caller) secret(ctx context.Context, t Target) (secret string, err error) {
	err = c.c.Keys(ctx, t.Tenant, func(k *shred.Keys) error {
		s, err := k.Targets()
		if err != nil {
			return err
		}
		plain, err := s.Open(t.secret, shred.AADTargetSecret(t.Tenant, t.ID))
		secret = string(plain)
		return err
	})
	switch {
	case err == nil:
		return secret, nil
	case errors.Is(err, memd.ErrCorrupt), errors.Is(err, memd.ErrShredded):
		return "", errors.Join(failed(CodeSecret), err)
	}
	return "", fmt.Errorf("opening a target's secret: %w", err)
}

// client returns the client whose policy fits the target. The installation's
// setting counts now, whatever it was when the target was made.
func (c *Caller) client(t Target) (*http.Client, error) {
	private := t.AllowPrivate && c.c.AllowPrivate
	if err := checkURL(t.URL, private); err != nil {
		return nil, failed(CodeAddress)
	}
	return c.clients[policy{private: private, plain: plain(t.URL)}], nil
}
