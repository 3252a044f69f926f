package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectproto"
	"connectrpc.com/otelconnect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/trace"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/export"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/shred"
)

const (
	// maxAnswerBytes bounds one answer. A thousand hits with the largest texts
	// would be a quarter of a gigabyte.
	maxAnswerBytes = 64 << 20
	// compressFrom is the size from which an answer is worth compressing.
	compressFrom = 32 << 10

	readHeaderTimeout = 10 * time.Second
	// readTimeout bounds the arrival of a whole request, of which the largest
	// has 16 MiB, and how long a stream may rest in either direction.
	readTimeout    = time.Minute
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 64 << 10

	// DefaultShutdownTimeout is how long calls under way may still take.
	DefaultShutdownTimeout = 15 * time.Second
)

// Config is what a Server works with.
type Config struct {
	// Pool, Auth, Memory, Sessions, Erasure, Purge and Logger are required.
	Pool      *pg.Pool
	Auth      *auth.Authenticator
	Memory    *memory.Service
	Sessions  *sessions.Service
	Artifacts *artifacts.Service
	Erasure   *erasure.Service
	Purge     *purge.Caller
	// Exports is where archives are kept. Nil: none can be made or downloaded.
	Exports export.Store
	// Keys gives a tenant's keys. Required.
	Keys   *shred.Keyring
	Logger *slog.Logger
	// Clock is the system's if nil.
	Clock memd.Clock
	// Registry is where the server's metrics are registered. A private one if
	// nil.
	Registry *prometheus.Registry
	// ServeMetrics adds /metrics, for all of Registry, to the API's port, where
	// it needs no API key. Otherwise see MetricsHandler.
	ServeMetrics bool
	// Tracer receives a span for each call. None is made if nil.
	Tracer trace.TracerProvider
	// Ready says whether calls would succeed, for /readyz and health checks. It
	// is asked for each of them, with a short timeout. Nil means that the
	// database answers.
	Ready func(context.Context) error
	// Durable returns nil when everything that was committed before it is in the
	// ledgers: see durability. Nil waits for nothing.
	Durable func(context.Context) error
	// MaxArtifactStreams bounds how many artifacts are saved and loaded at once.
	// DefaultArtifactStreams if zero.
	MaxArtifactStreams int
	// ShutdownTimeout is DefaultShutdownTimeout if zero.
	ShutdownTimeout time.Duration
}

func (c *Config) validate() error {
	switch {
	case c.Pool == nil:
		return errors.New("server: Config.Pool is required")
	case c.Auth == nil:
		return errors.New("server: Config.Auth is required")
	case c.Memory == nil:
		return errors.New("server: Config.Memory is required")
	case c.Sessions == nil:
		return errors.New("server: Config.Sessions is required")
	case c.Artifacts == nil:
		return errors.New("server: Config.Artifacts is required")
	case c.Erasure == nil:
		return errors.New("server: Config.Erasure is required")
	case c.Purge == nil:
		return errors.New("server: Config.Purge is required")
	case c.Keys == nil:
		return errors.New("server: Config.Keys is required")
	case c.Logger == nil:
		return errors.New("server: Config.Logger is required")
	case c.MaxArtifactStreams < 0:
		return errors.New("server: Config.MaxArtifactStreams is negative")
	case c.ShutdownTimeout < 0:
		return errors.New("server: Config.ShutdownTimeout is negative")
	}
	if c.Clock == nil {
		c.Clock = memd.SystemClock{}
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	if c.Ready == nil {
		c.Ready = func(ctx context.Context) error {
			return c.Pool.With(ctx, func(db pg.DB) error {
				_, err := db.Exec(ctx, "SELECT 1")
				return err
			})
		}
	}
	if c.Durable == nil {
		c.Durable = func(context.Context) error { return nil }
	}
	if c.MaxArtifactStreams == 0 {
		c.MaxArtifactStreams = DefaultArtifactStreams
	}
	if c.ShutdownTimeout == 0 {
		c.ShutdownTimeout = DefaultShutdownTimeout
	}
	return nil
}

// Server is the API of one process.
type Server struct {
	config  Config
	health  *health
	mux     *http.ServeMux
	handler http.Handler // mux, paced
	pace    *pace
}

// New returns a Server. It reads nothing and listens to nothing yet.
func New(c Config) (*Server, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	interceptors, err := c.interceptors()
	if err != nil {
		return nil, err
	}
	s := &Server{config: c, health: &health{ready: c.Ready}, mux: http.NewServeMux()}
	rpc := connect.NewServer(interceptors...)
	memdv1connect.RegisterMemoryServiceHandler(rpc, &memoryHandler{memory: c.Memory, sessions: c.Sessions})
	memdv1connect.RegisterSessionServiceHandler(rpc, &sessionHandler{sessions: c.Sessions, erasure: c.Erasure})
	memdv1connect.RegisterArtifactServiceHandler(rpc, &artifactHandler{artifacts: c.Artifacts, streams: make(streams, c.MaxArtifactStreams)})
	memdv1connect.RegisterErasureServiceHandler(rpc, &erasureHandler{erasure: c.Erasure})
	memdv1connect.RegisterAdminServiceHandler(rpc, &adminHandler{erasure: c.Erasure, pool: c.Pool, clock: c.Clock, logger: c.Logger})
	memdv1connect.RegisterCompactServiceHandler(rpc, &compactHandler{pool: c.Pool, clock: c.Clock, logger: c.Logger})
	memdv1connect.RegisterTargetServiceHandler(rpc, &targetHandler{pool: c.Pool, purge: c.Purge, logger: c.Logger})
	memdv1connect.RegisterExportServiceHandler(rpc, &exportHandler{pool: c.Pool, keys: c.Keys, store: c.Exports, clock: c.Clock, logger: c.Logger})
	connecthttp.Mount(s.mux, rpc,
		connecthttp.WithReadMaxBytes(memd.MaxBatchBytes),
		connecthttp.WithSendMaxBytes(maxAnswerBytes),
		connecthttp.WithCompressMinBytes(compressFrom),
		connecthttp.WithCodecs(connectproto.NewBinaryCodec(), strictJSON()),
	)
	s.pace = newPace(rpc, readTimeout)
	s.handler = s.pace.wrap(s.mux)
	s.health.mount(s.mux)
	s.mux.Handle("GET "+downloads+"{secret}", &downloader{
		pool: c.Pool, store: c.Exports, clock: c.Clock, logger: c.Logger, idle: readTimeout, streams: make(streams, c.MaxArtifactStreams),
	})
	if c.ServeMetrics {
		s.mux.Handle("GET /metrics", s.MetricsHandler())
	}
	return s, nil
}

// strictJSON refuses fields and names of enum values that this release does not
// know. The library's codec drops them without a word, so that a misspelt filter
// matches everything, and a misspelt delete_derived keeps what was to go. A
// client that is newer than the server is told so, rather than half obeyed.
func strictJSON() *connectproto.JSONCodec {
	c := connectproto.NewJSONCodec()
	c.UnmarshalOptions.DiscardUnknown = false
	return c
}

// interceptors returns the chain that the package comment explains.
func (c *Config) interceptors() ([]connect.ServerInterceptor, error) {
	metrics, err := newCallMetrics(c.Registry)
	if err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	valid, err := validation()
	if err != nil {
		return nil, err
	}
	quotas, err := newQuotas(c.Pool, c.Clock, c.Registry)
	if err != nil {
		return nil, fmt.Errorf("registering metrics of quotas: %w", err)
	}
	var chain []connect.ServerInterceptor
	if c.Tracer != nil {
		// The callers are services of the same owner: their traces go on here.
		traces, err := otelconnect.NewServerInterceptor(
			otelconnect.WithTracerProvider(c.Tracer), otelconnect.WithoutMetrics(), otelconnect.WithTrustRemote())
		if err != nil {
			return nil, fmt.Errorf("setting up traces: %w", err)
		}
		chain = append(chain, traces)
	}
	return append(chain,
		metrics.interceptor(c.Clock),
		answers(c.Logger, c.Clock),
		panics(c.Logger, metrics.panics),
		authorisation(c.Auth),
		quotas.interceptor,
		valid,
		durable(c.Durable),
	), nil
}

// Handler serves the API and what belongs to it on one port. For a listener of
// its own prefer Serve, which also speaks HTTP/2 without TLS.
func (s *Server) Handler() http.Handler { return s.handler }

// MetricsHandler serves the registry, for a listener that only operators reach.
func (s *Server) MetricsHandler() http.Handler {
	return promhttp.HandlerFor(s.config.Registry, promhttp.HandlerOpts{})
}

// Serve answers calls on l until ctx ends, then refuses new ones, lets those
// under way finish within ShutdownTimeout, and cuts off the rest. It closes l.
// It returns nil after a clean end.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	hs := &http.Server{
		Handler:           s.handler,
		Protocols:         protocols,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       s.pace.idle,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.config.Logger.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, 1)
	go func() { ended <- hs.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving: %w", err)
	case <-ctx.Done():
	}
	s.health.leaving.Store(true)
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.ShutdownTimeout)
	defer cancel()
	err := hs.Shutdown(stopping)
	if err != nil {
		err = errors.Join(fmt.Errorf("calls were cut off after %v: %w", s.config.ShutdownTimeout, err), hs.Close())
	}
	<-ended
	return err
}
