package server

import (
	"errors"
	"io"
	"net/http"
	"time"

	"connectrpc.com/connect/v2"
)

// net/http has one read timeout for all requests, which bounds the arrival of a
// whole one. pace keeps it for single messages, and moves it for streams: there
// it bounds how long nothing may arrive, and another of the same length how long
// the client may take nothing of what is sent. Both end, with the call, at the
// limit of its rule.
//
// It also moves it away once a request has arrived: it would otherwise end, over
// HTTP/1.1, a call whose answer takes longer than its request may.
type pace struct {
	idle    time.Duration
	streams map[string]connect.StreamType // by path
}

func newPace(rpc *connect.Server, idle time.Duration) *pace {
	p := &pace{idle: idle, streams: map[string]connect.StreamType{}}
	for spec := range rpc.Specs() {
		p.streams[spec.Procedure] = spec.StreamType
	}
	return p
}

// wrap paces the procedures among what next serves.
func (p *pace) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, known := p.streams[r.URL.Path]
		if !known {
			next.ServeHTTP(w, r)
			return
		}
		control := http.NewResponseController(w)
		if r.ProtoMajor == 1 {
			// That of a stream before, on the same connection.
			_ = control.SetWriteDeadline(time.Time{})
		}
		r.Body = &pacedBody{ReadCloser: r.Body, control: control, kind: kind, idle: p.idle, limit: rules[r.URL.Path].limit}
		if kind&connect.StreamTypeServer != 0 {
			// Bytes that do not compress are most of what is streamed, and those
			// that do are compressed where they are stored.
			for _, h := range []string{"Accept-Encoding", "Connect-Accept-Encoding", "Grpc-Accept-Encoding"} {
				r.Header.Del(h)
			}
			w = &pacedWriter{ResponseWriter: w, control: control, idle: p.idle}
		}
		next.ServeHTTP(w, r)
	})
}

// pacedBody moves the deadline of reading as a request arrives. Where a
// connection has no deadlines, as in a test's recorder, there is none to move.
type pacedBody struct {
	io.ReadCloser
	control     *http.ResponseController
	kind        connect.StreamType
	idle, limit time.Duration
}

// Read implements io.Reader.
func (b *pacedBody) Read(p []byte) (int, error) {
	if b.kind&connect.StreamTypeClient != 0 {
		_ = b.control.SetReadDeadline(time.Now().Add(b.idle))
	}
	n, err := b.ReadCloser.Read(p)
	// A stream of answers has one request, which is never read to its end.
	if errors.Is(err, io.EOF) || b.kind == connect.StreamTypeServer && n > 0 {
		_ = b.control.SetReadDeadline(time.Now().Add(b.limit))
	}
	return n, err
}

// pacedWriter moves the deadline of writing with each write.
type pacedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	idle    time.Duration
}

// Write implements io.Writer.
func (w *pacedWriter) Write(p []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.idle))
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (w *pacedWriter) Flush() {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.idle))
	_ = w.control.Flush()
}

// Unwrap is for http.ResponseController.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
