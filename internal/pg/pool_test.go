package pg_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func text(t *testing.T, p *pg.Pool, sql string, args ...any) string {
	t.Helper()
	var s string
	if err := p.With(t.Context(), func(db pg.DB) error { return db.QueryRow(t.Context(), sql, args...).Scan(&s) }); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOpen_PreparesConnections(t *testing.T) {
	d := pgtest.Database(t)
	p := d.Open(pg.Config{Role: "memd_app", StatementTimeout: 1500 * time.Millisecond, IdleInTxTimeout: time.Minute, ApplicationName: "test"})
	want := map[string]string{
		"role": "memd_app", "search_path": "pg_catalog, public, pg_temp", "TimeZone": "UTC",
		"log_parameter_max_length_on_error": "0", "statement_timeout": "1500ms",
		"idle_in_transaction_session_timeout": "1min", "application_name": "test",
	}
	got := map[string]string{}
	for name := range want {
		got[name] = text(t, p, `SELECT current_setting($1)`, name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	plain := d.Open(pg.Config{})
	if got := text(t, plain, `SELECT current_setting('statement_timeout')`); got != "0" {
		t.Errorf("statement_timeout is %s though none was asked for", got)
	}
}

func TestOpen_WithoutAServer(t *testing.T) {
	_, err := pg.Open(t.Context(), pg.Config{URL: "postgres://u:secret@localhost/x?host=" + t.TempDir()})
	if !errors.Is(err, memd.ErrDatabaseUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestPool_BusyWhenAllConnectionsAreTaken(t *testing.T) {
	p := pgtest.Database(t).Open(pg.Config{MaxConns: 1, AcquireTimeout: 30 * time.Millisecond})
	err := p.With(t.Context(), func(pg.DB) error {
		return p.With(t.Context(), func(pg.DB) error { return nil })
	})
	if !errors.Is(err, memd.ErrDatabaseBusy) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.With(ctx, func(pg.DB) error { return nil }); !errors.Is(err, context.Canceled) || memd.Transient(err) {
		t.Errorf("after the caller gave up: %v", err)
	}
}

func TestPool_InTx(t *testing.T) {
	p := pgtest.Pool(t)
	insert := func(ctx context.Context, tx pgx.Tx, n int) error {
		_, err := tx.Exec(ctx, `INSERT INTO public.t VALUES ($1)`, n)
		return err
	}
	if err := p.With(t.Context(), func(db pg.DB) error {
		_, err := db.Exec(t.Context(), `CREATE TABLE public.t (n int PRIMARY KEY)`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	if err := p.InTx(t.Context(), func(tx pgx.Tx) error { return insert(t.Context(), tx, 1) }); err != nil {
		t.Fatal(err)
	}
	if err := p.InTx(t.Context(), func(tx pgx.Tx) error { return errors.Join(insert(t.Context(), tx, 2), boom) }); !errors.Is(err, boom) {
		t.Errorf("f's error: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := p.InTx(ctx, func(tx pgx.Tx) error {
		defer cancel()
		return insert(ctx, tx, 3)
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before the commit: %v", err)
	}
	func() {
		defer func() {
			if recover() != any(boom) {
				t.Error("the panic was lost")
			}
		}()
		_ = p.InTx(t.Context(), func(tx pgx.Tx) error {
			if err := insert(t.Context(), tx, 4); err != nil {
				return err
			}
			panic(boom)
		})
	}()
	if got := text(t, p, `SELECT string_agg(n::text, ',') FROM public.t`); got != "1" {
		t.Errorf("committed rows: %s", got)
	}
	if n := p.Raw().Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
	if err := p.InTx(t.Context(), func(tx pgx.Tx) error {
		var level string
		err := tx.QueryRow(t.Context(), `SHOW transaction_isolation`).Scan(&level)
		if level != "read committed" {
			t.Errorf("isolation is %s", level)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestPool_ServerGoesAway(t *testing.T) {
	d := pgtest.Database(t)
	p, killer := d.Pool(""), d.Pool("")
	err := p.InTx(t.Context(), func(tx pgx.Tx) error {
		text(t, killer, `SELECT pg_terminate_backend($1)::text`, int64(tx.Conn().PgConn().PID()))
		_, err := tx.Exec(t.Context(), `SELECT 1`)
		return err
	})
	if !errors.Is(err, memd.ErrDatabaseUnavailable) {
		t.Errorf("got %v", err)
	}
	if got := text(t, p, `SELECT 'back'`); got != "back" {
		t.Error("the pool did not recover")
	}
}

func TestPool_StatementTimeout(t *testing.T) {
	p := pgtest.Database(t).Open(pg.Config{StatementTimeout: 20 * time.Millisecond})
	err := p.With(t.Context(), func(db pg.DB) error {
		_, err := db.Exec(t.Context(), `SELECT pg_sleep(60)`)
		return err
	})
	if !errors.Is(err, memd.ErrDatabaseUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestTryLock(t *testing.T) {
	p := pgtest.Pool(t)
	one, err := p.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer one.Release()
	two, err := p.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer two.Release()
	id := pg.LockRotate.ForTenant(7)
	try := func(c *pgx.Conn, id pg.LockID) bool {
		t.Helper()
		held, err := pg.TryLock(t.Context(), c, id)
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	got := []bool{try(one.Conn(), id), try(two.Conn(), id), try(two.Conn(), pg.LockRotate.ForTenant(8)), try(two.Conn(), pg.LockProvision.ForTenant(7))}
	if diff := cmp.Diff([]bool{true, false, true, true}, got); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pg.Unlock(ctx, one.Conn(), id); err != nil {
		t.Fatal(err)
	}
	if !try(two.Conn(), id) {
		t.Error("still held after Unlock")
	}
	if err := pg.Unlock(t.Context(), one.Conn(), id); err == nil {
		t.Error("Unlock of a lock that is not held succeeded")
	}
}
