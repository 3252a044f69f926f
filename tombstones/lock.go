package tombstones

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// The drain waits in short turns. A turn shorter than PostgreSQL's
// deadlock_timeout (1 s by default) means that the fence gives up its place in
// the lock queue before anything could be a deadlock, and that writers of the
// user's other sessions, queued behind it, go on. DrainLimit is longer than any
// transaction of memd_app can last (its statement and idle timeouts).
const (
	drainPause = 20 * time.Millisecond
	DrainLimit = 60 * time.Second
)

const (
	sqlLockTimeout = `SET LOCAL lock_timeout = '200ms'`
	sqlDrain       = `SELECT pg_advisory_xact_lock(@hi::int, @lo::int)`
	// In the order in which writers take theirs.
	sqlDrainAll = `
SELECT pg_advisory_xact_lock(k.hi, k.lo)
FROM (SELECT DISTINCT hi, lo FROM unnest(@hi::int[], @lo::int[]) AS u (hi, lo) ORDER BY 1, 2 OFFSET 0) k`
	// drainBatch bounds the locks of one transaction: the server has room for
	// some thousands.
	drainBatch = 100
)

// lockKey is where the database's guard finds a user's lock: the first eight
// bytes of the ref, in the (int, int) space of advisory locks.
func lockKey(ref memd.Ref) (hi, lo int32) {
	return int32(binary.BigEndian.Uint32(ref[0:4])), int32(binary.BigEndian.Uint32(ref[4:8]))
}

// drained runs fn in a transaction that holds the user's lock exclusively: every
// writer that entered before has committed or rolled back. It tries for
// DrainLimit and then gives up with a transient error; the fence stays up.
func drained(ctx context.Context, pool *pg.Pool, ref memd.Ref, fn func(tx pgx.Tx) error) error {
	hi, lo := lockKey(ref)
	return locked(ctx, pool, sqlDrain, pg.Args{"hi": hi, "lo": lo}, fn)
}

// drainedAll is drained for some users at once, with nothing to be done.
func drainedAll(ctx context.Context, pool *pg.Pool, refs []memd.Ref) error {
	hi, lo := make([]int32, len(refs)), make([]int32, len(refs))
	for i, r := range refs {
		hi[i], lo[i] = lockKey(r)
	}
	return locked(ctx, pool, sqlDrainAll, pg.Args{"hi": hi, "lo": lo}, func(pgx.Tx) error { return nil })
}

func locked(ctx context.Context, pool *pg.Pool, sql string, args pg.Args, fn func(tx pgx.Tx) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, DrainLimit, fmt.Errorf("waiting for writers to finish: %w", memd.ErrStale))
	defer cancel()
	for {
		err := pool.InTx(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, sqlLockTimeout); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, sql, args); err != nil {
				if pg.SQLState(err) == sqlStateLockNotAvailable {
					return errQueueing
				}
				return err
			}
			return fn(tx)
		})
		if !errors.Is(err, errQueueing) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(drainPause/2 + rand.N(drainPause)):
		}
	}
}

const sqlStateLockNotAvailable = "55P03"

var errQueueing = errors.New("writers are still under way")
