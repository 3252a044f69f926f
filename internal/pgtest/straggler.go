//go:build unix

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const sqlAwaited = `
SELECT EXISTS (SELECT FROM pg_stat_activity w WHERE w.wait_event_type = 'Lock' AND $1 = ANY (pg_blocking_pids(w.pid))
  AND w.usename <> (SELECT s.usename FROM pg_stat_activity s WHERE s.pid = $1))`

// Straggler is a transaction that has written and is in no hurry to commit. A
// race holds one across what has to wait for it, so that whoever does not wait
// is found out on any machine, every time.
type Straggler struct {
	conn, watch *pgx.Conn
	pid         uint32
}

// Straggle begins a transaction as a role, runs SQL in it and leaves it open.
// Outlast ends it.
func (d *DB) Straggle(ctx context.Context, role, sql string) (*Straggler, error) {
	conn, err := pgx.Connect(ctx, d.URL(role))
	if err != nil {
		return nil, fmt.Errorf("connecting a straggler: %w", err)
	}
	s := &Straggler{conn: conn, pid: conn.PgConn().PID()}
	// However long a busy machine takes, the server does not end it for idling.
	if err := conn.PgConn().Exec(ctx, "SET idle_in_transaction_session_timeout = 0; BEGIN;"+sql).Close(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if s.watch, err = pgx.Connect(ctx, d.URL("")); err != nil {
		return nil, errors.Join(fmt.Errorf("connecting a straggler's watch: %w", err), s.close())
	}
	return s, nil
}

// Outlast runs act beside the open transaction, and commits it when act has
// ended or somebody of another role waits for the straggler. It returns what
// became of both.
func (s *Straggler) Outlast(ctx context.Context, act func() error) error {
	acted := make(chan error, 1)
	go func() { acted <- act() }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var err error
	for awaited, ended := false, false; !awaited && !ended && err == nil; {
		select {
		case e := <-acted:
			acted <- e
			ended = true
		case <-tick.C:
			err = s.watch.QueryRow(ctx, sqlAwaited, s.pid).Scan(&awaited)
		}
	}
	_, committing := s.conn.Exec(ctx, "COMMIT")
	return errors.Join(err, committing, <-acted, s.close())
}

func (s *Straggler) close() error {
	const grace = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err := s.conn.Close(ctx)
	if s.watch != nil {
		err = errors.Join(err, s.watch.Close(ctx))
	}
	return err
}
