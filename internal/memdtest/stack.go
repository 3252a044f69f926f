// Package memdtest runs a whole memd for a test: a database of the test's own
// on real PostgreSQL, the KMS emulator over gRPC, a ledger in a folder, a
// worker, and as many servers as the test asks for. Only tests import it.
package memdtest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"forgettable.dev/memd"
	"forgettable.dev/memd/compact"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
	"forgettable.dev/memd/journal"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/kmstest"
	"forgettable.dev/memd/tenants"
)

// Stack is a running memd.
type Stack struct {
	app *pg.Pool // the application's, once it was needed

	DB  *pgtest.DB
	KMS *kmstest.Emulator
	// Ledger is the folder of the only ledger.
	Ledger string
	Worker *node.Worker
	// Exports is the folder of archives.
	Exports string
	// Logs collects what all parts log.
	Logs *Logs

	t       testing.TB
	clock   memd.Clock
	witness node.Witness
	pages   bool
	// compacts has the worker compact.
	compacts bool
	targets  node.Targets
	stop     func()
}

// Option changes how a Stack is started.
type Option func(*Stack)

// WithClock has everything but the emulator go by this clock.
func WithClock(c memd.Clock) Option { return func(s *Stack) { s.clock = c } }

// WithWitness has the worker's verifier look at logs, and at raw pages as a
// superuser.
func WithWitness(logFiles ...string) Option {
	return func(s *Stack) { s.pages, s.witness.LogFiles = true, logFiles }
}

// WithCompaction has the worker compact, as memd_maintain.
func WithCompaction() Option { return func(s *Stack) { s.compacts = true } }

// WithPrivateTargets admits purge targets on this machine.
func WithPrivateTargets() Option { return func(s *Stack) { s.targets.AllowPrivate = true } }

// WithDatabase uses a database that is there.
func WithDatabase(db *pgtest.DB) Option { return func(s *Stack) { s.DB = db } }

// Start starts a Stack, which ends with the test.
func Start(t testing.TB, options ...Option) *Stack {
	t.Helper()
	s := &Stack{
		KMS: kmstest.StartEmulator(t, ""), Ledger: filepath.Join(t.TempDir(), "ledger"),
		Exports: filepath.Join(t.TempDir(), "exports"),
		Logs:    &Logs{}, t: t, clock: memd.SystemClock{},
	}
	for _, o := range options {
		o(s)
	}
	if s.DB == nil {
		s.DB = pgtest.Database(t)
	}
	if s.pages {
		s.witness.PagesURL = s.DB.URL("")
	}
	s.StartWorker()
	return s
}

// StartWorker starts a worker, the only one if StopWorker was called before.
func (s *Stack) StartWorker() {
	s.t.Helper()
	w, err := node.OpenWorker(s.t.Context(), node.WorkerConfig{
		Common: s.common(node.WorkerRole, kmsemu.Worker), Shredder: s.identity(kmsemu.Shredder),
		Witness: s.witness, Compaction: s.compaction(),
	})
	if err != nil {
		s.t.Fatalf("opening the worker: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	s.Worker = w
	s.stop = sync.OnceFunc(func() {
		cancel()
		// A restore ends whoever was running before it.
		if err := <-ended; err != nil && !errors.Is(err, journal.ErrRestored) {
			s.t.Errorf("running the worker: %v", err)
		}
		if err := w.Close(context.Background()); err != nil {
			s.t.Errorf("closing the worker: %v", err)
		}
	})
	s.t.Cleanup(s.stop)
}

// compaction is a connection as memd_maintain, which may vacuum as the database's
// owner, and room enough.
func (s *Stack) compaction() node.Compaction {
	if !s.compacts {
		return node.Compaction{}
	}
	err := s.DB.Pool("").With(s.t.Context(), func(db pg.DB) error {
		_, err := db.Exec(s.t.Context(), `ALTER DATABASE "`+s.DB.Name+`" OWNER TO `+compact.Role)
		return err
	})
	if err != nil {
		s.t.Fatalf("preparing compaction: %v", err)
	}
	return node.Compaction{URL: s.DB.URL(compact.Role), Disk: compact.Disk{DataDir: "/"}, SketchInterval: 100 * time.Millisecond}
}

// StopWorker ends the worker in good order; accepted work stays undone.
func (s *Stack) StopWorker() { s.stop() }

// Server starts a replica and returns it with its base URL.
func (s *Stack) Server() (*node.Server, string) {
	s.t.Helper()
	return s.ServerWith(func(*node.ServerConfig) {})
}

// Deaf opens a server that does not run: it answers calls of its services, and
// hears nothing of what other processes announce.
func (s *Stack) Deaf() *node.Server {
	s.t.Helper()
	srv, err := node.OpenServer(s.t.Context(), node.ServerConfig{Common: s.common(node.AppRole, kmsemu.App)})
	if err != nil {
		s.t.Fatalf("opening a server: %v", err)
	}
	s.t.Cleanup(func() {
		if err := srv.Close(context.Background()); err != nil {
			s.t.Errorf("closing a server: %v", err)
		}
	})
	return srv
}

// ServerWith is Server with a changed configuration.
func (s *Stack) ServerWith(adjust func(*node.ServerConfig)) (*node.Server, string) {
	s.t.Helper()
	c := node.ServerConfig{Common: s.common(node.AppRole, kmsemu.App), ServeMetrics: true, ReembedInterval: time.Hour}
	adjust(&c)
	srv, err := node.OpenServer(s.t.Context(), c)
	if err != nil {
		s.t.Fatalf("opening a server: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatalf("listening: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx, l) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, journal.ErrRestored) {
			s.t.Errorf("running a server: %v", err)
		}
		if err := srv.Close(context.Background()); err != nil {
			s.t.Errorf("closing a server: %v", err)
		}
	})
	return srv, "http://" + l.Addr().String()
}

func (s *Stack) common(role string, id kmsemu.Identity) node.Common {
	s.t.Helper()
	metrics, err := node.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		s.t.Fatalf("registering metrics: %v", err)
	}
	return node.Common{
		DatabaseURL: s.DB.URL(role), KMS: s.identity(id), Ledgers: []string{s.Ledger}, Exports: s.Exports, Metrics: metrics, Clock: s.clock, Targets: s.targets,
		Logger: slog.New(slog.NewJSONHandler(s.Logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

func (s *Stack) identity(id kmsemu.Identity) node.KMS {
	return node.KMS{URL: "emulator:" + s.KMS.Address, Token: s.KMS.Server.Tokens()[id]}
}

// Policy is the policy that tests use unless they say otherwise: vectors of
// four components, given by the test.
func Policy() tenants.Policy {
	p := tenants.DefaultPolicy()
	p.Dimension, p.Embedder = 4, tenants.EmbedderNone
	return p
}

// Tenant makes a tenant and returns it as memory wants it.
func (s *Stack) Tenant(name string, p tenants.Policy) memory.Tenant {
	s.t.Helper()
	pool := s.DB.Pool(node.WorkerRole)
	app := s.DB.Pool(node.AppRole)
	ctx := s.t.Context()
	var t tenants.Tenant
	err := app.With(ctx, func(db pg.DB) (err error) {
		t, err = tenants.Create(ctx, db, s.clock.Now(), name, name, p)
		return err
	})
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		t, err = tenants.WaitActive(ctx, pool, t.No)
	}
	if err != nil || t.State != tenants.StateActive {
		s.t.Fatalf("making a tenant: %v (state %v); log:\n%s", err, t.State, s.Logs)
	}
	return memory.Tenant{No: t.No, Epoch: t.Epoch, Dimension: p.Dimension, Embedder: p.Embedder, Format: memory.VectorFormat(p.VectorFormat)}
}

// Key makes an API key of a tenant and returns its secret.
func (s *Stack) Key(t memd.TenantNo, roles auth.Roles) string {
	s.t.Helper()
	var secret string
	err := s.DB.Pool(node.AppRole).With(s.t.Context(), func(db pg.DB) (err error) {
		_, secret, err = auth.Create(s.t.Context(), db, s.clock.Now(), auth.NewKey{Tenant: t, Name: "test", Roles: roles})
		return err
	})
	if err != nil {
		s.t.Fatalf("making an API key: %v", err)
	}
	return secret
}

// Keys returns the tenant's keys of now, as a server would load them.
func (s *Stack) Keys(srv *node.Server, t memory.Tenant) *shred.Keys {
	s.t.Helper()
	k, err := srv.Keyring.Keys(s.t.Context(), t.No, t.Epoch)
	if err != nil {
		s.t.Fatalf("loading keys: %v", err)
	}
	return k
}

// ForgetUser forgets a user and fails the test unless that is done.
func (s *Stack) ForgetUser(srv *node.Server, t memory.Tenant, app, user string) erasure.Report {
	s.t.Helper()
	r, err := srv.Erasure.ForgetUser(s.t.Context(), erasure.Caller{Tenant: t.No, Epoch: t.Epoch}, app, user, uuid.New())
	s.finished(r, err)
	return r
}

// ForgetSession forgets a session and fails the test unless that is done.
func (s *Stack) ForgetSession(srv *node.Server, t memory.Tenant, app, user, session string) erasure.Report {
	s.t.Helper()
	r, err := srv.Erasure.ForgetSession(s.t.Context(), erasure.Caller{Tenant: t.No, Epoch: t.Epoch}, app, user, session, uuid.New())
	s.finished(r, err)
	return r
}

func (s *Stack) finished(r erasure.Report, err error) {
	s.t.Helper()
	if err != nil || r.State != erasure.StateDone {
		s.t.Fatalf("erasure: state %v, %v; log:\n%s", r.State, err, s.Logs)
	}
}

// Logs collects log lines. Safe for concurrent use.
type Logs struct {
	mu sync.Mutex
	b  []byte
}

// Write implements io.Writer.
func (l *Logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p...)
	return len(p), nil
}

// String returns everything that was logged.
func (l *Logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b)
}

var _ io.Writer = (*Logs)(nil)
