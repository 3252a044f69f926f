package gcpkms

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"cloud.google.com/go/auth/credentials"
	"cloud.google.com/go/auth/credentials/impersonate"
	kms "cloud.google.com/go/kms/apiv1"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// EmulatorKeyRing is the key ring behind an "emulator:" URL; kmsemu makes it at
// its first start.
const EmulatorKeyRing = "projects/memd/locations/local/keyRings/memd"

// scope is the OAuth scope of Cloud KMS, and of nothing else.
const scope = "https://www.googleapis.com/auth/cloudkms"

// Defaults of Config. Attempts are short because a KMS answers in tens of
// milliseconds; the total covers a restart of the emulator, a regional blip and
// some refills of the once 60-a-minute quota of management writes.
const (
	DefaultAttemptTimeout = 5 * time.Second
	DefaultMaxElapsed     = 20 * time.Second
	DefaultInitialBackoff = 100 * time.Millisecond
	DefaultMaxBackoff     = 3 * time.Second
)

// Config says which key ring to use and as whom. The zero value of a field
// means its default.
type Config struct {
	// URL is "gcp:projects/P/locations/L/keyRings/R" for Cloud KMS, or
	// "emulator:HOST:PORT" for the emulator, whose key ring is EmulatorKeyRing.
	// Required.
	URL string
	// Token is the bearer token that tells the emulator who calls. Required
	// with "emulator:", refused with "gcp:". It travels in clear.
	Token string
	// CredentialsFile is a Google credentials file of any kind; empty means
	// application default credentials. Only with "gcp:".
	CredentialsFile string
	// Impersonate is a service account to act as, on top of the credentials.
	// Only with "gcp:".
	Impersonate string
	// Endpoint replaces cloudkms.googleapis.com:443 (a Private Service Connect
	// address, for one). Only with "gcp:".
	Endpoint string

	// AttemptTimeout bounds one attempt, MaxElapsed the whole call with its
	// repetitions. The caller's context bounds both.
	AttemptTimeout time.Duration
	MaxElapsed     time.Duration
	// InitialBackoff is the most that is waited before the second attempt; it
	// doubles up to MaxBackoff.
	InitialBackoff time.Duration
	MaxBackoff     time.Duration

	// OnCall, if set, is told of every attempt: the RPC's name as in the API
	// ("Decrypt"), its outcome as this package reports it, and how long it
	// took. It is called on the caller's goroutine and must not block.
	OnCall func(method string, err error, d time.Duration)
}

var ringPattern = regexp.MustCompile(`^projects/[^/]+/locations/[^/]+/keyRings/[a-zA-Z0-9_-]{1,63}$`)

// Open returns a client for one identity. It finds the credentials but makes no
// call: a KMS that is away shows in the first call. The caller closes it.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	scheme, rest, _ := strings.Cut(cfg.URL, ":")
	switch scheme {
	case "emulator":
		return openEmulator(ctx, cfg, rest)
	case "gcp":
		return openGoogle(ctx, cfg, rest)
	default:
		return nil, &memd.InvalidError{Field: "KMS URL", Problem: `must begin with "gcp:" or "emulator:"`}
	}
}

func openGoogle(ctx context.Context, cfg Config, ring string) (*Client, error) {
	if !ringPattern.MatchString(ring) {
		return nil, &memd.InvalidError{Field: "KMS URL", Problem: `must be "gcp:projects/P/locations/L/keyRings/R"`}
	}
	if cfg.Token != "" {
		return nil, &memd.InvalidError{Field: "KMS token", Problem: `is for "emulator:" only`}
	}
	creds, err := credentials.DetectDefault(&credentials.DetectOptions{
		Scopes: []string{scope},
		//lint:ignore SA1019 It warns of files from a source not under one's control; this one is the operator's.
		CredentialsFile: cfg.CredentialsFile,
	})
	if err != nil {
		return nil, fmt.Errorf("finding Google credentials: %w", err)
	}
	if cfg.Impersonate != "" {
		creds, err = impersonate.NewCredentials(&impersonate.CredentialsOptions{
			TargetPrincipal: cfg.Impersonate, Scopes: []string{scope}, Credentials: creds,
		})
		if err != nil {
			return nil, fmt.Errorf("impersonating the service account: %w", err)
		}
	}
	opts := []option.ClientOption{
		option.WithAuthCredentials(creds),
		option.WithGRPCDialOption(grpc.WithDisableRetry()),
	}
	if cfg.Endpoint != "" {
		opts = append(opts, option.WithEndpoint(cfg.Endpoint))
	}
	return newClient(ctx, cfg, ring, opts...)
}

func openEmulator(ctx context.Context, cfg Config, address string) (*Client, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, &memd.InvalidError{Field: "KMS URL", Problem: `must be "emulator:HOST:PORT"`}
	}
	if cfg.Token == "" {
		return nil, &memd.InvalidError{Field: "KMS token", Problem: "is required for the emulator"}
	}
	if cfg.CredentialsFile != "" || cfg.Impersonate != "" || cfg.Endpoint != "" {
		return nil, &memd.InvalidError{Field: "KMS credentials", Problem: `are for "gcp:" only`}
	}
	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay, reconnect.MaxDelay = 50*time.Millisecond, time.Second
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(bearer(cfg.Token)),
		grpc.WithDisableRetry(),
		// The default waits up to two minutes before it looks again, which is
		// longer than an emulator takes to restart.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: time.Second}),
	)
	if err != nil {
		return nil, fmt.Errorf("preparing the connection to the KMS emulator: %w", err)
	}
	c, err := newClient(ctx, cfg, EmulatorKeyRing, option.WithGRPCConn(conn))
	if err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

func newClient(ctx context.Context, cfg Config, ring string, opts ...option.ClientOption) (*Client, error) {
	api, err := kms.NewKeyManagementClient(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("preparing the Cloud KMS client: %w", err)
	}
	// No library retries and no library timeouts: attempt decides on both.
	api.CallOptions = &kms.KeyManagementCallOptions{}
	for _, d := range []struct {
		field    *time.Duration
		fallback time.Duration
	}{
		{&cfg.AttemptTimeout, DefaultAttemptTimeout}, {&cfg.MaxElapsed, DefaultMaxElapsed},
		{&cfg.InitialBackoff, DefaultInitialBackoff}, {&cfg.MaxBackoff, DefaultMaxBackoff},
	} {
		if *d.field <= 0 {
			*d.field = d.fallback
		}
	}
	if cfg.OnCall == nil {
		cfg.OnCall = func(string, error, time.Duration) {}
	}
	return &Client{api: api, cfg: cfg, ring: ring}, nil
}

// Client is one identity of Cloud KMS or of the emulator. It is safe for
// concurrent use.
type Client struct {
	api  *kms.KeyManagementClient
	cfg  Config
	ring string
}

var _ shred.KMS = (*Client)(nil)

// KeyRing returns the full name of the key ring in which CreateKey makes keys.
func (c *Client) KeyRing() string { return c.ring }

// Close ends the connection. Calls in flight fail.
func (c *Client) Close() error { return c.api.Close() }

// bearer is a token that travels without TLS, for the emulator alone.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return false }
