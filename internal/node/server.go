package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/embed"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/server"
	"forgettable.dev/memd/journal"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

// ServerConfig says how a server runs.
type ServerConfig struct {
	Common
	// Embed configures the OpenAI-compatible embedder.
	Embed embed.Config
	// ServeMetrics adds /metrics to the API's port, where it needs no API key.
	ServeMetrics bool
	// MaxResidentBytes, MaxScopeRows and MaxCodedRows bound what searches keep in
	// memory; zero means memory's defaults.
	MaxResidentBytes int64
	MaxScopeRows     int
	MaxCodedRows     int
	// ReembedInterval is memory.Reembedder's.
	ReembedInterval time.Duration
	// MaxArtifactBytes bounds one version of an artifact; zero means
	// artifacts.DefaultMaxBytes.
	MaxArtifactBytes int64
	// MaxArtifactStreams bounds how many artifacts are saved and loaded at once;
	// zero means server.DefaultArtifactStreams.
	MaxArtifactStreams int
}

// Server is one replica of the API.
type Server struct {
	Pool      *pg.Pool
	Keyring   *shred.Keyring
	Directory *provenance.Directory
	Memory    *memory.Service
	Sessions  *sessions.Service
	Artifacts *artifacts.Service
	Erasure   *erasure.Service
	Purge     *purge.Caller
	API       *server.Server
	// Reembedder works while the server runs.
	Reembedder *memory.Reembedder

	common   Common
	auth     *auth.Authenticator
	journal  *journal.Journal
	instance *shred.Instance
	closers  []func(context.Context) error
	closing  chan struct{} // closed when Run begins to end
}

// OpenServer connects a server to its database and its key service. It answers
// nothing before Run.
func OpenServer(ctx context.Context, c ServerConfig) (_ *Server, err error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	s := &Server{common: c.Common}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(ctx))
		}
	}()
	ledgers, err := openLedgers(ctx, c.Ledgers, s.later)
	if err != nil {
		return nil, err
	}
	if s.journal, err = c.openJournal(ctx, AppRole, ledgers, s.later); err != nil {
		return nil, err
	}
	if s.Pool, err = c.openPool(ctx, AppRole, s.journal); err != nil {
		return nil, err
	}
	s.later(func(context.Context) error { s.Pool.Close(); return nil })
	kms, err := c.openKMS(ctx, c.KMS, "app")
	if err != nil {
		return nil, err
	}
	s.later(func(context.Context) error { return kms.Close() })
	if s.instance, err = shred.Register(ctx, shred.InstanceConfig{Pool: s.Pool, Kind: "serve", Logger: c.Logger}); err != nil {
		return nil, fmt.Errorf("registering this instance: %w", err)
	}
	s.later(signOff(s.instance.Close))
	s.Keyring, err = shred.NewKeyring(shred.KeyringConfig{
		Pool: s.Pool, KMS: kms, Instance: s.instance, Logger: c.Logger,
		Exists: tenantExists, OnDrop: func(ctx context.Context, t memd.TenantNo) { s.forgetful(ctx, t) },
	})
	if err != nil {
		return nil, err
	}
	s.later(func(context.Context) error { s.Keyring.Close(); return nil })
	s.Directory = provenance.New(c.Clock)
	s.Memory, err = memory.New(memory.Config{
		Pool: s.Pool, Keyring: s.Keyring, Directory: s.Directory, Embedder: embedders(c.Embed), Clock: c.Clock, Logger: c.Logger,
		MaxResidentBytes: c.MaxResidentBytes, MaxScopeRows: c.MaxScopeRows, MaxCodedRows: c.MaxCodedRows, OnChange: c.Metrics.changed,
	})
	if err != nil {
		return nil, err
	}
	s.Reembedder = &memory.Reembedder{Service: s.Memory, Moving: moving, Moved: s.moved, Interval: c.ReembedInterval}
	s.Sessions, err = sessions.New(sessions.Config{Pool: s.Pool, Keyring: s.Keyring, Directory: s.Directory, Clock: c.Clock})
	if err != nil {
		return nil, err
	}
	s.Artifacts, err = artifacts.New(artifacts.Config{
		Pool: s.Pool, Keyring: s.Keyring, Directory: s.Directory, Clock: c.Clock, MaxBytes: c.MaxArtifactBytes,
	})
	if err != nil {
		return nil, err
	}
	s.closing = make(chan struct{})
	s.Erasure = &erasure.Service{Pool: s.Pool, Keyring: s.Keyring, Directory: s.Directory, Clock: c.Clock, Closing: s.closing}
	if s.Purge, err = c.openPurge(s.Keyring); err != nil {
		return nil, err
	}
	s.later(func(context.Context) error { s.Purge.Close(); return nil })
	exports, err := c.openExports(ctx, s.later)
	if err != nil {
		return nil, err
	}
	if s.auth, err = auth.New(auth.Config{Pool: s.Pool, Clock: c.Clock, Logger: c.Logger}); err != nil {
		return nil, err
	}
	s.API, err = server.New(server.Config{
		Pool: s.Pool, Auth: s.auth, Memory: s.Memory, Sessions: s.Sessions, Artifacts: s.Artifacts, Erasure: s.Erasure, Purge: s.Purge, Exports: exports, Keys: s.Keyring, Logger: c.Logger, Clock: c.Clock,
		Registry: c.Metrics.Registry, ServeMetrics: c.ServeMetrics, Tracer: c.Tracer, MaxArtifactStreams: c.MaxArtifactStreams,
		Ready: s.ready, Durable: s.journal.Flush,
	})
	if err != nil {
		return nil, err
	}
	return s, errors.Join(c.Metrics.residents(s.Memory.Resident, s.Memory.Loading), c.Metrics.cachedTenants("serve", s.Keyring.Cached))
}

// tenantExists lets the keyring tell a tenant that is being set up from none.
func tenantExists(ctx context.Context, db pg.DB, tenant memd.TenantNo) (bool, error) {
	_, err := tenants.GetByNo(ctx, db, tenant)
	if errors.Is(err, memd.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// errLapsed: the database may answer and still not take this process's
// heartbeats, as a standby does. No key may be used then.
var errLapsed = fmt.Errorf("this process's lease in the database has ended: %w", memd.ErrDatabaseUnavailable)

// ready says whether calls would succeed: with the database there and the lease
// alive. The key service is not asked, because what is in memory is served
// without it.
func (s *Server) ready(ctx context.Context) error {
	if s.instance.Lapsed() {
		return errLapsed
	}
	return s.Pool.With(ctx, func(db pg.DB) error {
		_, err := db.Exec(ctx, "SELECT 1")
		return err
	})
}

// forgetful drops what this process remembers of whom a new epoch forgets.
func (s *Server) forgetful(ctx context.Context, t memd.TenantNo) {
	s.common.Metrics.epochs.Inc()
	if err := s.Memory.Refresh(ctx, t); err != nil && ctx.Err() == nil {
		s.common.Logger.WarnContext(ctx, "scopes in memory were dropped, not refreshed", "tenant_no", t, "error", err)
	}
}

// Run answers calls on l until ctx ends and lets those under way finish. It
// closes l. It can be called once.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	// The lease, the keyring and the pool outlive the listener: calls under way
	// still need them.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, background := errgroup.WithContext(background)
	g.Go(func() error { return s.instance.Run(background) })
	g.Go(func() error { return s.Keyring.Run(background) })
	g.Go(func() error { return s.auth.Run(background) })
	g.Go(func() error { return s.journal.Run(background) })
	g.Go(func() error { s.Reembedder.Run(background); return nil })
	// Without one of them the server would go on with keys that nobody drops:
	// when one ends, all ends.
	serving, end := context.WithCancel(ctx)
	defer end()
	context.AfterFunc(background, end)
	context.AfterFunc(serving, func() { close(s.closing) })
	err := s.API.Serve(serving, l)
	end()
	stop()
	return errors.Join(err, ignoreEnd(g.Wait()))
}

// Close releases what OpenServer took. Run has ended before.
func (s *Server) Close(ctx context.Context) error { return s.close(ctx) }

func (s *Server) later(f func(context.Context) error) { s.closers = append(s.closers, f) }

func (s *Server) close(ctx context.Context) error {
	err := closeAll(ctx, s.closers)
	s.closers = nil
	return err
}

// closeAll closes in reverse order, all of them, within closeTimeout.
func closeAll(ctx context.Context, closers []func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	var errs []error
	for i := len(closers) - 1; i >= 0; i-- {
		errs = append(errs, closers[i](ctx))
	}
	return errors.Join(errs...)
}

func ignoreEnd(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// Flush returns when everything that was committed is in the ledgers, as the API
// does before it acknowledges.
func (s *Server) Flush(ctx context.Context) error { return s.journal.Flush(ctx) }
