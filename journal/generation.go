package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred/ledger"
)

// Generation is a claim in the ledger: the server that gives out numbers of this
// generation.
type Generation struct {
	Installation uuid.UUID `json:"installation"`
	Generation   int64     `json:"generation"`
	Server       string    `json:"server"`
	// Seq is the record up to which the database had everything.
	Seq int64 `json:"seq"`
}

// GenerationPrefix is where the ledgers keep the claims.
const GenerationPrefix = "generations/"

// GenerationName is the name of a claim in every ledger.
func GenerationName(n int64) string { return fmt.Sprintf("%s%08d", GenerationPrefix, n) }

// claim gives the server of p a generation that no other has had, at least the
// database's own, and returns it. Repeating it for the same server returns the
// same.
func (j *Journal) claim(ctx context.Context, p Position) (int64, error) {
	for {
		last, err := lastGeneration(ctx, j.c.Ledgers)
		if err != nil {
			return 0, err
		}
		if last > 0 {
			data, err := first(ctx, j.c.Ledgers, GenerationName(last))
			if err != nil {
				return 0, fmt.Errorf("reading a generation: %w", err)
			}
			g, err := parseGeneration(data, p.Installation, last)
			if err != nil {
				return 0, err
			}
			if g.Server == p.Server {
				return last, j.everywhere(ctx, GenerationName(last), data)
			}
		}
		next := p.Generation
		if p.Known != "" {
			next++ // Its own has been used, by the server before.
		}
		next = max(next, last+1)
		err = j.putGeneration(ctx, p, next)
		if !errors.Is(err, memd.ErrExists) {
			return next, err
		}
		// Somebody was quicker, perhaps for the same server.
	}
}

// putGeneration writes a claim. memd.ErrExists: it is somebody else's.
func (j *Journal) putGeneration(ctx context.Context, p Position, n int64) error {
	data, err := json.Marshal(Generation{Installation: p.Installation, Generation: n, Server: p.Server, Seq: p.Seq})
	if err != nil {
		return fmt.Errorf("encoding a generation: %w", err)
	}
	if err := j.c.Ledgers[0].Put(ctx, GenerationName(n), data); err != nil {
		return fmt.Errorf("claiming a generation: %w", err)
	}
	return j.complete(ctx, GenerationName(n), data)
}

// lastGeneration is the highest that any ledger has a claim of, or zero.
func lastGeneration(ctx context.Context, ledgers []ledger.Ledger) (int64, error) {
	var last int64
	for i, l := range ledgers {
		names, err := l.List(ctx, GenerationPrefix)
		if err != nil {
			return 0, fmt.Errorf("ledger %d: %w", i+1, err)
		}
		for _, name := range names {
			n, err := strconv.ParseInt(name[len(GenerationPrefix):], 10, 64)
			if err != nil {
				return 0, corrupt("ledger has something else among the generations")
			}
			last = max(last, n)
		}
	}
	return last, nil
}

func parseGeneration(data []byte, installation uuid.UUID, n int64) (*Generation, error) {
	var g Generation
	if err := json.Unmarshal(data, &g); err != nil || g.Generation != n {
		return nil, corrupt("a generation in the ledger cannot be read")
	}
	if g.Installation != installation {
		return nil, errOtherInstallation
	}
	return &g, nil
}

// everywhere completes a name that some ledger has.
func (j *Journal) everywhere(ctx context.Context, name string, data []byte) error {
	if err := ledger.PutSame(ctx, j.c.Ledgers[0], name, data); err != nil {
		return fmt.Errorf("first ledger: %w", err)
	}
	return j.complete(ctx, name, data)
}

// first returns what the first ledger that has the name holds. memd.ErrNotFound
// means that all were asked.
func first(ctx context.Context, ledgers []ledger.Ledger, name string) ([]byte, error) {
	var damaged []error
	for i, l := range ledgers {
		data, err := l.Get(ctx, name)
		switch {
		case err == nil:
			return data, nil
		case errors.Is(err, memd.ErrCorrupt):
			damaged = append(damaged, fmt.Errorf("ledger %d: %w", i+1, err))
		case !errors.Is(err, memd.ErrNotFound):
			return nil, fmt.Errorf("ledger %d: %w", i+1, err)
		}
	}
	if len(damaged) > 0 {
		return nil, errors.Join(damaged...)
	}
	return nil, fmt.Errorf("every ledger: %w", memd.ErrNotFound)
}
