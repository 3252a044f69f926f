package kmsemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"forgettable.dev/memd"
)

// DefaultKeyRing is the key ring that Open makes.
const DefaultKeyRing = "projects/memd/locations/local/keyRings/memd"

// File names under Config.Dir.
const (
	KeyFile    = "kms-emulator.json"
	TokensFile = "kms-emulator-tokens.json"
)

// settleEvery is how often versions are destroyed when nobody calls.
const settleEvery = time.Minute

// Config says where the emulator keeps its keys.
type Config struct {
	// Dir holds the key file, its lock and the tokens file. It is made, for its
	// owner alone, when it is missing. Required. Keep it off the database's volume.
	Dir string
	// Clock decides when a scheduled version is destroyed. The system's when nil.
	Clock memd.Clock
	// AllowRemote lets Serve listen on addresses other than loopback. Tokens
	// and plaintexts then cross the network in clear.
	AllowRemote bool
}

// Server is the emulator. Open it, then Serve it or Register it, then Stop it.
// It is safe for concurrent use.
type Server struct {
	cfg     Config
	tokens  map[Identity]string
	callers callers

	mu    sync.Mutex
	store *store

	faultsMu sync.Mutex
	faults   []*activeFault
	calls    map[string]int

	grpc    *grpc.Server
	done    chan struct{}
	settler sync.WaitGroup
	stop    sync.Once
}

// Open reads the key file and the tokens file, or makes them, and locks them
// against other processes: ErrLocked when one has them. The caller must Stop
// what it opened, served or not.
func Open(cfg Config) (*Server, error) {
	if cfg.Dir == "" {
		return nil, errors.New("kmsemu: Config.Dir is required")
	}
	if cfg.Clock == nil {
		cfg.Clock = memd.SystemClock{}
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the emulator's directory: %w", err)
	}
	st, err := openStore(filepath.Join(cfg.Dir, KeyFile))
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, store: st, calls: make(map[string]int), done: make(chan struct{}), grpc: grpc.NewServer()}
	if err := s.prepare(); err != nil {
		return nil, errors.Join(err, st.close())
	}
	s.Register(s.grpc)
	s.settler.Go(s.settleUntilStopped)
	return s, nil
}

func (s *Server) prepare() (err error) {
	if s.tokens, err = loadTokens(filepath.Join(s.cfg.Dir, TokensFile)); err != nil {
		return err
	}
	s.callers = newCallers(s.tokens)
	if _, ok := s.store.rings[DefaultKeyRing]; !ok {
		if err := s.store.putRing(DefaultKeyRing, ring{CreatedAt: s.now()}); err != nil {
			return err
		}
	}
	return s.settle()
}

// Tokens returns every identity's token. They are as good as the keys.
func (s *Server) Tokens() map[Identity]string {
	out := make(map[Identity]string, len(s.tokens))
	for id, token := range s.tokens {
		out[id] = token
	}
	return out
}

// Serve answers on lis until Stop, which closes it. It refuses a listener that
// is neither a Unix socket nor bound to a loopback address, unless
// Config.AllowRemote.
func (s *Server) Serve(lis net.Listener) error {
	if !s.cfg.AllowRemote && !isLocal(lis.Addr()) {
		return fmt.Errorf("KMS emulator is for this machine alone: %v is not a loopback address", lis.Addr())
	}
	if err := s.grpc.Serve(lis); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving the KMS emulator: %w", err)
	}
	return nil
}

func isLocal(a net.Addr) bool {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	default:
		return false
	}
}

// Register adds the service to a server of the caller's. Callers are
// authorised there too: the checks belong to the service, not to the server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	desc := kmspb.KeyManagementService_ServiceDesc
	desc.Methods = make([]grpc.MethodDesc, len(kmspb.KeyManagementService_ServiceDesc.Methods))
	for i, m := range kmspb.KeyManagementService_ServiceDesc.Methods {
		desc.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: s.guarded(m)}
	}
	r.RegisterService(&desc, &service{server: s})
}

// guarded wraps a method with what happens to every call: authorisation, then
// faults, then the clock.
func (s *Server) guarded(m grpc.MethodDesc) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		guard := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			run := func(ctx context.Context, req any) (any, error) { return s.call(ctx, m.MethodName, req, next) }
			if interceptor != nil {
				return interceptor(ctx, req, info, run)
			}
			return run(ctx, req)
		}
		return m.Handler(srv, ctx, dec, guard)
	}
}

func (s *Server) call(ctx context.Context, method string, req any, next grpc.UnaryHandler) (any, error) {
	if err := s.callers.authorize(ctx, method); err != nil {
		return nil, err
	}
	fault := s.befall(method)
	if err := fault.before(ctx); err != nil {
		return nil, err
	}
	resp, err := s.run(context.WithValue(ctx, staleKey{}, fault.Stale), req, next)
	if err != nil {
		return nil, err
	}
	if err := fault.after(resp); err != nil {
		return nil, err
	}
	return resp, nil
}

func (s *Server) run(ctx context.Context, req any, next grpc.UnaryHandler) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.settle(); err != nil {
		return nil, status.Error(codes.Internal, "the key file could not be written")
	}
	return next(ctx, req)
}

// staleKey marks a call that may use a version which is no longer enabled.
type staleKey struct{}

func (s *Server) settleUntilStopped() {
	tick := time.NewTicker(settleEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-tick.C:
		}
		s.mu.Lock()
		// A file that cannot be written now is tried again in a minute, and
		// fails the next call meanwhile.
		_ = s.settle()
		s.mu.Unlock()
	}
}

// Stop lets calls in flight finish until ctx ends, then cuts them off, and
// unlocks the key file. Safe to call twice.
func (s *Server) Stop(ctx context.Context) error {
	var err error
	s.stop.Do(func() {
		close(s.done)
		s.settler.Wait()
		finished := make(chan struct{})
		go func() {
			defer close(finished)
			s.grpc.GracefulStop()
		}()
		select {
		case <-finished:
		case <-ctx.Done():
			s.grpc.Stop()
			<-finished
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		err = s.store.close()
	})
	return err
}
