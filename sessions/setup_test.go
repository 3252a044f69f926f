package sessions_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/sessions"
)

// bundle is a memd with one server and one tenant, and what tests ask it.
type bundle struct {
	*memdtest.Stack
	t      testing.TB
	srv    *node.Server
	s      *sessions.Service
	tenant sessions.Tenant
	clock  *clock
	worker *pg.Pool
	root   *pg.Pool // superuser
}

// clock is a clock that a test moves. It starts at the machine's time.
type clock struct {
	mu    sync.Mutex
	ahead time.Duration
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return memd.SystemClock{}.Now().Add(c.ahead)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

func setup(t testing.TB) *bundle {
	t.Helper()
	c := &clock{}
	b := &bundle{Stack: memdtest.Start(t, memdtest.WithClock(c)), t: t, clock: c}
	b.srv, _ = b.Server()
	b.s = b.serviceOf(b.srv)
	b.worker, b.root = b.DB.Pool(node.WorkerRole), b.DB.Pool("")
	tenant := b.Tenant("acme", memdtest.Policy())
	b.tenant = sessions.Tenant{No: tenant.No, Epoch: tenant.Epoch}
	return b
}

// serviceOf makes a store of its own on a server's pool, keys and directory.
func (b *bundle) serviceOf(srv *node.Server) *sessions.Service {
	b.t.Helper()
	s, err := sessions.New(sessions.Config{Pool: srv.Pool, Keyring: srv.Keyring, Directory: provenance.New(b.clock), Clock: b.clock})
	b.must(err)
	return s
}

func (b *bundle) ctx() context.Context { return b.t.Context() }

func (b *bundle) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func id(user, session string) sessions.ID {
	return sessions.ID{App: "app", UserID: user, SessionID: session}
}

func (b *bundle) create(id sessions.ID, state map[string]string) sessions.Session {
	b.t.Helper()
	s, err := b.s.Create(b.ctx(), b.tenant, id, state, false)
	if err != nil {
		b.t.Fatalf("Create: %v", err)
	}
	return s
}

func (b *bundle) append(id sessions.ID, events ...sessions.Event) sessions.Appended {
	b.t.Helper()
	a, err := b.s.Append(b.ctx(), b.tenant, id, events, time.Time{}, false)
	if err != nil {
		b.t.Fatalf("Append: %v", err)
	}
	return a
}

func (b *bundle) get(id sessions.ID) sessions.Session {
	b.t.Helper()
	s, err := b.s.Get(b.ctx(), b.tenant, id, sessions.Query{Events: memd.MaxReadEvents})
	if err != nil {
		b.t.Fatalf("Get: %v", err)
	}
	return s
}

// event is one that says something, and happened just now.
func (b *bundle) event(id, text string) sessions.Event {
	return sessions.Event{
		ID: id, Author: "user", Time: b.clock.Now(), InvocationID: "inv-" + id,
		Content: fmt.Sprintf(`{"role": "user", "parts": [{"text": %q}]}`, text),
	}
}

func eventIDs(s sessions.Session) []string {
	var out []string
	for _, e := range s.Events {
		out = append(out, e.ID)
	}
	return out
}

func (b *bundle) count(sql string, args ...any) int64 {
	b.t.Helper()
	conn, err := pgx.Connect(b.ctx(), b.DB.URL(""))
	b.must(err)
	defer func() { _ = conn.Close(context.Background()) }()
	var n int64
	b.must(conn.QueryRow(b.ctx(), sql, args...).Scan(&n))
	return n
}

// sudo runs SQL as a superuser.
func (b *bundle) sudo(sql string, args ...any) {
	b.t.Helper()
	conn, err := pgx.Connect(b.ctx(), b.DB.URL(""))
	b.must(err)
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(b.ctx(), sql, args...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// numbers returns the contribution of a session.
func (b *bundle) number(id sessions.ID) memd.Contribution {
	b.t.Helper()
	k, err := b.srv.Keyring.Keys(b.ctx(), b.tenant.No, b.tenant.Epoch)
	b.must(err)
	var found []memd.Contribution
	b.must(b.srv.Pool.With(b.ctx(), func(db pg.DB) (err error) {
		found, err = provenance.New(b.clock).Find(b.ctx(), db, k,
			[]provenance.Want{{Scope: memd.Scope{App: id.App, UserID: id.UserID}, Session: id.SessionID}})
		return err
	}))
	return found[0]
}

// admit enters a session that has no head into the directory, as its artifacts
// and memories do.
func (b *bundle) admit(id sessions.ID) memd.Contribution {
	b.t.Helper()
	k, err := b.srv.Keyring.Keys(b.ctx(), b.tenant.No, b.tenant.Epoch)
	b.must(err)
	var found []memd.Contribution
	b.must(b.srv.Pool.With(b.ctx(), func(db pg.DB) (err error) {
		found, err = provenance.New(b.clock).Admit(b.ctx(), db, k,
			[]provenance.Want{{Scope: memd.Scope{App: id.App, UserID: id.UserID}, Session: id.SessionID, SourceTime: b.clock.Now()}})
		return err
	}))
	return found[0]
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error = %v, want %v", err, want)
	}
}
