package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// client speaks HTTP/1.1 over connections that stay open, with an API key. It
// writes a request and reads its answer on the goroutine of its caller, as the
// peer's driver does. net/http's own Transport hands each request to one
// goroutine and each answer to another, which is time of the client's, and a
// tenth to a fifth of a search.
type client struct {
	address, key string

	mu   sync.Mutex
	idle []*wire
}

// wire is an open connection.
type wire struct {
	net.Conn
	in   *bufio.Reader
	out  *bufio.Writer
	used time.Time
}

// keepIdle is less than the server keeps a connection.
const keepIdle = 30 * time.Second

// RoundTrip implements http.RoundTripper.
func (c *client) RoundTrip(r *http.Request) (*http.Response, error) {
	w, err := c.take(r.Context())
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(r.Context(), func() { _ = w.Close() })
	answer, err := w.exchange(r, c.key)
	if err != nil {
		stop()
		return nil, errors.Join(context.Cause(r.Context()), err, w.Close())
	}
	answer.Body = &answerBody{ReadCloser: answer.Body, done: func(whole bool) error {
		if !stop() || !whole || answer.Close {
			return w.Close()
		}
		c.give(w)
		return nil
	}}
	return answer, nil
}

// exchange sends a request, whose body becomes one that is known to be in
// memory: of any other the headers would be sent alone first, which wakes the
// server twice.
func (w *wire) exchange(r *http.Request, key string) (*http.Response, error) {
	sent := *r
	sent.Header = r.Header.Clone()
	sent.Header.Set("Authorization", "Bearer "+key)
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err := errors.Join(err, r.Body.Close()); err != nil {
			return nil, err
		}
		sent.Body, sent.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	if err := sent.Write(w.out); err != nil {
		return nil, err
	}
	if err := w.out.Flush(); err != nil {
		return nil, err
	}
	return http.ReadResponse(w.in, r)
}

func (c *client) take(ctx context.Context) (*wire, error) {
	c.mu.Lock()
	for n := len(c.idle); n > 0; n = len(c.idle) {
		w := c.idle[n-1]
		c.idle = c.idle[:n-1]
		if time.Since(w.used) < keepIdle {
			c.mu.Unlock()
			return w, nil
		}
		_ = w.Close()
	}
	c.mu.Unlock()
	dialer := net.Dialer{Timeout: 5 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", c.address)
	if err != nil {
		return nil, err
	}
	return &wire{Conn: conn, in: bufio.NewReaderSize(conn, 16<<10), out: bufio.NewWriterSize(conn, 16<<10)}, nil
}

func (c *client) give(w *wire) {
	w.used = time.Now()
	c.mu.Lock()
	c.idle = append(c.idle, w)
	c.mu.Unlock()
}

// answerBody gives the connection back once it has been read to its end.
type answerBody struct {
	io.ReadCloser
	whole bool
	done  func(whole bool) error
}

// Read implements io.Reader.
func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.whole = b.whole || errors.Is(err, io.EOF)
	return n, err
}

// Close implements io.Closer.
func (b *answerBody) Close() error {
	done := b.done
	if done == nil {
		return nil
	}
	b.done = nil
	return errors.Join(b.ReadCloser.Close(), done(b.whole))
}
