package sessions

import (
	"context"
	"errors"
	"fmt"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

// Tenant is what a call needs to know of the tenant it is for.
type Tenant struct {
	No memd.TenantNo
	// Epoch is the newest key epoch that the caller has seen; older keys are
	// not used.
	Epoch int64
}

// ID names a session.
type ID struct {
	App, UserID, SessionID string
}

func (id ID) scope() memd.Scope { return memd.Scope{App: id.App, UserID: id.UserID} }

// Config says what a Service works with.
type Config struct {
	// Pool, Keyring and Directory are required.
	Pool      *pg.Pool
	Keyring   *shred.Keyring
	Directory *provenance.Directory
	// Clock is the system's if nil.
	Clock memd.Clock
}

func (c *Config) validate() error {
	switch {
	case c.Pool == nil:
		return errors.New("sessions: Config.Pool is required")
	case c.Keyring == nil:
		return errors.New("sessions: Config.Keyring is required")
	case c.Directory == nil:
		return errors.New("sessions: Config.Directory is required")
	}
	if c.Clock == nil {
		c.Clock = memd.SystemClock{}
	}
	return nil
}

// maxCachedMonths bounds what is remembered of sessions, in entries of some 50
// bytes: the month of a session never changes.
const maxCachedMonths = 100_000

// Service is the session store of one process. Safe for concurrent use.
type Service struct {
	Config
	months     *lru.Cache[monthKey, memd.Month]
	partitions sync.Map // of memd.Month: those that are known to be there
}

type monthKey struct {
	tenant memd.TenantNo
	of     memd.Contribution
}

// New returns a Service.
func New(c Config) (*Service, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	months, err := lru.New[monthKey, memd.Month](maxCachedMonths)
	if err != nil {
		return nil, fmt.Errorf("making the cache of months: %w", err)
	}
	return &Service{Config: c, months: months}, nil
}

// again runs fn with the tenant's keys and repeats it when it found that its
// numbers or keys were stale. The scopes are those whose cached numbers are
// forgotten in between.
func (s *Service) again(ctx context.Context, t Tenant, scopes []memd.Scope, fn func(k *shred.Keys) error) error {
	return s.Keyring.Again(ctx, t.No, t.Epoch, fn, func(k *shred.Keys) {
		for _, scope := range scopes {
			s.Directory.Evict(t.No, provenance.RefOf(k, scope))
		}
	})
}

// Why a session that is not found is not there. The tombstone and the fence are
// by digest, so that they answer for who was never seen as well.
const sqlRefusal = `
SELECT EXISTS (SELECT FROM memd.fence_states f WHERE f.tenant_no = @tenant AND f.user_ref = @ref AND f.state IN (1, 2)),
       EXISTS (SELECT FROM memd.dead_sessions d WHERE d.tenant_no = @tenant AND d.session_ref = @session)`

// refusal says why a session cannot be written: memd.ErrFenced,
// memd.ErrSessionForgotten, or otherwise.
func refusal(ctx context.Context, db pg.DB, k *shred.Keys, id ID, otherwise error) error {
	ref := provenance.RefOf(k, id.scope())
	session := k.SessionRef(ref, id.SessionID)
	var fenced, dead bool
	err := db.QueryRow(ctx, sqlRefusal, pg.Args{"tenant": k.Tenant(), "ref": ref[:], "session": session[:]}).Scan(&fenced, &dead)
	switch {
	case err != nil:
		return fmt.Errorf("asking for a session's tombstone: %w", err)
	case fenced:
		return memd.ErrFenced
	case dead:
		return memd.ErrSessionForgotten
	}
	return otherwise
}
