package kmstest

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/shred/kmsemu"
)

// Clock is a memd.Clock that stands still until it is told to move.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a clock that shows t.
func NewClock(t time.Time) *Clock { return &Clock{now: t.UTC().Truncate(time.Microsecond)} }

// Now implements memd.Clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock by d.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Emulator is a running emulator on a loopback port.
type Emulator struct {
	Server  *kmsemu.Server
	Clock   *Clock
	Dir     string
	Address string
	stop    func()
}

// StartEmulator starts an emulator in dir, or in a directory of the test's own
// when dir is empty, and stops it when the test ends. Its clock stands still.
func StartEmulator(tb testing.TB, dir string) *Emulator {
	tb.Helper()
	if dir == "" {
		dir = tb.TempDir()
	}
	e := &Emulator{Clock: NewClock(time.Now()), Dir: dir, Address: "127.0.0.1:0"}
	e.start(tb)
	tb.Cleanup(func() { e.stop() })
	return e
}

// Restart stops the emulator and starts it again on the same files, port and
// clock. With pause, the clock moves by that much while it is down.
func (e *Emulator) Restart(tb testing.TB, pause time.Duration) {
	tb.Helper()
	e.stop()
	e.Clock.Advance(pause)
	e.start(tb)
}

// Stop stops the emulator; calls fail until Restart. Safe to repeat.
func (e *Emulator) Stop() { e.stop() }

func (e *Emulator) start(tb testing.TB) {
	tb.Helper()
	server, err := kmsemu.Open(kmsemu.Config{Dir: e.Dir, Clock: e.Clock})
	if err != nil {
		tb.Fatalf("opening the emulator: %v", err)
	}
	lis, err := net.Listen("tcp", e.Address)
	if err != nil {
		tb.Fatalf("listening for the emulator: %v", err)
	}
	e.Server, e.Address = server, lis.Addr().String()
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	e.stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := server.Stop(ctx); err != nil {
			tb.Errorf("stopping the emulator: %v", err)
		}
		if err := <-served; err != nil {
			tb.Errorf("serving the emulator: %v", err)
		}
	})
}

// Client returns a client of one identity, closed when the test ends. Its
// backoff is short; adjust may change the configuration further.
func (e *Emulator) Client(tb testing.TB, id kmsemu.Identity, adjust ...func(*gcpkms.Config)) *gcpkms.Client {
	tb.Helper()
	cfg := gcpkms.Config{
		URL: "emulator:" + e.Address, Token: e.Server.Tokens()[id],
		InitialBackoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond,
	}
	for _, f := range adjust {
		f(&cfg)
	}
	c, err := gcpkms.Open(tb.Context(), cfg)
	if err != nil {
		tb.Fatalf("opening a client of the emulator: %v", err)
	}
	tb.Cleanup(func() { c.Close() })
	return c
}

// Raw returns the API itself and a context of the identity, for what shred.KMS
// does not offer: enabling, disabling, restoring.
func (e *Emulator) Raw(tb testing.TB, id kmsemu.Identity) (context.Context, kmspb.KeyManagementServiceClient) {
	tb.Helper()
	conn, err := grpc.NewClient("passthrough:///"+e.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		tb.Fatalf("connecting to the emulator: %v", err)
	}
	tb.Cleanup(func() { conn.Close() })
	ctx := metadata.AppendToOutgoingContext(tb.Context(), "authorization", "Bearer "+e.Server.Tokens()[id])
	return ctx, kmspb.NewKeyManagementServiceClient(conn)
}

// Harness returns the harness of the conformance suite for this emulator.
func (e *Emulator) Harness(tb testing.TB) Harness {
	tb.Helper()
	return Harness{
		App: e.Client(tb, kmsemu.App), Worker: e.Client(tb, kmsemu.Worker), Shredder: e.Client(tb, kmsemu.Shredder),
		Now: e.Clock.Now,
	}
}
