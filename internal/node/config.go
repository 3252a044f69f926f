package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"forgettable.dev/memd"
	"forgettable.dev/memd/embed"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred/gcpkms"
)

// Roles of the two processes in PostgreSQL.
const (
	AppRole    = "memd_app"
	WorkerRole = "memd_worker"
)

// Statement and idle timeouts of the server's transactions: a writer that
// hangs would hold up a fence.
const (
	appStatementTimeout = 30 * time.Second
	appIdleInTxTimeout  = 10 * time.Second
	workerIdleInTx      = 60 * time.Second
	closeTimeout        = 5 * time.Second
)

// KMS is one identity of the key service.
type KMS struct {
	// URL is "gcp:projects/P/locations/L/keyRings/R" or "emulator:HOST:PORT".
	URL string
	// Token is the caller's, for the emulator.
	Token string
	// CredentialsFile and Impersonate choose the caller at Google. Both empty
	// means the machine's own (application default credentials).
	CredentialsFile, Impersonate string
}

// Common is what both processes need.
type Common struct {
	// DatabaseURL reaches the primary. Required.
	DatabaseURL string
	// MaxConns bounds the pool; zero means pg.DefaultMaxConns.
	MaxConns int32
	// AcquireTimeout bounds the wait for a connection; zero means
	// pg.DefaultAcquireTimeout.
	AcquireTimeout time.Duration
	// KMS is the process's identity. Required.
	KMS KMS
	// Targets says what purge targets may be.
	Targets Targets
	// Ledgers are the places outside the database that keep key trees and the
	// journal: a folder, gs://… or s3://…, in the same order in every process. At
	// least one.
	Ledgers []string
	// Exports is where archives of exports are kept: a folder, gs://… or s3://…, the
	// same in every process. Empty: nothing can be exported.
	Exports string
	// Logger and Metrics are required; Clock is the system's if nil.
	Logger  *slog.Logger
	Metrics *Metrics
	Clock   memd.Clock
	// Tracer receives a span for each call. None is made if nil.
	Tracer trace.TracerProvider
}

func (c *Common) validate() error {
	switch {
	case c.DatabaseURL == "":
		return errors.New("the database URL is not set (MEMD_DATABASE_URL)")
	case c.KMS.URL == "":
		return errors.New("the key service is not set (MEMD_KMS)")
	case len(c.Ledgers) == 0:
		return errors.New("no ledger is set (MEMD_LEDGER)")
	case c.Logger == nil || c.Metrics == nil:
		return errors.New("node: Logger and Metrics are required")
	}
	if c.Clock == nil {
		c.Clock = memd.SystemClock{}
	}
	return nil
}

// openPool connects, and refuses a database that another release set up or
// nobody hardened.
func (c *Common) openPool(ctx context.Context, role string, gate pg.Gate) (*pg.Pool, error) {
	cfg := pg.Config{
		URL: c.DatabaseURL, Role: role, MaxConns: c.MaxConns, AcquireTimeout: c.AcquireTimeout, Gate: gate,
		ApplicationName: "memd " + role, IdleInTxTimeout: workerIdleInTx,
	}
	if role == AppRole {
		cfg.StatementTimeout, cfg.IdleInTxTimeout = appStatementTimeout, appIdleInTxTimeout
	}
	pool, err := pg.Open(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to the database: %w", err)
	}
	if err := pool.With(ctx, func(db pg.DB) error { return checkDatabase(ctx, db) }); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

const sqlMayShadow = `SELECT has_database_privilege(current_user, current_database(), 'TEMP')`

func checkDatabase(ctx context.Context, db pg.DB) error {
	if err := pg.CheckSchema(ctx, db); err != nil {
		return err
	}
	var shadow bool
	if err := db.QueryRow(ctx, sqlMayShadow).Scan(&shadow); err != nil {
		return fmt.Errorf("reading the role's rights: %w", err)
	}
	if shadow {
		return errors.New("the role may create temporary tables in this database, which a restore or a copy brings back: run memd migrate")
	}
	return nil
}

// openKMS opens one identity of the key service and counts its calls.
func (c *Common) openKMS(ctx context.Context, k KMS, identity string) (*gcpkms.Client, error) {
	client, err := gcpkms.Open(ctx, gcpkms.Config{
		URL: k.URL, Token: k.Token, CredentialsFile: k.CredentialsFile, Impersonate: k.Impersonate,
		OnCall: func(method string, err error, d time.Duration) { c.Metrics.kmsCall(identity, method, err, d) },
	})
	if err != nil {
		return nil, fmt.Errorf("opening the key service as %s: %w", identity, err)
	}
	return client, nil
}

// embedders makes each embedder once.
func embedders(cfg embed.Config) func(name string, dimension int) (embed.Embedder, error) {
	type key struct {
		name string
		dim  int
	}
	var mu sync.Mutex
	made := map[key]embed.Embedder{}
	return func(name string, dimension int) (embed.Embedder, error) {
		mu.Lock()
		defer mu.Unlock()
		k := key{name, dimension}
		if e, ok := made[k]; ok {
			return e, nil
		}
		e, err := embed.New(name, dimension, cfg)
		if err == nil {
			made[k] = e
		}
		return e, err
	}
}
