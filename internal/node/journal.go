package node

import (
	"context"
	"errors"
	"fmt"
	"io"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/journal"
	"forgettable.dev/memd/shred/ledger"
)

// journalConns: one ships, one compares, one watches.
const journalConns = 3

// openLedgers opens every location.
func openLedgers(ctx context.Context, urls []string, later func(func(context.Context) error)) ([]ledger.Ledger, error) {
	var all []ledger.Ledger
	for _, url := range urls {
		l, err := ledger.Open(ctx, url)
		if err != nil {
			return nil, fmt.Errorf("opening a ledger: %w", err)
		}
		all = append(all, l)
		if c, ok := l.(io.Closer); ok {
			later(func(context.Context) error { return c.Close() })
		}
	}
	return all, nil
}

// openJournal compares the database with its ledgers, over connections of its
// own, and refuses one that was rolled back.
func (c *Common) openJournal(ctx context.Context, role string, ledgers []ledger.Ledger, later func(func(context.Context) error)) (*journal.Journal, error) {
	pool, err := pg.Open(ctx, pg.Config{
		URL: c.DatabaseURL, Role: role, MaxConns: journalConns, AcquireTimeout: journal.FlushLimit,
		ApplicationName: "memd journal " + role, StatementTimeout: appStatementTimeout, IdleInTxTimeout: appStatementTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to the database: %w", err)
	}
	later(func(context.Context) error { pool.Close(); return nil })
	if err := pool.With(ctx, func(db pg.DB) error { return checkDatabase(ctx, db) }); err != nil {
		return nil, err
	}
	j, err := journal.Open(ctx, journal.Config{Pool: pool, Ledgers: ledgers, Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	later(func(context.Context) error { j.Close(); return nil })
	return j, nil
}

// signOff ends an instance. Behind a closed gate that cannot be said to the
// database; its lease ends by itself.
func signOff(end func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := end(ctx); err != nil && !errors.Is(err, memd.ErrRolledBack) {
			return err
		}
		return nil
	}
}
