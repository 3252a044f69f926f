package memory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/embed"
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
	// Dimension of every vector.
	Dimension int
	// Embedder turns text into vectors: a name that Config.Embedder knows, or
	// "none" when the tenant brings its own vectors.
	Embedder string
	// Space numbers what Dimension and Embedder have been so far: vectors of two are
	// never compared. Zero is 1. Former is the one before, while there are rows in it.
	Space  int16
	Former Space
	// Format is how vectors are stored.
	Format VectorFormat
	// Sealed says that the tenant's policy allows no sketches: scopes too large for
	// memory are scanned.
	Sealed bool
	// Premise, if set, is that all of this is still so. Search has it compared
	// with the database in the snapshot that it searches, and returns
	// pg.ErrPremise when it does not hold; other calls do not look at it.
	Premise *pg.Premise
}

// Space is one in which vectors can be compared. Number 0 is none.
type Space struct {
	Number    int16
	Dimension int
	Embedder  string
}

func (t *Tenant) space() int16 { return max(1, t.Space) }

// spaces are those whose vectors are kept in memory.
type spaces struct {
	dim    int
	space  int16
	former Space
}

func (t *Tenant) spaces() spaces { return spaces{t.Dimension, t.space(), t.Former} }

// Defaults of a Config.
const (
	// DefaultMaxResidentBytes bounds what all resident scopes take together.
	DefaultMaxResidentBytes = 512 << 20
	// DefaultMaxScopeRows bounds a scope whose vectors are in memory, and
	// DefaultMaxCodedRows one whose codes are; larger ones are scanned from the
	// database.
	DefaultMaxScopeRows = 50_000
	DefaultMaxCodedRows = 2_000_000
)

// Config says what a Service works with.
type Config struct {
	// Pool, Keyring and Directory are required.
	Pool      *pg.Pool
	Keyring   *shred.Keyring
	Directory *provenance.Directory
	// Embedder returns the embedder of a policy's name and dimension. Required.
	Embedder func(name string, dimension int) (embed.Embedder, error)
	Clock    memd.Clock
	Logger   *slog.Logger
	// MaxResidentBytes bounds what scopes take in memory, MaxScopeRows one whose
	// vectors are there, and MaxCodedRows one whose codes are; zero means the
	// defaults.
	MaxResidentBytes int64
	MaxScopeRows     int
	MaxCodedRows     int
	// OnChange, if set, is told how many rows were added, updated or deleted.
	OnChange func(change string, rows int)
}

func (c *Config) validate() error {
	switch {
	case c.Pool == nil:
		return errors.New("memory: Config.Pool is required")
	case c.Keyring == nil:
		return errors.New("memory: Config.Keyring is required")
	case c.Directory == nil:
		return errors.New("memory: Config.Directory is required")
	case c.Embedder == nil:
		return errors.New("memory: Config.Embedder is required")
	}
	if c.Clock == nil {
		c.Clock = memd.SystemClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.OnChange == nil {
		c.OnChange = func(string, int) {}
	}
	if c.MaxResidentBytes == 0 {
		c.MaxResidentBytes = DefaultMaxResidentBytes
	}
	if c.MaxScopeRows == 0 {
		c.MaxScopeRows = DefaultMaxScopeRows
	}
	if c.MaxCodedRows == 0 {
		c.MaxCodedRows = DefaultMaxCodedRows
	}
	return nil
}

// Service is the memory store of one process. Safe for concurrent use.
type Service struct {
	Config
	residents *residents

	loads, loadRows atomic.Int64 // of coded scopes, under way
	patience        time.Duration
	exhaustive      bool // every row of a coded scope is a candidate: for tests

	wishes wishes
}

// New returns a Service.
func New(c Config) (*Service, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Service{Config: c, residents: newResidents(c.MaxResidentBytes), patience: patience}, nil
}

// attempts bounds how often a call starts over because a number or a key that
// this process had cached turned out to be out of date.
const attempts = 5

// newerEpoch is a memd.ErrStale that says why: the database has gone on to an
// epoch whose keys this call did not use.
type newerEpoch int64

func (e newerEpoch) Error() string { return fmt.Sprintf("keys of epoch %d are needed", int64(e)) }

// Is makes it a memd.ErrStale.
func (e newerEpoch) Is(target error) bool { return target == memd.ErrStale }

// again runs fn with the tenant's keys and repeats it when it found that its
// numbers or keys were stale. Refs are the subjects whose cached numbers are
// forgotten in between.
func (s *Service) again(ctx context.Context, t Tenant, fn func(k *shred.Keys) ([]memd.Ref, error)) error {
	var err error
	for range attempts {
		var k *shred.Keys
		k, err = s.Keyring.Keys(ctx, t.No, t.Epoch)
		if err != nil {
			return err
		}
		var refs []memd.Ref
		refs, err = fn(k)
		// A key that is gone is that of a number from an earlier life, unless it
		// is gone for the numbers of now as well.
		if !errors.Is(err, memd.ErrStale) && !errors.Is(err, memd.ErrShredded) || errors.Is(err, memd.ErrMonthExpired) {
			return err
		}
		for _, r := range refs {
			s.Directory.Evict(t.No, r)
		}
		// The keyring may not have heard of it yet: ask for what was seen.
		var newer newerEpoch
		if errors.As(err, &newer) {
			t.Epoch = max(t.Epoch, int64(newer))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return err
}

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
