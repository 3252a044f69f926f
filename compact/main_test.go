package compact_test

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"forgettable.dev/memd"
	"forgettable.dev/memd/compact"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childURL); url != "" {
		os.Exit(child(url, os.Getenv(childMaintain)))
	}
	goleak.VerifyTestMain(m)
}

// bench is a database with something deleted in it, and a runner.
type bench struct {
	*pgtest.DB
	t     *testing.T
	owner *pg.Pool
	app   *pg.Pool
}

// setup makes one. memd_maintain may vacuum it, as a database's owner may.
func setup(t *testing.T) *bench {
	t.Helper()
	b := &bench{DB: pgtest.Database(t), t: t}
	b.owner, b.app = b.Pool(""), b.Pool(node.AppRole)
	b.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I OWNER TO memd_maintain', current_database()); END $$`)
	return b
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	err := b.owner.With(b.t.Context(), func(db pg.DB) error {
		_, err := db.Exec(b.t.Context(), sql, args...)
		return err
	})
	if err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

func ask[T any](b *bench, sql string, args ...any) (out T) {
	b.t.Helper()
	err := b.owner.With(b.t.Context(), func(db pg.DB) error { return db.QueryRow(b.t.Context(), sql, args...).Scan(&out) })
	if err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	return out
}

// runner is one with room enough and little patience.
func (b *bench) runner(adjust ...func(*compact.Config)) *compact.Runner {
	b.t.Helper()
	m, err := compact.Connect(b.t.Context(), b.URL(compact.Role))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(m.Close)
	c := compact.Config{
		Pool: b.Pool(node.WorkerRole), Maintain: m, Disk: compact.Disk{DataDir: "/"}, Clock: memd.SystemClock{},
		Logger: slog.New(slog.NewTextHandler(b.t.Output(), nil)), Pause: 10 * time.Millisecond, LockTimeout: 50 * time.Millisecond,
	}
	for _, f := range adjust {
		f(&c)
	}
	r, err := compact.NewRunner(c)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *bench) ask(m compact.Mode, cause compact.Cause) (no int64) {
	b.t.Helper()
	err := b.app.With(b.t.Context(), func(db pg.DB) (err error) {
		no, err = compact.Ask(b.t.Context(), db, m, cause, uuid.Nil, time.Now())
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return no
}

func (b *bench) pause(paused bool) {
	b.t.Helper()
	err := b.app.With(b.t.Context(), func(db pg.DB) error {
		return compact.Pause(b.t.Context(), db, paused, uuid.New(), time.Now())
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) schedule(s compact.Schedule) {
	b.t.Helper()
	err := b.app.With(b.t.Context(), func(db pg.DB) error {
		return compact.SetSchedule(b.t.Context(), db, s, uuid.New(), time.Now())
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// round does one round, which must not break off.
func (b *bench) round(r *compact.Runner) int64 {
	b.t.Helper()
	no, err := r.Round(b.t.Context())
	if err != nil {
		b.t.Fatalf("a round: %v", err)
	}
	return no
}

func (b *bench) read(no int64) (c compact.Compaction) {
	b.t.Helper()
	err := b.app.With(b.t.Context(), func(db pg.DB) (err error) {
		c, err = compact.Read(b.t.Context(), db, no)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

func table(c compact.Compaction, name string) compact.Progress {
	for _, t := range c.Tables {
		if t.Name == name {
			return t
		}
	}
	return compact.Progress{}
}

// until waits for a condition.
func (b *bench) until(what string, fn func() bool) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !fn() {
		select {
		case <-ctx.Done():
			b.t.Fatalf("not within a minute: %s", what)
		case <-tick.C:
		}
	}
}

// locked holds a lock on a table until it is called, in a transaction that has
// written nothing and keeps nothing visible.
func (b *bench) locked(name, mode string) (release func()) {
	b.t.Helper()
	conn, err := b.owner.Conn(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	tx, err := conn.Begin(b.t.Context())
	if err == nil {
		_, err = tx.Exec(b.t.Context(), `LOCK TABLE memd.`+name+` IN `+mode+` MODE`)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return func() {
		_ = tx.Rollback(context.Background())
		conn.Release()
	}
}
