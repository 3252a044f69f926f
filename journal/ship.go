package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred/ledger"
)

const (
	// FlushLimit bounds a Flush, and so what a caller waits for a ledger that
	// hangs.
	FlushLimit = 8 * time.Second
	// shipInterval is how often facts are shipped that nobody waits for.
	shipInterval = 500 * time.Millisecond
)

// round is one shipping of everything that is committed when it begins, and what
// all who asked for it are told.
type round struct {
	done chan struct{}
	err  error
}

// Flush returns nil when every fact that was committed before the call is in
// every ledger, durable. Callers at the same time share the work. Otherwise it
// returns memd.ErrLedgerUnavailable, memd.ErrRolledBack, or what the database
// says; the facts stay in the outbox, and shipping them is tried again by the
// next Flush of anybody. Safe to repeat.
func (j *Journal) Flush(ctx context.Context) error {
	j.mu.Lock()
	r := j.waiting
	if r == nil {
		r = &round{done: make(chan struct{})}
		j.waiting = r
		if !j.shipping {
			j.shipping = true
			j.work.Go(j.rounds)
		}
	}
	j.mu.Unlock()
	limit := time.NewTimer(FlushLimit)
	defer limit.Stop()
	select {
	case <-r.done:
		return r.err
	case <-limit.C:
		return fmt.Errorf("waiting for the ledgers: %w", memd.ErrLedgerUnavailable)
	case <-ctx.Done():
		return fmt.Errorf("waiting for the ledgers: %w (%v)", memd.ErrLedgerUnavailable, ctx.Err())
	}
}

// rounds ships for as long as somebody waits for it. Who comes while a round is
// under way waits for the next one: its facts may not be in this one.
func (j *Journal) rounds() {
	for {
		j.mu.Lock()
		r := j.waiting
		j.waiting = nil
		j.shipping = r != nil
		j.mu.Unlock()
		if r == nil {
			return
		}
		ctx, cancel := context.WithTimeout(j.background, FlushLimit)
		r.err = j.ship(ctx)
		cancel()
		close(r.done)
	}
}

// ship ships until what was committed at its beginning is shipped.
func (j *Journal) ship(ctx context.Context) error {
	for {
		n, err := j.shipRecord(ctx)
		if err != nil {
			return fmt.Errorf("shipping facts to the ledgers: %w", err)
		}
		if n < recordFacts {
			return nil
		}
	}
}

// shipRecord writes the next record, if there are facts, and returns their
// number.
func (j *Journal) shipRecord(ctx context.Context) (int, error) {
	shipped, seq := 0, int64(0)
	err := j.c.Pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := lockShipping(ctx, tx); err != nil {
			return err
		}
		p, err := ReadPosition(ctx, tx)
		if err != nil {
			return err
		}
		// What a database that nobody has compared says may not go into a ledger.
		if p.Known != p.Server || p.Restoring {
			return j.unchecked()
		}
		facts, err := committed(ctx, tx)
		if err != nil || len(facts) == 0 {
			return err
		}
		r := Record{
			Installation: p.Installation, Generation: p.Generation, Seq: p.Seq + 1,
			Previous: previousOf(p.Digest), Rebuilt: j.c.Rebuilding, Facts: facts,
		}
		seq = r.Seq
		shipped, err = j.write(ctx, tx, p, r)
		return err
	})
	if err != nil {
		return 0, err
	}
	// Not before it is committed: whoever looks meanwhile would miss it, and close
	// the gate.
	j.seen(seq)
	return shipped, nil
}

// write puts a record into every ledger and notes it. When the first ledger has
// one of that number already, it counts, if it is made of facts of the outbox.
func (j *Journal) write(ctx context.Context, tx pgx.Tx, p Position, r Record) (int, error) {
	data, err := r.encode()
	if err != nil {
		return 0, err
	}
	name := RecordName(r.Seq)
	err = j.c.Ledgers[0].Put(ctx, name, data)
	if errors.Is(err, memd.ErrExists) {
		if data, err = j.c.Ledgers[0].Get(ctx, name); err != nil {
			return 0, fmt.Errorf("reading the record that is there already: %w", err)
		}
		if r, err = ParseRecord(data); err != nil {
			return 0, err
		}
		own := r.follows(p.Installation, p.Seq, p.Digest)
		if own {
			if own, err = allThere(ctx, tx, r.Facts); err != nil {
				return 0, err
			}
		}
		if !own {
			j.shut(&missingError{r.Seq})
			return 0, &missingError{r.Seq}
		}
	}
	if err != nil {
		return 0, fmt.Errorf("first ledger: %w", err)
	}
	if err := j.complete(ctx, name, data); err != nil {
		return 0, err
	}
	noted, err := advance(ctx, tx, p, r)
	if err != nil {
		return 0, err
	}
	if !noted {
		return 0, fmt.Errorf("the journal moved on elsewhere: %w", memd.ErrStale)
	}
	// At least one more round, when the record was somebody else's and small.
	return recordFacts, nil
}

// complete writes what the first ledger has to all the others.
func (j *Journal) complete(ctx context.Context, name string, data []byte) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, l := range j.c.Ledgers[1:] {
		g.Go(func() error {
			err := ledger.PutSame(ctx, l, name, data)
			if errors.Is(err, memd.ErrExists) {
				return fmt.Errorf("ledger %d has another %s than the first one: %w", i+2, name, memd.ErrCorrupt)
			}
			if err != nil {
				return fmt.Errorf("ledger %d: %w", i+2, err)
			}
			return nil
		})
	}
	return g.Wait()
}
