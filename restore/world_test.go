package restore_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/restore"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/ledger"
)

const app = "chat"

var spoken = time.Date(2026, 3, 5, 12, 0, 0, 0, time.UTC)

// world is a memd with a replica and a tenant, whose database can be rolled
// back.
type world struct {
	*memdtest.Stack
	t      *testing.T
	srv    *node.Server
	tenant memory.Tenant
	owner  *pg.Pool
}

func newWorld(t *testing.T, options ...memdtest.Option) *world {
	t.Helper()
	w := &world{Stack: memdtest.Start(t, options...), t: t}
	w.srv, _ = w.Server()
	w.owner = w.DB.Pool("")
	w.tenant = w.Tenant("acme", memdtest.Policy())
	return w
}

func user(id string) memd.Scope { return memd.Scope{App: app, UserID: id} }

var shared = memd.Scope{App: app}

func vector() []float32 { return []float32{1, 0, 0, 0} }

func said(userID, session, text string) memory.Row {
	return memory.Row{Scope: user(userID), SessionID: session, Kind: memory.KindRaw, Text: text, Vector: vector(), SourceTime: spoken}
}

func contributed(userID, session, text string) memory.Row {
	r := said(userID, session, text)
	r.Scope, r.SessionID, r.Contributor = shared, "", &memory.Contributor{UserID: userID, SessionID: session}
	return r
}

func (w *world) add(rows ...memory.Row) []uuid.UUID {
	w.t.Helper()
	added, err := w.srv.Memory.Add(w.t.Context(), w.tenant, rows)
	if err != nil {
		w.t.Fatalf("adding: %v", err)
	}
	ids := make([]uuid.UUID, len(added))
	for i := range added {
		ids[i] = added[i].ID
	}
	return ids
}

// admits adds for somebody new, as soon as no connection is left of those that
// went with the old server.
func (w *world) admits(userID string) {
	w.t.Helper()
	r := said(userID, uuid.NewString(), userID)
	w.within(userID+" admitted", func() bool {
		r.SourceTime = time.Now() // Who was forgotten has to say something new.
		_, err := w.srv.Memory.Add(w.t.Context(), w.tenant, []memory.Row{r})
		return err == nil
	})
}

func (w *world) search(scope memd.Scope) ([]string, error) {
	w.t.Helper()
	res, err := w.srv.Memory.Search(w.t.Context(), w.tenant, memory.Query{Scope: scope, Vector: vector(), TopK: memd.MaxTopK})
	var texts []string
	for _, h := range res.Hits {
		texts = append(texts, h.Memory.Text)
	}
	slices.Sort(texts)
	return texts, err
}

func (w *world) wants(scope memd.Scope, want ...string) {
	w.t.Helper()
	slices.Sort(want)
	var got []string
	w.within(fmt.Sprintf("an answer about %+v", scope), func() (ok bool) {
		var err error
		got, err = w.search(scope)
		return err == nil
	})
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("%+v (-want +got):\n%s", scope, diff)
	}
}

// flush ships what was committed, as the API does before it answers.
func (w *world) flush() {
	w.t.Helper()
	w.within("facts shipped", func() bool { return w.srv.Flush(w.t.Context()) == nil })
}

// config is what memd restore works with.
func (w *world) config() restore.Config {
	w.t.Helper()
	folder, err := ledger.OpenFolder(w.Ledger)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = folder.Close() })
	return restore.Config{
		Pool: w.DB.Pool(""), Ledgers: []ledger.Ledger{folder}, KMS: w.KMS.Client(w.t, kmsemu.Worker),
		Clock: memd.SystemClock{}, Logger: slog.New(slog.DiscardHandler),
	}
}

// closed wants that nothing is answered.
func (w *world) closed() {
	w.t.Helper()
	for _, scope := range []memd.Scope{user("alice"), user("bob"), shared} {
		w.within("the gate closed", func() bool {
			texts, err := w.search(scope)
			if len(texts) > 0 {
				w.t.Fatalf("a database that was rolled back served %q", texts)
			}
			return errors.Is(err, memd.ErrRolledBack)
		})
	}
}

// snapshot copies the database, which throws out whoever is connected.
func (w *world) snapshot() string {
	w.t.Helper()
	name := w.DB.Snapshot()
	w.reset()
	return name
}

// reset lets go of connections that a snapshot or a rollback has cut.
func (w *world) reset() {
	w.srv.Pool.Raw().Reset()
	w.owner.Raw().Reset()
}

// rollback puts a snapshot in the database's place, under a running server.
func (w *world) rollback(snapshot string) {
	w.t.Helper()
	w.StopWorker() // It would end too, but River takes its time over a closed gate.
	w.DB.Rollback(snapshot)
	w.reset()
}

// reopened starts new processes after a restore, which ends the old ones.
func (w *world) reopened() {
	w.t.Helper()
	w.StopWorker()
	w.StartWorker()
	w.srv, _ = w.Server()
}

// waitLimit is for a machine that has much else to do.
const waitLimit = 2 * time.Minute

func (w *world) within(what string, ok func() bool) {
	w.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); !ok(); <-tick.C {
		if time.Since(began) > waitLimit {
			w.t.Fatalf("not in time: %s; log:\n%s", what, w.Logs)
		}
	}
}

func (w *world) number(sql string, args ...any) int64 {
	w.t.Helper()
	var n int64
	err := w.owner.With(w.t.Context(), func(db pg.DB) error { return db.QueryRow(w.t.Context(), sql, args...).Scan(&n) })
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}
