package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd/internal/node"
)

// processFlags are what serve and worker share.
type processFlags struct {
	logFlags
	DatabaseURL        string        `required:"" env:"MEMD_DATABASE_URL" help:"PostgreSQL connection string of the primary, as a role that may become memd_app or memd_worker."`
	MaxConns           int32         `default:"16" help:"Database connections at most."`
	AcquireTimeout     time.Duration `default:"2s" help:"How long a call waits for a database connection before it is refused."`
	KMS                string        `required:"" name:"kms" env:"MEMD_KMS" help:"Key service: gcp:projects/P/locations/L/keyRings/R, or emulator:HOST:PORT."`
	KMSToken           string        `name:"kms-token" env:"MEMD_KMS_TOKEN" help:"This process's token at the KMS emulator."`
	KMSCredentials     string        `name:"kms-credentials" env:"MEMD_KMS_CREDENTIALS" help:"Credentials file for Cloud KMS. Default: the machine's own identity."`
	KMSImpersonate     string        `name:"kms-impersonate" env:"MEMD_KMS_IMPERSONATE" help:"Service account to act as at Cloud KMS."`
	TargetAllowPrivate bool          `help:"Purge targets may be at private and loopback addresses, where an operator of the installation says so for a target. Set it for serve and worker alike."`
	TargetLogDir       []string      `sep:"," placeholder:"DIR" help:"Folders whose files may be purge targets: log files of the worker's machine. Set it for serve and worker alike."`
	Exports            string        `env:"MEMD_EXPORTS" placeholder:"PLACE" help:"Where archives of exports are kept, till their window closes: a folder that serve and worker share, a gs:// or s3:// URL. Set it for both alike. Default: nothing can be exported."`
	MetricsListen      string        `help:"Address for /metrics, apart from the API. Default: none."`
}

func (f *processFlags) common(ctx context.Context, con *console) (node.Common, func(context.Context) error, error) {
	noCoreDumps()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics, err := node.NewMetrics(registry)
	if err != nil {
		return node.Common{}, nil, err
	}
	c := node.Common{
		DatabaseURL: f.DatabaseURL, MaxConns: f.MaxConns, AcquireTimeout: f.AcquireTimeout, Metrics: metrics,
		KMS:     node.KMS{URL: f.KMS, Token: f.KMSToken, CredentialsFile: f.KMSCredentials, Impersonate: f.KMSImpersonate},
		Exports: f.Exports,
		Targets: node.Targets{AllowPrivate: f.TargetAllowPrivate, LogDirs: f.TargetLogDir},
		Logger:  f.logger(con.Stderr),
	}
	spans, err := tracer(ctx, con.Getenv)
	if err != nil {
		return c, nil, err
	}
	if spans == nil {
		return c, func(context.Context) error { return nil }, nil
	}
	c.Tracer = spans
	return c, spans.Shutdown, nil
}

// metrics serves /metrics on its own address until ctx ends, if there is one.
func (f *processFlags) metrics(ctx context.Context, g *errgroup.Group, c node.Common) error {
	if f.MetricsListen == "" {
		return nil
	}
	l, err := net.Listen("tcp", f.MetricsListen)
	if err != nil {
		return fmt.Errorf("listening for metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.Metrics.Registry, promhttp.HandlerOpts{}))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug)}
	g.Go(func() error {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving metrics: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		return s.Close()
	})
	return nil
}

// noCoreDumps keeps keys and texts out of core files. Best effort: the limit
// may be fixed.
func noCoreDumps() { _ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}) }
