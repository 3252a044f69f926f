package main

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

// serverFlags say which server a command speaks to, and as whom.
type serverFlags struct {
	URL     string        `name:"url" group:"server" default:"http://127.0.0.1:8787" help:"Address of the server."`
	APIKey  string        `name:"api-key" group:"server" placeholder:"memd_…" help:"API key. Better set by the variable: a command line can be seen by others on the machine."`
	Timeout time.Duration `group:"server" default:"1m" help:"How long one call may take."`
}

// outputFlags say how a result is written.
type outputFlags struct {
	JSON bool `name:"json" help:"Write the server's answer as JSON instead of a table."`
}

// clients are the services of one server. They are safe for concurrent use.
type clients struct {
	Session   memdv1connect.SessionServiceClient
	Memory    memdv1connect.MemoryServiceClient
	Artifacts memdv1connect.ArtifactServiceClient
	Erasure   memdv1connect.ErasureServiceClient
	Admin     memdv1connect.AdminServiceClient
	Targets   memdv1connect.TargetServiceClient
	Exports   memdv1connect.ExportServiceClient
	Compact   memdv1connect.CompactServiceClient
}

// maxAnswerBytes bounds one answer of the server. The library's default of 4 MiB
// is less than a page of long texts.
const maxAnswerBytes = 512 << 20

// connect returns clients that nothing was asked of yet. It returns a
// usageError when the address or the key cannot be right.
func (f *serverFlags) connect() (*clients, error) {
	u, err := url.Parse(f.URL)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		return nil, usagef("--url must start with http:// or https:// and name a host")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, usagef("--url must have no user, query or fragment")
	case f.APIKey == "":
		return nil, usagef("no API key: set MEMD_API_KEY (memd dev prints one when it starts for the first time)")
	case strings.ContainsFunc(f.APIKey, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, usagef("the API key has characters that no key has; was it copied whole?")
	case f.Timeout <= 0:
		return nil, usagef("--timeout must be more than zero")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = maxConcurrency
	client := connect.NewClient(
		connecthttp.NewTransport(&http.Client{
			Transport: transport,
			// The key and what people said are meant for this address alone.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}, strings.TrimRight(f.URL, "/"), connecthttp.WithReadMaxBytes(maxAnswerBytes)),
		f.authenticate, f.limit,
	)
	return &clients{
		Session:   memdv1connect.NewSessionServiceClient(client),
		Memory:    memdv1connect.NewMemoryServiceClient(client),
		Artifacts: memdv1connect.NewArtifactServiceClient(client),
		Erasure:   memdv1connect.NewErasureServiceClient(client),
		Admin:     memdv1connect.NewAdminServiceClient(client),
		Targets:   memdv1connect.NewTargetServiceClient(client),
		Exports:   memdv1connect.NewExportServiceClient(client),
		Compact:   memdv1connect.NewCompactServiceClient(client),
	}, nil
}

// authenticate sends the API key with every call.
func (f *serverFlags) authenticate(next connect.ClientFunc) connect.ClientFunc {
	return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
		if info, ok := connect.CallInfoForClientContext(ctx); ok {
			info.RequestHeader().Set("Authorization", "Bearer "+f.APIKey)
		}
		return next(ctx, spec)
	}
}

// limit gives every call the time of --timeout and tells the server, which can
// then stop in good order.
func (f *serverFlags) limit(next connect.ClientFunc) connect.ClientFunc {
	return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
		ctx, cancel := context.WithTimeout(ctx, f.Timeout)
		stream, err := next(ctx, spec)
		if err != nil {
			cancel()
			return nil, err
		}
		return &limitedStream{ClientStream: stream, cancel: cancel}, nil
	}
}

// limitedStream gives its timer back when the call is over.
type limitedStream struct {
	connect.ClientStream
	cancel context.CancelFunc
}

func (s *limitedStream) Close() error {
	defer s.cancel()
	return s.ClientStream.Close()
}
