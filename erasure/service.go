package erasure

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

// Service accepts requests and waits for the worker to carry them out. It runs
// beside the API and can neither delete a tombstone nor touch a key.
type Service struct {
	// Pool, Keyring, Directory and Clock are required.
	Pool      *pg.Pool
	Keyring   *shred.Keyring
	Directory *provenance.Directory
	Clock     memd.Clock
	// Stores are counted by DryRun; without any, AllStores.
	Stores []Store
	// Wait bounds how long a call waits for the erasure to be done unless its
	// caller says; zero means DefaultWait.
	Wait time.Duration
	// Closing, if set, is closed when the process is about to end: calls that
	// wait then answer at once, with the state that the erasure is in.
	Closing <-chan struct{}
}

// DefaultWait is how long a call waits for the worker.
const DefaultWait = 30 * time.Second

// waitInterval is how often the journal is looked at meanwhile.
const waitInterval = 10 * time.Millisecond

// Caller says for which tenant a request is, the newest key epoch seen, and the
// API key that it came with.
type Caller struct {
	Tenant memd.TenantNo
	Epoch  int64
	KeyID  uuid.UUID
	// Wait is how long this call waits for the erasure to be done: nil for the
	// service's own bound, zero for not at all.
	Wait *time.Duration
}

// ForgetUser forgets a user of an app: everything in the user's scope, and
// every row anywhere that the user contributed to. It returns when the erasure
// is done, or, in state running or accepted, when the time to wait ran out; when
// ctx ended first, with memd.ErrErasureUnfinished. The erasure goes on either
// way, and calling again with the same request id waits again. It is idempotent
// by request id, and forgetting somebody who was never seen succeeds.
func (s *Service) ForgetUser(ctx context.Context, c Caller, app, userID string, request uuid.UUID) (Report, error) {
	if err := validateIDs(app, userID); err != nil {
		return Report{}, err
	}
	return s.forget(ctx, c, request, userID, "", func(k *shred.Keys) Job {
		return Job{Tenant: c.Tenant, ID: request, Kind: KindUser, App: app, User: k.UserRef(app, userID)}
	})
}

// ForgetSession forgets one session of a user, and every row that it
// contributed to. The session's id is refused from then on. Otherwise like
// ForgetUser.
func (s *Service) ForgetSession(ctx context.Context, c Caller, app, userID, sessionID string, request uuid.UUID) (Report, error) {
	return s.forgetSession(ctx, c, KindSession, app, userID, sessionID, request)
}

// DeleteSession deletes a session: its events, state and artifacts, and, with
// memories, every row that it contributed to. Without, what memory drew from it
// stays, it returns when the rows are gone and the puncture is asked for, and
// the keys go with the tenant's next rotation, a day later at most. Without a
// request id, uuid.Nil, the id is the session's: deleting it twice is one
// erasure. Otherwise like ForgetUser.
func (s *Service) DeleteSession(ctx context.Context, c Caller, app, userID, sessionID string, memories bool, request uuid.UUID) (Report, error) {
	kind := KindContent
	if memories {
		kind = KindSession
	}
	return s.forgetSession(ctx, c, kind, app, userID, sessionID, request)
}

func (s *Service) forgetSession(ctx context.Context, c Caller, kind Kind, app, userID, sessionID string, request uuid.UUID) (Report, error) {
	if err := validateIDs(app, userID); err != nil {
		return Report{}, err
	}
	if err := validateID("session_id", sessionID); err != nil {
		return Report{}, err
	}
	return s.forget(ctx, c, request, userID, sessionID, func(k *shred.Keys) Job {
		user := k.UserRef(app, userID)
		j := Job{Tenant: c.Tenant, ID: request, Kind: kind, App: app, User: user, Session: k.SessionRef(user, sessionID)}
		if j.ID == uuid.Nil {
			j.ID = idOf(kind, j.Session)
		}
		return j
	})
}

// idOf is the request id of a session's deletion that was given none: a UUID of
// version 8 that says nothing to whoever does not hold the index key.
func idOf(kind Kind, session memd.Ref) uuid.UUID {
	sum := sha256.Sum256(append([]byte("memd/delete-session/"+kind.String()+"/"), session[:]...))
	id := uuid.UUID(sum[:16])
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	return id
}

// DeleteTenant purges a drained tenant: everything of everybody, its last key,
// and its API keys. The caller repeats name and display name, so that a pasted id
// is not enough, and somebody else has approved it as it is now: see
// ApproveDeletion. Without that it is memd.ErrNotApproved. Otherwise like
// ForgetUser.
func (s *Service) DeleteTenant(ctx context.Context, c Caller, name, displayName string, request uuid.UUID) (Report, error) {
	t, err := s.confirmed(ctx, name, displayName)
	if err != nil {
		return Report{}, err
	}
	c.Tenant, c.Epoch = t.No, 0
	var j Job
	err = s.Pool.With(ctx, func(db pg.DB) (err error) {
		j, err = Read(ctx, db, t.No, request)
		return err
	})
	if errors.Is(err, memd.ErrNotFound) {
		j, err = s.acceptPurge(ctx, c, t, request)
	}
	if err == nil && j.Kind != KindTenant {
		err = memd.ErrRequestReused
	}
	if err != nil {
		return Report{}, err
	}
	return s.waited(ctx, c, j)
}

// validateIDs refuses ids that name nobody: an empty filter never deletes, and
// neither does a wildcard.
func validateIDs(app, userID string) error {
	if err := validateID("app", app); err != nil {
		return err
	}
	return validateID("user_id", userID)
}

func validateID(field, id string) error {
	switch {
	case id == "" || len(id) > memd.MaxIDBytes:
		return &memd.InvalidError{Field: field, Problem: "is required and at most 512 bytes long"}
	case memd.Wildcard(id):
		return &memd.InvalidError{Field: field, Problem: "is a wildcard; only one by its id is ever forgotten"}
	}
	return nil
}

func (s *Service) forget(ctx context.Context, c Caller, request uuid.UUID, userID, sessionID string, job func(k *shred.Keys) Job) (Report, error) {
	var j Job
	err := s.withKeys(ctx, c, func(k *shred.Keys) error {
		return s.Pool.With(ctx, func(db pg.DB) error {
			t, err := tenants.GetByNo(ctx, db, c.Tenant)
			if err != nil {
				return err
			}
			asked := job(k)
			j, err = accept(ctx, db, asked, c.KeyID, s.Clock.Now(), rememberer(k, t.Name, asked.App, userID, sessionID))
			return err
		})
	})
	if err != nil {
		return Report{}, err
	}
	return s.waited(ctx, c, j)
}

// waited waits for an accepted job as long as the caller wants, and reports it.
func (s *Service) waited(ctx context.Context, c Caller, j Job) (Report, error) {
	if err := s.wait(ctx, &j, s.limit(c)); err != nil {
		return Report{}, err
	}
	r, err := s.Report(ctx, c, j.ID)
	if err == nil {
		r.Salt, err = s.salt(ctx, c, j)
	}
	return r, err
}

// limit is how long a call waits.
func (s *Service) limit(c Caller) time.Duration {
	switch {
	case c.Wait != nil:
		return *c.Wait
	case s.Wait != 0:
		return s.Wait
	}
	return DefaultWait
}

// wait returns when the job is done or the time to wait for it is over.
func (s *Service) wait(ctx context.Context, j *Job, limit time.Duration) error {
	end := time.NewTimer(limit)
	defer end.Stop()
	tick := time.NewTicker(waitInterval)
	defer tick.Stop()
	for j.State < StateDone && limit > 0 {
		select {
		case <-ctx.Done():
			return errors.Join(memd.ErrErasureUnfinished, ctx.Err())
		case <-end.C:
			return nil
		case <-s.Closing:
			return nil
		case <-tick.C:
		}
		err := s.Pool.With(ctx, func(db pg.DB) error {
			now, err := Read(ctx, db, j.Tenant, j.ID)
			if err == nil {
				*j = now
			}
			return err
		})
		if err != nil && !memd.Transient(err) {
			return err
		}
	}
	return nil
}

// withKeys runs f with the tenant's keys of now, and again with newer ones when
// those were superseded meanwhile: an erasure itself makes the ones that it was
// accepted with stale.
func (s *Service) withKeys(ctx context.Context, c Caller, f func(k *shred.Keys) error) error {
	for {
		k, err := s.Keyring.Keys(ctx, c.Tenant, c.Epoch)
		if err != nil {
			return err
		}
		err = f(k)
		if !errors.Is(err, memd.ErrStale) || ctx.Err() != nil {
			return err
		}
	}
}
