package purge_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/eraser"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/shred"
)

const (
	tenant = memd.TenantNo(7)
	// The ids are canaries: nothing but a target's own store may have them.
	alice = "alice-canary-51f7@example.com"
	bob   = "bob-canary-9a02@example.com"
	chat  = "chat-app"
	talk  = "session-canary-77aa"
)

// clock is moved by tests. Safe for concurrent use.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

type bundle struct {
	t      *testing.T
	db     *pgtest.DB
	app    *pg.Pool
	worker *pg.Pool
	keys   *shred.Keys
	clock  *clock
	caller *purge.Caller
	calls  []string
	mu     sync.Mutex
}

type option func(*purge.Config)

func withDirs(dirs ...string) option { return func(c *purge.Config) { c.LogDirs = dirs } }

func withRoots(s *httptest.Server) option {
	return func(c *purge.Config) {
		c.RootCAs = x509.NewCertPool()
		c.RootCAs.AddCert(s.Certificate())
	}
}

func public(c *purge.Config) { c.AllowPrivate = false }

// setup gives a caller whose targets may be on this machine, with a database
// when one of its pools is asked for.
func setup(t *testing.T, options ...option) *bundle {
	t.Helper()
	tree, err := shred.NewTree(tenant, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	b := &bundle{t: t, keys: shred.NewKeys(tree), clock: &clock{now: time.Now().UTC().Truncate(time.Microsecond)}}
	c := purge.Config{
		Keys: func(_ context.Context, no memd.TenantNo, use func(*shred.Keys) error) error {
			if no != tenant {
				return memd.ErrNotFound
			}
			return use(b.keys)
		},
		AllowPrivate: true, Clock: b.clock, Tries: 3, RetryWait: time.Millisecond, MaxRetryWait: 20 * time.Millisecond,
		OnCall: func(k purge.Kind, op purge.Op, code purge.Code, _ time.Duration) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.calls = append(b.calls, fmt.Sprintf("%s %s %s", k, op, code))
		},
	}
	for _, o := range options {
		o(&c)
	}
	if b.caller, err = purge.NewCaller(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.caller.Close)
	return b
}

func (b *bundle) database() *bundle {
	b.db = pgtest.Database(b.t)
	b.app, b.worker = b.db.Pool("memd_app"), b.db.Pool("memd_worker")
	return b
}

// make makes a target that is in no database.
func (b *bundle) make(n purge.New) (purge.Target, string) {
	b.t.Helper()
	n.Tenant = tenant
	t, secret, err := b.caller.Prepare(b.t.Context(), n)
	if err != nil {
		b.t.Fatal(err)
	}
	return t, secret
}

// add registers a target as the server does, and returns it as the worker finds
// it.
func (b *bundle) add(n purge.New) (purge.Target, string) {
	b.t.Helper()
	n.Tenant = tenant
	var t purge.Target
	var secret string
	err := b.app.With(b.t.Context(), func(db pg.DB) (err error) {
		_, secret, err = b.caller.Create(b.t.Context(), db, n)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	err = b.worker.With(b.t.Context(), func(db pg.DB) (err error) {
		t, err = purge.Get(b.t.Context(), db, tenant, n.Name)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return t, secret
}

func request() purge.Request {
	return purge.Request{ID: uuid.New(), Mode: purge.ModeUser, Tenant: "acme", App: chat, UserID: alice, Round: 1}
}

// store is a store outside memd: things by user, counted by what was asked.
type store struct {
	mu      sync.Mutex
	things  map[string]int
	erases  int
	seen    []eraser.Request
	failing int // how many further calls fail
	pending bool
}

func newStore() *store { return &store{things: map[string]int{alice: 3, bob: 2}} }

func (s *store) call(r eraser.Request) error {
	s.seen = append(s.seen, r)
	if s.failing > 0 {
		s.failing--
		return errors.New("no luck with " + r.UserID)
	}
	return nil
}

func (s *store) Count(_ context.Context, r eraser.Request) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.things[r.UserID]), s.call(r)
}

func (s *store) Erase(_ context.Context, r eraser.Request) (eraser.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.call(r); err != nil {
		return eraser.Result{}, err
	}
	s.erases++
	n := s.things[r.UserID]
	delete(s.things, r.UserID)
	return eraser.Result{Erased: int64(n), Pending: s.pending}, nil
}

func (s *store) Verify(_ context.Context, r eraser.Request) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.things[r.UserID]), s.call(r)
}

func (s *store) has(user string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.things[user]
}

// serve starts an HTTP server on loopback.
func serve(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// must is for a call that is expected to be acknowledged.
func (b *bundle) must(a purge.Ack, err error) purge.Ack {
	b.t.Helper()
	if err != nil || !a.Acknowledged {
		b.t.Fatalf("not acknowledged: %+v, %v", a, err)
	}
	return a
}

// refused checks how a call failed: its code, its class, and that nothing names
// anybody.
func (b *bundle) refused(a purge.Ack, err error, want purge.Code, transient bool) {
	b.t.Helper()
	if a.Code != want || a.Acknowledged || err == nil || memd.Transient(err) != transient {
		b.t.Errorf("got %q (acknowledged %v), %v, transient %v; want %q, transient %v",
			a.Code, a.Acknowledged, err, memd.Transient(err), want, transient)
	}
	if err != nil {
		nobody(b.t, "error", err.Error())
	}
	nobody(b.t, "ack", fmt.Sprintf("%+v", a))
}

// nobody fails when a text has one of the canaries.
func nobody(t *testing.T, what, text string) {
	t.Helper()
	for _, canary := range []string{alice, bob, talk, "canary"} {
		if strings.Contains(text, canary) {
			t.Errorf("%s names somebody: %s", what, text)
		}
	}
}

func number(n *int64) int64 {
	if n == nil {
		return -1
	}
	return *n
}
