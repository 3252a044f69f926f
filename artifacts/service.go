package artifacts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

// Limits of an artifact.
const (
	// DefaultMaxBytes is the size of one version, unless the Config says
	// otherwise. One save has to arrive within the server's limit for a stream.
	DefaultMaxBytes = 1 << 30
	// MaxMimeTypeBytes is the length of a media type: RFC 6838 allows 127 for
	// each of its halves.
	MaxMimeTypeBytes = 255

	// chunkBytes is how much of an artifact is sealed in one piece, and is
	// measured: see docs/design/0007-artifacts.md.
	chunkBytes = 256 << 10
	// groupChunks is how many chunks are written in one transaction and read by
	// one statement, at most.
	groupChunks = 4
)

// UserPrefix begins the names that belong to the user and not to a session.
const UserPrefix = "user:"

// Tenant is what a call needs to know of the tenant it is for.
type Tenant struct {
	No memd.TenantNo
	// Epoch is the newest key epoch that the caller has seen; older keys are
	// not used.
	Epoch int64
}

// Owner says whose artifacts a call is about. SessionID is required for every
// name that does not begin with UserPrefix, and plays no part for those that do.
type Owner struct {
	App, UserID, SessionID string
}

// Config says what a Service works with.
type Config struct {
	// Pool, Keyring and Directory are required.
	Pool      *pg.Pool
	Keyring   *shred.Keyring
	Directory *provenance.Directory
	// Clock is the system's if nil.
	Clock memd.Clock
	// MaxBytes bounds the size of one version. DefaultMaxBytes if zero.
	MaxBytes int64
}

func (c *Config) validate() error {
	switch {
	case c.Pool == nil:
		return errors.New("artifacts: Config.Pool is required")
	case c.Keyring == nil:
		return errors.New("artifacts: Config.Keyring is required")
	case c.Directory == nil:
		return errors.New("artifacts: Config.Directory is required")
	case c.MaxBytes < 0:
		return errors.New("artifacts: Config.MaxBytes is negative")
	}
	if c.Clock == nil {
		c.Clock = memd.SystemClock{}
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	return nil
}

// Service is the artifact store of one process. Safe for concurrent use.
type Service struct {
	Config
	chunk int // chunkBytes, save in measurements
	group int // groupChunks likewise
}

// New returns a Service.
func New(c Config) (*Service, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Service{Config: c, chunk: chunkBytes, group: groupChunks}, nil
}

// again runs one step with the tenant's keys of now, and repeats it when its
// numbers or keys were stale: keys are dropped whenever somebody of the tenant
// was forgotten, which may happen more than once while one artifact streams. The
// user's cached numbers are forgotten in between.
func (s *Service) again(ctx context.Context, t Tenant, o Owner, step func(k *shred.Keys) error) error {
	return s.Keyring.Again(ctx, t.No, t.Epoch, step, func(k *shred.Keys) {
		s.Directory.Evict(t.No, k.UserRef(o.App, o.UserID))
	})
}

// place is where an artifact is kept, and under which keys.
type place struct {
	memd.Contribution
	// month of class 0, of one save. A session's content has the month of the
	// session, whenever it is written, so that all of it expires together; what is
	// the user's has no month in its key, and in its row that of the save. Only for
	// content; zero where that is not at hand.
	month memd.Month
}

// content is the Sealer of names, descriptions and chunks.
func (p place) content(k *shred.Keys) (*shred.Sealer, error) {
	return k.Content(p.month, p.Subject, p.Session)
}

// digest is what a name is looked up by, without knowing a month. It dies with the
// owner's key.
func (p place) digest(k *shred.Keys, name string) ([]byte, error) {
	sealer, err := k.State(p.Contribution)
	if err != nil {
		return nil, fmt.Errorf("deriving a name's key: %w", err)
	}
	sum := sealer.Digest([]byte("artifact"), []byte(name))
	return sum[:], nil
}

// shreddedIsGone turns a key that was shredded between the read and the
// opening into what the reader would have met a moment later.
func shreddedIsGone(err error) error {
	if errors.Is(err, memd.ErrShredded) {
		return memd.ErrNotFound
	}
	return err
}

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
