package erasure

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Bounds of a tenant's purge, and of a month's expiry, so that other tenants hardly
// notice it. It works by
// one connection, and thus by one processor of the database's.
const (
	// PurgePage is how many subjects are purged together.
	PurgePage = 50
	// PurgeBatch is about how long one transaction of a purge takes: as many rows
	// as that allows, of whatever size, and fewer while the database is busy.
	PurgeBatch = 25 * time.Millisecond
	// PurgeRest is how long a purge rests after each transaction, as a part of the
	// time that it took.
	PurgeRest = 3.0

	firstPurged = 500
	leastPurged = 20
	mostPurged  = 5000
)

// pace says how many rows a purge deletes at once.
type pace struct{ rows int }

func newPace() *pace { return &pace{rows: firstPurged} }

// took learns from a batch and returns how long to rest after it. A batch that
// was not full says nothing about how many rows more would have taken.
func (p *pace) took(deleted int64, d time.Duration) time.Duration {
	factor := max(0.5, min(2, float64(PurgeBatch)/float64(max(d, 1))))
	if factor < 1 || deleted >= int64(p.rows) {
		p.rows = max(leastPurged, min(mostPurged, int(float64(p.rows)*factor)))
	}
	return time.Duration(PurgeRest * float64(d))
}

// rest is took, and rests.
func (p *pace) rest(ctx context.Context, deleted int64, d time.Duration) error {
	timer := time.NewTimer(p.took(deleted, d))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// paced deletes batch after batch, and rests after each, until nothing is left.
func (r *Runner) paced(ctx context.Context, p *pace, batch func(tx pgx.Tx, limit int) (int64, error)) error {
	for {
		var deleted int64
		began := time.Now()
		err := r.Pool.InTx(ctx, func(tx pgx.Tx) (err error) {
			deleted, err = batch(tx, p.rows)
			return err
		})
		if err != nil {
			return err
		}
		if deleted == 0 {
			return nil
		}
		if err := p.rest(ctx, deleted, time.Since(began)); err != nil {
			return err
		}
	}
}
