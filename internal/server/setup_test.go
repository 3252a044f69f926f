package server_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/embed"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/export"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
	"forgettable.dev/memd/internal/server"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/kmstest"
	"forgettable.dev/memd/shred/ledger"
	"forgettable.dev/memd/tenants"
)

// installation is one database, one key service and as many server processes
// as a test starts.
type installation struct {
	t         *testing.T
	db        *pgtest.DB
	worker    *pg.Pool
	kms       *kmstest.Emulator
	provision shred.ProvisionConfig
	private   bool // purge targets may be at private addresses
	durable   func(context.Context) error
	streams   int // of artifacts at once; 0 is the default
	exports   export.Store
	looks     int        // at tenants with quotas
	clock     memd.Clock // of the servers; the system's if nil
}

func setup(t *testing.T) *installation {
	t.Helper()
	in := &installation{t: t, db: pgtest.Database(t), kms: kmstest.StartEmulator(t, "")}
	in.worker = in.db.Pool("memd_worker")
	folder, err := ledger.OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = folder.Close() })
	if in.exports, err = export.OpenStore(t.Context(), "mem://"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.exports.Close() })
	in.provision = shred.ProvisionConfig{
		Pool: in.worker, KMS: in.kms.Client(t, kmsemu.Worker), Ledgers: []ledger.Ledger{folder},
		Installation: uuid.New(), DestroyDelay: 24 * time.Hour, Clock: memd.SystemClock{},
	}
	return in
}

// instance is one server process.
type instance struct {
	url      string
	http     *http.Client
	log      *logBuffer
	registry *prometheus.Registry
	spans    *tracetest.InMemoryExporter
	stop     func() error
}

// serve starts a process of its own pool, keys and listener, until the test
// ends or stop is called.
func (in *installation) serve() *instance { return in.serveWith(in.db.Pool("memd_app")) }

func (in *installation) serveWith(pool *pg.Pool) *instance {
	t := in.t
	t.Helper()
	s := &instance{http: httpClient(), log: &logBuffer{}, registry: prometheus.NewRegistry(), spans: tracetest.NewInMemoryExporter()}
	logger := slog.New(slog.NewJSONHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	process, err := shred.Register(t.Context(), shred.InstanceConfig{Pool: pool, Kind: "serve", Logger: logger})
	must(err)
	keyring, err := shred.NewKeyring(shred.KeyringConfig{
		Pool: pool, KMS: in.kms.Client(t, kmsemu.App, impatient), Instance: process, Logger: logger,
	})
	must(err)
	directory := provenance.New(memd.SystemClock{})
	store, err := memory.New(memory.Config{
		Pool: pool, Keyring: keyring, Directory: directory, Logger: logger,
		Embedder: func(name string, dimension int) (embed.Embedder, error) {
			return embed.New(name, dimension, embed.Config{})
		},
	})
	must(err)
	conversations, err := sessions.New(sessions.Config{Pool: pool, Keyring: keyring, Directory: directory})
	must(err)
	targets, err := purge.NewCaller(purge.Config{
		Keys: func(ctx context.Context, t memd.TenantNo, use func(*shred.Keys) error) error {
			return keyring.Do(ctx, t, 0, use)
		},
		AllowPrivate: in.private, Tries: 2, RetryWait: time.Millisecond,
	})
	must(err)
	t.Cleanup(targets.Close)
	authenticator, err := auth.New(auth.Config{Pool: pool, Clock: memd.SystemClock{}, Logger: logger})
	must(err)
	files, err := artifacts.New(artifacts.Config{Pool: pool, Keyring: keyring, Directory: directory})
	must(err)
	api, err := server.New(server.Config{
		Clock: in.clock, Keys: keyring, Exports: in.exports, Artifacts: files, MaxArtifactStreams: in.streams, Durable: in.durable,
		Pool: pool, Auth: authenticator, Purge: targets, Memory: store, Sessions: conversations, Logger: logger, Registry: s.registry, ServeMetrics: true,
		Tracer:  trace.NewTracerProvider(trace.WithSyncer(s.spans)),
		Erasure: &erasure.Service{Pool: pool, Keyring: keyring, Directory: directory, Clock: memd.SystemClock{}},
	})
	must(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	s.url = "http://" + listener.Addr().String()

	ctx, cancel := context.WithCancel(context.Background())
	running := make(chan error, 3)
	go func() { running <- process.Run(ctx) }()
	go func() { running <- keyring.Run(ctx) }()
	served := make(chan error, 1)
	go func() { served <- api.Serve(ctx, listener) }()
	stopped := false
	s.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		s.http.CloseIdleConnections() // Else HTTP/2 waits a second for them.
		cancel()
		err := <-served
		for range 2 {
			if e := <-running; !errors.Is(e, context.Canceled) {
				err = errors.Join(err, e)
			}
		}
		keyring.Close()
		return errors.Join(err, process.Close(context.Background()))
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Errorf("stopping a server: %v", err)
		}
	})
	return s
}

// work runs a worker until the test ends.
func (in *installation) work() {
	in.t.Helper()
	logger := slog.New(slog.DiscardHandler)
	rotator, err := shred.NewRotator(shred.RotatorConfig{
		Pool: in.worker, Worker: in.provision.KMS, Shredder: in.kms.Client(in.t, kmsemu.Shredder),
		Ledgers: in.provision.Ledgers, Clock: memd.SystemClock{}, Logger: logger,
	})
	if err != nil {
		in.t.Fatal(err)
	}
	worker, err := erasure.NewWorker(erasure.WorkerConfig{
		Pool: in.worker, Rotator: rotator, Clock: memd.SystemClock{}, Logger: logger,
		Provision: func(_ context.Context, t tenants.Tenant) error { return in.finish(t) },
	})
	if err != nil {
		in.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx) }()
	in.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			in.t.Errorf("stopping the worker: %v", err)
		}
	})
}

// impatient gives a key service that is away up soon.
func impatient(c *gcpkms.Config) { c.MaxElapsed = 200 * time.Millisecond }

// finish does the worker's part of making tenants: keys, then state active.
func (in *installation) finish(t tenants.Tenant) error {
	ctx := in.t.Context()
	if err := shred.Provision(ctx, in.provision, t.No); err != nil {
		return err
	}
	return in.worker.With(ctx, func(db pg.DB) error {
		return tenants.Activate(ctx, db, time.Now(), t.No)
	})
}

// tenant makes an active tenant, without the API.
func (in *installation) tenant(name string) tenants.Tenant {
	in.t.Helper()
	var t tenants.Tenant
	err := in.db.Pool("memd_app").With(in.t.Context(), func(db pg.DB) (err error) {
		t, err = tenants.Create(in.t.Context(), db, time.Now(), name, "", tenants.DefaultPolicy())
		return err
	})
	if err := errors.Join(err, in.finish(t)); err != nil {
		in.t.Fatal(err)
	}
	return t
}

// key makes an API key, without the API.
func (in *installation) key(tenant memd.TenantNo, roles auth.Roles) (auth.Key, string) {
	in.t.Helper()
	var k auth.Key
	var secret string
	err := in.worker.With(in.t.Context(), func(db pg.DB) (err error) {
		k, secret, err = auth.Create(in.t.Context(), db, time.Now(), auth.NewKey{Tenant: tenant, Name: "test", Roles: roles})
		return err
	})
	if err != nil {
		in.t.Fatal(err)
	}
	return k, secret
}

// withKey sends an API key along.
func withKey(secret string) connect.ClientInterceptor {
	return func(next connect.ClientFunc) connect.ClientFunc {
		return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
			if info, ok := connect.CallInfoForClientContext(ctx); ok {
				info.RequestHeader().Set("Authorization", "Bearer "+secret)
			}
			return next(ctx, spec)
		}
	}
}

func (s *instance) client(secret string, options ...connecthttp.Option) *connect.Client {
	return connect.NewClient(connecthttp.NewTransport(s.http, s.url, options...), withKey(secret))
}

func (s *instance) memory(secret string) memdv1connect.MemoryServiceClient {
	return memdv1connect.NewMemoryServiceClient(s.client(secret))
}

func (s *instance) erasure(secret string) memdv1connect.ErasureServiceClient {
	return memdv1connect.NewErasureServiceClient(s.client(secret))
}

func (s *instance) admin(secret string) memdv1connect.AdminServiceClient {
	return memdv1connect.NewAdminServiceClient(s.client(secret))
}

func (s *instance) targets(secret string) memdv1connect.TargetServiceClient {
	return memdv1connect.NewTargetServiceClient(s.client(secret))
}

// httpClient speaks HTTP/2 without TLS, which gRPC needs.
func httpClient() *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: protocols}}
}

func raw(scope *memdv1.Scope, text string) *memdv1.Row {
	return &memdv1.Row{Scope: scope, Kind: memdv1.Kind_KIND_RAW, Text: text}
}
