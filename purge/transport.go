package purge

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// Bounds of one answer.
const (
	maxAnswerBytes = 64 << 10
	maxHeaderBytes = 32 << 10
)

// exchange is what is known of one try, however the library above the transport
// words it.
type exchange struct {
	status  int
	after   string // Retry-After
	problem Code   // what memd itself has against the answer, or the network
}

type exchangeKey struct{}

func withExchange(ctx context.Context) (context.Context, *exchange) {
	x := &exchange{}
	return context.WithValue(ctx, exchangeKey{}, x), x
}

// guarded is a transport that refuses what no target may do.
type guarded struct{ base *http.Transport }

// newClient makes the client of one policy. No proxy: it would dial where memd
// does not look. No cookies. No redirect is followed, not even on the same host:
// what is signed or carries a token is for one address.
func newClient(p policy, roots *x509.CertPool) *http.Client {
	dialer := &net.Dialer{Timeout: maxTimeout, Control: p.control}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: guarded{&http.Transport{
			Proxy:                  nil,
			DialContext:            dialer.DialContext,
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			ForceAttemptHTTP2:      true,
			MaxIdleConnsPerHost:    2,
			IdleConnTimeout:        30 * time.Second,
			MaxResponseHeaderBytes: maxHeaderBytes,
			DisableCompression:     true,
		}},
	}
}

// CloseIdleConnections is what http.Client looks for.
func (g guarded) CloseIdleConnections() { g.base.CloseIdleConnections() }

// RoundTrip implements http.RoundTripper.
func (g guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	x, ok := r.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		x = &exchange{}
	}
	resp, err := g.base.RoundTrip(r)
	if err != nil {
		x.problem = problemOf(err)
		return nil, err
	}
	x.status, x.after = resp.StatusCode, resp.Header.Get("Retry-After")
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		x.problem = CodeRedirected
	case resp.ContentLength > maxAnswerBytes:
		x.problem = CodeTooLarge
	}
	if x.problem != "" {
		_ = resp.Body.Close()
		return nil, failed(x.problem)
	}
	resp.Body = &bounded{ReadCloser: resp.Body, left: maxAnswerBytes, x: x}
	return resp, nil
}

// bounded ends an answer that is too large.
type bounded struct {
	io.ReadCloser
	left int64
	x    *exchange
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		var one [1]byte
		if n, err := b.ReadCloser.Read(one[:]); n == 0 {
			return 0, err
		}
		b.x.problem = CodeTooLarge
		return 0, failed(CodeTooLarge)
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		b.x.problem = problemOf(err)
	}
	return n, err
}

// problemOf says what kind of trouble the network had.
func problemOf(err error) Code {
	var certificate *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, errAddress):
		return CodeAddress
	case errors.As(err, &certificate), errors.As(err, &unknown), errors.As(err, &host), errors.As(err, &record), errors.As(err, &alert):
		return CodeTLS
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return CodeTimeout
	}
	return CodeUnreachable
}

// codeOfStatus classifies an HTTP answer that is no success.
func codeOfStatus(status int) Code {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return CodeUnauthorised
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed, status == http.StatusNotImplemented, status == http.StatusGone:
		return CodeUnimplemented
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return CodeBusy
	case status == http.StatusRequestTimeout, status == http.StatusGatewayTimeout:
		return CodeTimeout
	case status >= 500, status == http.StatusConflict, status == http.StatusLocked, status == http.StatusTooEarly:
		return CodeFailed
	}
	return CodeRefused
}
