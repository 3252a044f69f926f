package journal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred/ledger"
)

const (
	// watchInterval is how often a process asks which server answers, in case a
	// pooler keeps its connections alive over a failover.
	watchInterval = time.Second
	// checkLimit bounds one comparison.
	checkLimit = 10 * time.Second
)

// Config says what a Journal works with.
type Config struct {
	// Pool reaches the primary, as the application or the worker, and is not
	// behind the gate: its few connections are the Journal's alone. Required.
	Pool *pg.Pool
	// Ledgers are all the places outside the database, in the same order in
	// every process. At least one.
	Ledgers []ledger.Ledger
	// Logger is required.
	Logger *slog.Logger
	// Rebuilding marks the records that it ships as the beginning of a journal
	// whose older part was lost.
	Rebuilding bool
}

// Journal ships facts and keeps the gate. It is safe for concurrent use.
type Journal struct {
	c          Config
	background context.Context
	end        context.CancelFunc
	work       sync.WaitGroup

	mu       sync.Mutex
	waiting  *round
	shipping bool
	open     bool
	why      error  // of being closed
	server   string // that the gate is open for
	last     int64  // record that this process has seen noted
	restores int64  // before which this process began
	restored chan struct{}

	checking chan struct{} // capacity 1: full while somebody compares
}

// Open compares the database with the ledgers and returns an open Journal, or
// says why it stays closed: memd.ErrRolledBack when something is missing. The
// caller closes it.
func Open(ctx context.Context, c Config) (*Journal, error) {
	j, err := For(ctx, c)
	if err != nil {
		return nil, err
	}
	if _, err := j.Check(ctx); err != nil {
		j.Close()
		return nil, err
	}
	return j, nil
}

// Close waits for what is under way.
func (j *Journal) Close() {
	j.end()
	j.work.Wait()
}

// Restored is closed when a restore has ended that this process was running
// before: it must end too.
func (j *Journal) Restored() <-chan struct{} { return j.restored }

// ErrRestored is what a process ends with after a restore.
var ErrRestored = errors.New("the database was restored, and what this process remembers is of before: it has to be started again")

var (
	errUnchecked = fmt.Errorf("the database has not been compared with its ledger yet: %w", memd.ErrRolledBack)

	errOtherInstallation = fmt.Errorf("the ledger belongs to another installation than the database: %w", memd.ErrRolledBack)

	errRestoring = fmt.Errorf("a restore is under way or broke off, run memd restore: %w", memd.ErrRolledBack)
)

// Err says why the gate is closed, or nothing.
func (j *Journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.open {
		return nil
	}
	return j.why
}

// Admit implements pg.Gate: it is asked about every new connection. One to
// another server than the gate is open for closes the gate, and the two are
// compared at once.
func (j *Journal) Admit(ctx context.Context, conn *pgx.Conn) error {
	p, fits, err := j.look(ctx, conn)
	if err != nil || fits {
		return err
	}
	j.shut(errUnchecked)
	compared, err := j.Check(ctx)
	if err == nil && compared != p.Server {
		err = errUnchecked // The connection is one to another server yet.
	}
	return err
}

// look asks a database, and reports whether the gate is open for what it says.
func (j *Journal) look(ctx context.Context, db pg.DB) (p Position, fits bool, err error) {
	j.mu.Lock()
	last := j.last // Before asking: a record that is noted meanwhile is none too few.
	j.mu.Unlock()
	if p, err = ReadPosition(ctx, db); err != nil {
		return p, false, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return p, j.open && p.Server == j.server && p.Known == p.Server && p.Seq >= last && p.Restores == j.restores && !p.Restoring, nil
}

func (j *Journal) shut(why error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.open, j.why = false, why
}

func (j *Journal) unchecked() error {
	j.shut(errUnchecked)
	return errUnchecked
}

func (j *Journal) seen(seq int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last = max(j.last, seq)
}

// Check compares the database with the ledgers and opens or closes the gate. It
// returns the server for which it opened it.
func (j *Journal) Check(ctx context.Context) (server string, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	select {
	case j.checking <- struct{}{}:
		defer func() { <-j.checking }()
	case <-ctx.Done():
		return "", fmt.Errorf("waiting for a comparison with the ledger: %w", ctx.Err())
	}
	p, err := j.check(ctx)
	if err != nil {
		if !errors.Is(err, memd.ErrRolledBack) {
			// Not known to be rolled back, but nobody knows that it was not.
			j.shut(fmt.Errorf("%w (%w)", errUnchecked, err))
			return "", err
		}
		j.shut(err)
		return "", err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.restores >= 0 && p.Restores != j.restores {
		j.open, j.why = false, fmt.Errorf("%w: %w", ErrRestored, memd.ErrRolledBack)
		select {
		case <-j.restored:
		default:
			close(j.restored)
		}
		return "", j.why
	}
	j.open, j.why, j.server, j.restores, j.last = true, nil, p.Server, p.Restores, p.Seq
	return p.Server, nil
}

// check returns the position of a database from which nothing is missing.
func (j *Journal) check(ctx context.Context) (p Position, err error) {
	for {
		again := false
		err = j.c.Pool.InTx(ctx, func(tx pgx.Tx) error {
			if err := lockShipping(ctx, tx); err != nil {
				return err
			}
			if p, err = ReadPosition(ctx, tx); err != nil {
				return err
			}
			if p.Restoring {
				return errRestoring
			}
			again, err = j.compare(ctx, tx, p)
			return err
		})
		if err != nil || again {
			if err != nil {
				return p, err
			}
			continue
		}
		if p.Known == p.Server {
			return p, nil
		}
		if err := j.adopt(ctx, p); err != nil {
			return p, err
		}
	}
}

const sqlAdopt = `SELECT memd.adopt_server(@server, @generation)`

// adopt raises the generation for the server that p is of.
func (j *Journal) adopt(ctx context.Context, p Position) error {
	generation, err := j.claim(ctx, p)
	if err != nil {
		return err
	}
	j.c.Logger.WarnContext(ctx, "the database is on another server or was restarted, and nothing is missing",
		"generation", generation, "record", p.Seq)
	return j.c.Pool.With(ctx, func(db pg.DB) error {
		_, err := db.Exec(ctx, sqlAdopt, pg.Args{"server": p.Server, "generation": generation})
		return err
	})
}

// compare asks every ledger for the database's last record and for the one after
// it. A record that follows and is made of facts of the outbox was written by
// somebody who did not get to say so: it is noted, and again is true.
func (j *Journal) compare(ctx context.Context, tx pgx.Tx, p Position) (again bool, err error) {
	there := p.Seq == 0
	var next []byte
	for i, l := range j.c.Ledgers {
		if p.Seq > 0 {
			data, err := l.Get(ctx, RecordName(p.Seq))
			switch {
			case errors.Is(err, memd.ErrNotFound):
				j.c.Logger.WarnContext(ctx, "a ledger lacks a record that another one may have, run memd ledger mirror", "ledger", i+1, "record", p.Seq)
			case err != nil:
				return false, fmt.Errorf("ledger %d: %w", i+1, err)
			default:
				if err := sameRecord(data, p); err != nil {
					return false, fmt.Errorf("ledger %d: %w", i+1, err)
				}
				there = true
			}
		}
		data, err := l.Get(ctx, RecordName(p.Seq+1))
		if err == nil && next == nil {
			next = data
		}
		if err != nil && !errors.Is(err, memd.ErrNotFound) {
			return false, fmt.Errorf("ledger %d: %w", i+1, err)
		}
	}
	if !there {
		return false, fmt.Errorf("no ledger has record %d, the last that the database knows: bring the newest ledger, or if all are lost run memd ledger rebuild: %w", p.Seq, memd.ErrRolledBack)
	}
	if next == nil {
		return false, nil
	}
	r, err := ParseRecord(next)
	if err != nil {
		return false, err
	}
	if r.Installation != p.Installation {
		return false, errOtherInstallation
	}
	if !r.follows(p.Installation, p.Seq, p.Digest) {
		return false, corrupt(fmt.Sprintf("record %d of the ledger does not follow the one before", r.Seq))
	}
	own, err := allThere(ctx, tx, r.Facts)
	if err != nil {
		return false, err
	}
	if !own {
		return false, &missingError{r.Seq}
	}
	if err := j.everywhere(ctx, RecordName(r.Seq), next); err != nil {
		return false, err
	}
	_, err = advance(ctx, tx, p, r)
	return true, err
}

// sameRecord reads no more of a record than it must: it may be large, and every
// start of a process asks.
func sameRecord(data []byte, p Position) error {
	if sum := sha256.Sum256(data[min(len(data), headSize):]); bytes.Equal(sum[:], p.Digest) {
		return nil
	}
	r, err := ParseRecord(data)
	switch {
	case err != nil:
		return err
	case r.Installation != p.Installation:
		return errOtherInstallation
	}
	return fmt.Errorf("record %d is another than the database's, which was rolled back and went on: %w", p.Seq, memd.ErrRolledBack)
}

// Run ships what nobody waits for, and watches which server answers, until ctx
// ends. It returns ErrRestored when the process must end.
func (j *Journal) Run(ctx context.Context) error {
	ship, watch := time.NewTicker(shipInterval), time.NewTicker(watchInterval)
	defer ship.Stop()
	defer watch.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-j.restored:
			return ErrRestored
		case <-watch.C:
			if err := j.watch(ctx); err != nil && ctx.Err() == nil {
				j.c.Logger.WarnContext(ctx, "the gate is closed", "error", err)
			}
		case <-ship.C:
			if j.Err() != nil {
				continue
			}
			if err := j.Flush(ctx); err != nil && ctx.Err() == nil {
				j.c.Logger.WarnContext(ctx, "facts are not in the ledger yet", "error", err)
			}
		}
	}
}

// watch asks whether the gate still fits, and compares when it does not.
func (j *Journal) watch(ctx context.Context) error {
	var fits bool
	err := j.c.Pool.With(ctx, func(db pg.DB) (err error) {
		_, fits, err = j.look(ctx, db)
		return err
	})
	if err != nil || fits {
		return nil //nolint:nilerr // An outage is told by those whom it concerns.
	}
	j.shut(errUnchecked)
	_, err = j.Check(ctx)
	return err
}

// ErrHeld is what waits for memd restore release.
var ErrHeld = fmt.Errorf("the database was restored, and what cannot be undone waits for memd restore release: %w", memd.ErrErasureUnfinished)

// Released returns nil unless a restore has not been released yet.
func (j *Journal) Released(ctx context.Context) error {
	var p Position
	err := j.c.Pool.With(ctx, func(db pg.DB) (err error) {
		p, err = ReadPosition(ctx, db)
		return err
	})
	if err == nil && p.Held {
		err = ErrHeld
	}
	return err
}
