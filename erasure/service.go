package erasure

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

// Service accepts requests and waits for the worker to carry them out. It runs
// beside the API and can neither delete a tombstone nor touch a key.
type Service struct {
	// Pool, Keyring and Directory are required.
	Pool      *pg.Pool
	Keyring   *shred.Keyring
	Directory *provenance.Directory
	Clock     memd.Clock
	// Wait bounds how long a call waits for the erasure to be done; zero means
	// DefaultWait.
	Wait time.Duration
	// Closing, if set, is closed when the process is about to end: calls that
	// wait then answer at once, with the state that the erasure is in.
	Closing <-chan struct{}
}

// DefaultWait is how long ForgetUser and ForgetSession wait for the worker.
const DefaultWait = 30 * time.Second

// waitInterval is how often the journal is looked at meanwhile.
const waitInterval = 10 * time.Millisecond

// Caller says for which tenant a request is, the newest key epoch seen, and the
// API key that it came with.
type Caller struct {
	Tenant memd.TenantNo
	Epoch  int64
	KeyID  uuid.UUID
}

// ForgetUser forgets a user of an app: everything in the user's scope, and
// every row anywhere that the user contributed to. It returns when the erasure
// is done, or, in state running or accepted, when Wait ran out; when ctx ended
// first, with memd.ErrErasureUnfinished. The erasure goes on either way, and
// calling again with the same request id waits again. It is idempotent by
// request id, and forgetting somebody who was never seen succeeds.
func (s *Service) ForgetUser(ctx context.Context, c Caller, app, userID string, request uuid.UUID) (Report, error) {
	if err := validateIDs(app, userID); err != nil {
		return Report{}, err
	}
	return s.forget(ctx, c, request, func(k *shred.Keys) Job {
		return Job{Tenant: c.Tenant, ID: request, Kind: KindUser, App: app, User: k.UserRef(app, userID)}
	})
}

// ForgetSession forgets one session of a user, and every row that it
// contributed to. The session's id is refused from then on. Otherwise like
// ForgetUser.
func (s *Service) ForgetSession(ctx context.Context, c Caller, app, userID, sessionID string, request uuid.UUID) (Report, error) {
	if err := validateIDs(app, userID); err != nil {
		return Report{}, err
	}
	if err := validateID("session_id", sessionID); err != nil {
		return Report{}, err
	}
	return s.forget(ctx, c, request, func(k *shred.Keys) Job {
		user := k.UserRef(app, userID)
		return Job{Tenant: c.Tenant, ID: request, Kind: KindSession, App: app, User: user, Session: k.SessionRef(user, sessionID)}
	})
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

func (s *Service) forget(ctx context.Context, c Caller, request uuid.UUID, job func(k *shred.Keys) Job) (Report, error) {
	k, err := s.Keyring.Keys(ctx, c.Tenant, c.Epoch)
	if err != nil {
		return Report{}, err
	}
	var j Job
	err = s.Pool.With(ctx, func(db pg.DB) error {
		j, err = Accept(ctx, db, job(k), c.KeyID, s.Clock.Now())
		return err
	})
	if err != nil {
		return Report{}, err
	}
	if err := s.wait(ctx, &j); err != nil {
		return Report{}, err
	}
	return s.report(ctx, c, request)
}

// wait returns when the job is done or the time to wait for it is over.
func (s *Service) wait(ctx context.Context, j *Job) error {
	limit := s.Wait
	if limit == 0 {
		limit = DefaultWait
	}
	end := time.NewTimer(limit)
	defer end.Stop()
	tick := time.NewTicker(waitInterval)
	defer tick.Stop()
	for j.State != StateDone {
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

// report reads the report with the keys of now: the erasure itself has made
// the ones it was accepted with stale.
func (s *Service) report(ctx context.Context, c Caller, request uuid.UUID) (Report, error) {
	var r Report
	for {
		k, err := s.Keyring.Keys(ctx, c.Tenant, c.Epoch)
		if err != nil {
			return Report{}, err
		}
		err = s.Pool.With(ctx, func(db pg.DB) error {
			r, err = ReadReport(ctx, db, s.Directory, k, request)
			return err
		})
		if !errors.Is(err, memd.ErrStale) || ctx.Err() != nil {
			return r, err
		}
	}
}
