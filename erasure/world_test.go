package erasure_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/ledger"
)

const app = "chat"

// spoken is when everything in these tests was said, unless it matters.
var spoken = time.Date(2026, 3, 5, 12, 0, 0, 0, time.UTC)

// world is a memd with two replicas and a tenant.
type world struct {
	*memdtest.Stack
	t      *testing.T
	a, b   *node.Server
	tenant memory.Tenant
	owner  *pg.Pool // a superuser, for looking and for breaking things
	app    *pg.Pool // the application, for what the API does

	clients map[kmsemu.Identity]shred.KMS
}

func newWorld(t *testing.T, options ...memdtest.Option) *world {
	t.Helper()
	w := &world{Stack: memdtest.Start(t, options...), t: t}
	w.a, _ = w.Server()
	w.b, _ = w.Server()
	w.owner = w.DB.Pool("")
	w.tenant = w.Tenant("acme", memdtest.Policy())
	return w
}

func user(id string) memd.Scope { return memd.Scope{App: app, UserID: id} }

var shared = memd.Scope{App: app}

// said is a raw row of a user's.
func said(userID, session, text string) memory.Row {
	return memory.Row{Scope: user(userID), SessionID: session, Kind: memory.KindRaw, Text: text, Vector: vector(), SourceTime: spoken}
}

// contributed is a raw row that a user contributed to the shared scope.
func contributed(userID, session, text string) memory.Row {
	return memory.Row{
		Scope: shared, Contributor: &memory.Contributor{UserID: userID, SessionID: session},
		Kind: memory.KindRaw, Text: text, Vector: vector(), SourceTime: spoken,
	}
}

// drawn is a derived row.
func drawn(kind memory.Kind, scope memd.Scope, text string, sources ...memory.Source) memory.Row {
	return memory.Row{Scope: scope, Kind: kind, Text: text, Vector: vector(), SourceTime: spoken, Sources: sources}
}

func from(id uuid.UUID) memory.Source { return memory.Source{MemoryID: id} }

func fromSession(userID, session string) memory.Source {
	return memory.Source{UserID: userID, SessionID: session}
}

// vector is everybody's, so that a search for it finds all there is.
func vector() []float32 { return []float32{1, 0, 0, 0} }

func (w *world) addTo(t memory.Tenant, rows ...memory.Row) []uuid.UUID {
	w.t.Helper()
	ids := make([]uuid.UUID, len(rows))
	for i := range rows { // One by one, so that numbers come in the same order each time.
		added, err := w.a.Memory.Add(w.t.Context(), t, rows[i:i+1])
		if err != nil {
			w.t.Fatalf("adding row %d: %v", i, err)
		}
		ids[i] = added[0].ID
	}
	return ids
}

func (w *world) add(rows ...memory.Row) []uuid.UUID {
	w.t.Helper()
	return w.addTo(w.tenant, rows...)
}

// refused adds a row and wants that error.
func (w *world) refused(row memory.Row, want error) {
	w.t.Helper()
	for _, srv := range []*node.Server{w.a, w.b} {
		if _, err := srv.Memory.Add(w.t.Context(), w.tenant, []memory.Row{row}); !isError(err, want) {
			w.t.Errorf("adding %q: %v, want %v", row.Text, err, want)
		}
	}
}

// textsOf is what both replicas find in a scope, sorted.
func (w *world) textsOf(t memory.Tenant, scope memd.Scope) []string {
	w.t.Helper()
	var found [2][]string
	for i, srv := range []*node.Server{w.a, w.b} {
		res, err := srv.Memory.Search(w.t.Context(), t, memory.Query{Scope: scope, Vector: vector(), TopK: memd.MaxTopK})
		if err != nil {
			w.t.Fatalf("searching: %v", err)
		}
		for _, h := range res.Hits {
			found[i] = append(found[i], h.Memory.Text)
		}
		slices.Sort(found[i])
	}
	if diff := cmp.Diff(found[0], found[1]); diff != "" {
		w.t.Errorf("the replicas differ:\n%s", diff)
	}
	return found[0]
}

func (w *world) wants(scope memd.Scope, want ...string) {
	w.t.Helper()
	slices.Sort(want)
	if diff := cmp.Diff(want, w.textsOf(w.tenant, scope)); diff != "" {
		w.t.Errorf("%+v (-want +got):\n%s", scope, diff)
	}
}

func (w *world) caller() erasure.Caller {
	return erasure.Caller{Tenant: w.tenant.No, Epoch: w.tenant.Epoch}
}

func (w *world) forgetUser(id string) erasure.Report {
	w.t.Helper()
	return w.ForgetUser(w.a, w.tenant, app, id)
}

func (w *world) forgetSession(id, session string) erasure.Report {
	w.t.Helper()
	return w.ForgetSession(w.a, w.tenant, app, id, session)
}

// runner runs erasures without a worker around it. adjust may break it.
func (w *world) runner(adjust ...func(pool **pg.Pool, c *shred.RotatorConfig)) *erasure.Runner {
	w.t.Helper()
	pool := w.DB.Pool(node.WorkerRole)
	folder, err := ledger.OpenFolder(w.Ledger)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = folder.Close() })
	log := slog.New(slog.NewTextHandler(w.Logs, nil))
	c := shred.RotatorConfig{
		Pool: pool, Worker: w.KMS.Client(w.t, kmsemu.Worker), Shredder: w.KMS.Client(w.t, kmsemu.Shredder),
		Ledgers: []ledger.Ledger{folder}, Clock: memd.SystemClock{}, Logger: log,
	}
	for _, f := range adjust {
		f(&pool, &c)
	}
	c.Pool = pool
	c.Sample = func(ctx context.Context, _ memd.TenantNo, k *shred.Keys) error {
		return pool.With(ctx, func(db pg.DB) error { return memory.Sample(ctx, db, k) })
	}
	rotator, err := shred.NewRotator(c)
	if err != nil {
		w.t.Fatal(err)
	}
	return &erasure.Runner{Pool: pool, Rotator: rotator, Clock: memd.SystemClock{}, Logger: log}
}

// accept persists a request for a user, or a session if one is given, without
// waiting for it.
func (w *world) accept(t memory.Tenant, userID, session string) erasure.Job {
	w.t.Helper()
	k := w.Keys(w.a, t)
	j := erasure.Job{Tenant: t.No, ID: uuid.New(), Kind: erasure.KindUser, App: app, User: k.UserRef(app, userID)}
	if session != "" {
		j.Kind, j.Session = erasure.KindSession, k.SessionRef(j.User, session)
	}
	var out erasure.Job
	if w.app == nil {
		w.app = w.DB.Pool(node.AppRole)
	}
	err := w.app.With(w.t.Context(), func(db pg.DB) (err error) {
		out, err = erasure.Accept(w.t.Context(), db, j, uuid.Nil, time.Now())
		return err
	})
	if err != nil {
		w.t.Fatalf("accepting: %v", err)
	}
	return out
}

// job reads a request.
func (w *world) job(j erasure.Job) erasure.Job {
	w.t.Helper()
	var out erasure.Job
	err := w.owner.With(w.t.Context(), func(db pg.DB) (err error) {
		out, err = erasure.Read(w.t.Context(), db, j.Tenant, j.ID)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// receipts are those of an erasure, the provisional one first.
func (w *world) receipts(t memory.Tenant, id uuid.UUID) []receipts.Bundle {
	w.t.Helper()
	var out []receipts.Bundle
	err := w.owner.With(w.t.Context(), func(db pg.DB) (err error) {
		out, err = receipts.Read(w.t.Context(), db, t.No, id)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// something leaves out the stores that had nothing and have nothing.
func something(stores []erasure.StoreCount) []erasure.StoreCount {
	return slices.DeleteFunc(slices.Clone(stores), func(c erasure.StoreCount) bool { return c.Before == 0 && c.After == 0 })
}

// exec runs a statement as the superuser.
func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	err := w.owner.With(w.t.Context(), func(db pg.DB) error {
		_, err := db.Exec(w.t.Context(), sql, args...)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// count counts as the superuser: the tables themselves.
func (w *world) count(sql string, args ...any) int {
	w.t.Helper()
	var n int
	err := w.owner.With(w.t.Context(), func(db pg.DB) error { return db.QueryRow(w.t.Context(), sql, args...).Scan(&n) })
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// strings reads one column.
func (w *world) strings(sql string, args ...any) []string {
	w.t.Helper()
	var out []string
	err := w.owner.With(w.t.Context(), func(db pg.DB) error {
		rows, err := db.Query(w.t.Context(), sql, args...)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// within runs fn again and again until it is true.
func (w *world) within(d time.Duration, what string, fn func() bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), d)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !fn() {
		select {
		case <-ctx.Done():
			w.t.Fatalf("not within %v: %s; log:\n%s", d, what, w.Logs)
		case <-tick.C:
		}
	}
}
