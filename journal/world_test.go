package journal_test

import (
	"crypto/rand"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/fault"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
	"forgettable.dev/memd/journal"
	"forgettable.dev/memd/shred/ledger"
)

// world is a database with two ledgers.
type world struct {
	t       *testing.T
	db      *pgtest.DB
	owner   *pg.Pool
	ledgers []ledger.Ledger
	dirs    []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, db: pgtest.Database(t)}
	w.owner = w.db.Pool("")
	for range 2 {
		w.dirs = append(w.dirs, t.TempDir())
	}
	w.ledgers = w.open(w.dirs...)
	return w
}

func (w *world) open(dirs ...string) []ledger.Ledger {
	w.t.Helper()
	var all []ledger.Ledger
	for _, dir := range dirs {
		f, err := ledger.OpenFolder(dir)
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { _ = f.Close() })
		all = append(all, f)
	}
	return all
}

func (w *world) config(role string) journal.Config {
	return journal.Config{
		Pool:    w.db.Open(pg.Config{URL: w.db.URL(role), MaxConns: 3}),
		Ledgers: w.ledgers, Logger: slog.New(slog.DiscardHandler),
	}
}

// journal opens a journal as one of memd's processes does.
func (w *world) journal(role string) *journal.Journal {
	w.t.Helper()
	j, err := journal.Open(w.t.Context(), w.config(role))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(j.Close)
	return j
}

// bury makes n facts in one transaction, which then waits for commit.
func (w *world) bury(n int, commit func()) {
	w.t.Helper()
	err := w.owner.InTx(w.t.Context(), func(tx pgx.Tx) error {
		for range n {
			ref := make([]byte, 32)
			_, _ = rand.Read(ref)
			_, err := tx.Exec(w.t.Context(), `INSERT INTO memd.tombstones (tenant_no, kind, ref, changed_xid, recorded_at) VALUES (1, 1, $1, 0, now())`, ref)
			if err != nil {
				return err
			}
		}
		commit()
		return nil
	})
	if err != nil {
		w.t.Error(err)
	}
}

func (w *world) number(sql string) int {
	w.t.Helper()
	var n int
	err := w.owner.With(w.t.Context(), func(db pg.DB) error { return db.QueryRow(w.t.Context(), sql).Scan(&n) })
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// whole wants every fact that was ever committed in every ledger, once, and
// nothing on its way.
func (w *world) whole() {
	w.t.Helper()
	in, err := journal.Verify(w.t.Context(), w.ledgers)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range in.Problems {
		w.t.Error(p)
	}
	seen := map[int64]bool{}
	for seq := int64(1); seq <= in.Last; seq++ {
		data, err := w.ledgers[0].Get(w.t.Context(), journal.RecordName(seq))
		if err != nil {
			w.t.Fatal(err)
		}
		r, err := journal.ParseRecord(data)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, f := range r.Facts {
			if seen[f.ID] {
				w.t.Errorf("fact %d was shipped twice", f.ID)
			}
			seen[f.ID] = true
		}
	}
	if want := w.number(`SELECT count(*) FROM memd.tombstones`); len(seen) != want {
		w.t.Errorf("%d facts are in the ledgers, %d were committed", len(seen), want)
	}
	if n := w.number(`SELECT count(*) FROM memd.ledger_outbox`); n != 0 {
		w.t.Errorf("%d facts are on their way", n)
	}
	if n := w.number(`SELECT seq FROM memd.ledger_state`); int64(n) != in.Last {
		w.t.Errorf("the database knows record %d, and the ledgers have %d", n, in.Last)
	}
}

// fused is a process whose every effect can be broken off.
func (w *world) fused(f *fault.Fuse) (journal.Config, func()) {
	w.t.Helper()
	wire, err := fault.OpenWire(f, w.db.URL("memd_app"))
	if err != nil {
		w.t.Fatal(err)
	}
	pool, err := pg.Open(w.t.Context(), pg.Config{URL: wire.URL, MaxConns: 3, AcquireTimeout: 5 * time.Second})
	if err != nil {
		w.t.Fatal(err)
	}
	return journal.Config{Pool: pool, Ledgers: fault.Ledgers(f, w.ledgers), Logger: slog.New(slog.DiscardHandler)}, func() {
		pool.Close()
		wire.Close()
	}
}
