// Package dev runs all of memd in one process, on one folder: a private
// PostgreSQL cluster, the KMS emulator, a ledger, a server and a worker. It is
// what memd dev and memd demo are made of. The parts speak to each other as
// they do in production, over a socket and over gRPC, each under its own role;
// what is not production is that their keys, data and ledger share a disk.
package dev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd"
	"forgettable.dev/memd/compact"
	"forgettable.dev/memd/embed"
	"forgettable.dev/memd/internal/cluster"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred/kmsemu"
)

// Database is the name of the database in the private cluster.
const Database = "memd"

// Folders below Config.Dir.
const (
	clusterDir = "postgres"
	kmsDir     = "kms"
	ledgerDir  = "ledger"
	exportsDir = "exports"
)

// Config says where and how to run.
type Config struct {
	// Dir holds everything; it is made when it is not there. Required.
	Dir string
	// Listen is the API's address, on loopback. Required.
	Listen string
	// Logger is required.
	Logger *slog.Logger
	Embed  embed.Config
	Tracer trace.TracerProvider
	// Registry is where metrics are registered; nil is one of its own.
	Registry *prometheus.Registry
	Clock    memd.Clock
	// PostgreSQL is settings of the cluster besides its own.
	PostgreSQL map[string]string
}

// Dev is a running memd.
type Dev struct {
	Cluster *cluster.Cluster
	KMS     *kmsemu.Server
	// KMSAddress is where the emulator listens, on loopback.
	KMSAddress string
	Server     *node.Server
	Worker     *node.Worker
	// Address is the API's, as host:port.
	Address string
	Ledger  string

	config   Config
	listener net.Listener
	stop     context.CancelFunc
	rest     context.CancelFunc // of the worker alone
	rested   chan struct{}
	running  *errgroup.Group // server and worker
	kms      errgroup.Group
	ended    <-chan struct{}
	close    sync.Once
	closed   error
	closers  []func() error
}

// Start starts everything and returns when calls can be answered. The caller
// closes what it gets.
func Start(ctx context.Context, c Config) (_ *Dev, err error) {
	if c.Dir == "" || c.Listen == "" || c.Logger == nil {
		return nil, errors.New("dev: Dir, Listen and Logger are required")
	}
	if err := checkLocal(c.Listen); err != nil {
		return nil, err
	}
	d := &Dev{Ledger: filepath.Join(c.Dir, ledgerDir), config: c}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.stop = stop
	d.running, running = errgroup.WithContext(running)
	d.ended = running.Done()
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	// 0755: the server's user must get through to the cluster; keys and data
	// are in folders of their own, 0700.
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder: %w", err)
	}
	// Before everything that a second memd would disturb or trip over.
	release, err := lock(c.Dir)
	if err != nil {
		return nil, err
	}
	d.closers = append(d.closers, release)
	// Before the slow parts, so that a port in use is told at once.
	if d.listener, err = net.Listen("tcp", c.Listen); err != nil {
		return nil, fmt.Errorf("listening for the API: %w", err)
	}
	d.closers = append(d.closers, func() error { return ignoreClosed(d.listener.Close()) })
	d.Address = d.listener.Addr().String()
	if err := d.startKMS(c); err != nil {
		return nil, err
	}
	if err := d.startCluster(ctx, c); err != nil {
		return nil, err
	}
	if err := d.open(ctx, c); err != nil {
		return nil, err
	}
	d.running.Go(func() error { return d.Server.Run(running, d.listener) })
	working, rest := context.WithCancel(running)
	d.rest, d.rested = rest, make(chan struct{})
	d.running.Go(func() error { defer close(d.rested); return d.Worker.Run(working) })
	d.running.Go(func() error {
		select {
		case <-running.Done():
			return nil
		case <-d.Cluster.Done():
			return errors.New("PostgreSQL has stopped")
		}
	})
	return d, nil
}

// checkLocal refuses an address that others could reach: there is no TLS here,
// and the operator's key is in whoever's terminal this runs.
func checkLocal(address string) error {
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return fmt.Errorf("reading the address to listen on: %w", err)
	}
	if !a.IP.IsLoopback() {
		return fmt.Errorf("%s is not an address of this machine alone, such as 127.0.0.1:8787: what is run for development is not for others", address)
	}
	return nil
}

func (d *Dev) startKMS(c Config) (err error) {
	d.KMS, err = kmsemu.Open(kmsemu.Config{Dir: filepath.Join(c.Dir, kmsDir), Clock: c.Clock})
	if err != nil {
		return fmt.Errorf("starting the KMS emulator: %w", err)
	}
	d.closers = append(d.closers, func() error { return d.KMS.Stop(context.Background()) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening for the KMS emulator: %w", err)
	}
	d.KMSAddress = l.Addr().String()
	d.kms.Go(func() error { return d.KMS.Serve(l) })
	return nil
}

func (d *Dev) startCluster(ctx context.Context, c Config) (err error) {
	if d.Cluster, err = cluster.Start(ctx, cluster.Config{Dir: filepath.Join(c.Dir, clusterDir), Settings: c.PostgreSQL}); err != nil {
		return err
	}
	d.closers = append(d.closers, d.Cluster.Close)
	if err := d.Cluster.CreateDatabase(ctx, Database); err != nil {
		return err
	}
	if err := pg.Migrate(ctx, d.Cluster.URL(Database, "")); err != nil {
		return err
	}
	if err := d.allowMaintenance(ctx); err != nil {
		return err
	}
	return d.preparePages(ctx)
}

// A database's owner may vacuum its tables, and may not read them.
const sqlAllowMaintenance = `ALTER DATABASE ` + Database + ` OWNER TO ` + compact.Role

func (d *Dev) allowMaintenance(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, d.Cluster.URL(Database, ""))
	if err != nil {
		return fmt.Errorf("preparing compaction: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, sqlAllowMaintenance); err != nil {
		return fmt.Errorf("preparing compaction: %w", err)
	}
	return nil
}

// sqlPageInspect lets the verifier read pages from the server's buffers.
const sqlPageInspect = `CREATE EXTENSION IF NOT EXISTS pageinspect`

// preparePages makes that extension where the server has it. Without it the
// verifier reads the files, after a checkpoint each time.
func (d *Dev) preparePages(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, d.Cluster.URL(Database, ""))
	if err != nil {
		return fmt.Errorf("preparing the verifier: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var state *pgconn.PgError
	if _, err := conn.Exec(ctx, sqlPageInspect); err != nil && !errors.As(err, &state) {
		return fmt.Errorf("preparing the verifier: %w", err)
	}
	return nil
}

func (d *Dev) open(ctx context.Context, c Config) error {
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	metrics, err := node.NewMetrics(c.Registry)
	if err != nil {
		return err
	}
	d.Worker, err = node.OpenWorker(ctx, node.WorkerConfig{
		Common: d.common(node.WorkerRole, kmsemu.Worker, metrics), Shredder: d.Identity(kmsemu.Shredder),
		Witness: node.Witness{PagesURL: d.Cluster.URL(Database, "")},
		Compaction: node.Compaction{
			URL: d.Cluster.URL(Database, compact.Role), Disk: compact.Disk{DataDir: d.Cluster.Data()},
			ErasureInterval: time.Second, // Nobody waits ten minutes for a receipt here.
		},
	})
	if err != nil {
		return fmt.Errorf("opening the worker: %w", err)
	}
	d.closers = append(d.closers, func() error { return d.Worker.Close(context.Background()) })
	d.Server, err = node.OpenServer(ctx, node.ServerConfig{
		Common: d.common(node.AppRole, kmsemu.App, metrics), Embed: c.Embed, ServeMetrics: true,
	})
	if err != nil {
		return fmt.Errorf("opening the server: %w", err)
	}
	d.closers = append(d.closers, func() error { return d.Server.Close(context.Background()) })
	return nil
}

func (d *Dev) common(role string, identity kmsemu.Identity, metrics *node.Metrics) node.Common {
	return node.Common{
		DatabaseURL: d.Cluster.URL(Database, role), KMS: d.Identity(identity), Ledgers: []string{d.Ledger}, Exports: filepath.Join(filepath.Dir(d.Ledger), exportsDir),
		Logger: d.config.Logger, Metrics: metrics, Clock: d.config.Clock, Tracer: d.config.Tracer,
		// On this machine alone, for development: targets are here too.
		Targets: node.Targets{AllowPrivate: true},
	}
}

// ServeAt runs a second server of the same memd, at an address of its own, whose
// clock is another: what is said to it is of that time. The caller closes it.
func (d *Dev) ServeAt(ctx context.Context, clock memd.Clock) (address string, closeIt func() error, err error) {
	metrics, err := node.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		return "", nil, err
	}
	common := d.common(node.AppRole, kmsemu.App, metrics)
	common.Clock = clock
	server, err := node.OpenServer(ctx, node.ServerConfig{Common: common, Embed: d.config.Embed})
	if err != nil {
		return "", nil, fmt.Errorf("opening another server: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("listening for another server: %w", err), server.Close(ctx))
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- server.Run(running, listener) }()
	return listener.Addr().String(), func() error {
		stop()
		return errors.Join(<-ended, server.Close(context.WithoutCancel(ctx)))
	}, nil
}

// StopWorker ends the worker in good order: what is accepted from then on waits for
// another, which comes by the same URLs.
func (d *Dev) StopWorker() {
	d.rest()
	<-d.rested
}

// Identity is how one of the emulator's callers is configured.
func (d *Dev) Identity(id kmsemu.Identity) node.KMS {
	return node.KMS{URL: "emulator:" + d.KMSAddress, Token: d.KMS.Tokens()[id]}
}

// Done is closed when a part has ended by itself; Close says why.
func (d *Dev) Done() <-chan struct{} { return d.ended }

// Close stops everything, the last started first, and returns when nothing is
// left running. It is safe to repeat.
func (d *Dev) Close() error {
	d.close.Do(func() {
		// The server and the worker end first and need all the others for it.
		d.stop()
		errs := []error{d.running.Wait()}
		for i := len(d.closers) - 1; i >= 0; i-- {
			errs = append(errs, d.closers[i]())
		}
		d.closed = errors.Join(append(errs, d.kms.Wait())...)
	})
	return d.closed
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
