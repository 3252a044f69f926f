package server_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"

	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/server"
)

// wire is a connection that notes which deadlines it is given.
type wire struct {
	*httptest.ResponseRecorder
	reads, writes []time.Time
}

// SetReadDeadline implements what http.ResponseController looks for.
func (w *wire) SetReadDeadline(t time.Time) error { w.reads = append(w.reads, t); return nil }

// SetWriteDeadline implements what http.ResponseController looks for.
func (w *wire) SetWriteDeadline(t time.Time) error { w.writes = append(w.writes, t); return nil }

// TestPace: which deadlines move, and how far, for each kind of procedure and
// for what is none. The handler reads a request of two pieces to its end, and
// writes two pieces and flushes.
func TestPace(t *testing.T) {
	const idle = time.Minute
	kinds := map[string]connect.StreamType{
		memdv1connect.SessionServiceGetSessionProcedure:    connect.StreamTypeUnary,
		memdv1connect.ArtifactServiceSaveArtifactProcedure: connect.StreamTypeClient,
		memdv1connect.ArtifactServiceLoadArtifactProcedure: connect.StreamTypeServer,
	}
	for path, want := range map[string]struct {
		idle, limit int // deadlines of reading
		writes      int
		compressed  bool
	}{
		"/healthz": {0, 0, 0, true},
		memdv1connect.SessionServiceGetSessionProcedure:    {0, 1, 0, true},
		memdv1connect.ArtifactServiceSaveArtifactProcedure: {3, 1, 0, true},
		memdv1connect.ArtifactServiceLoadArtifactProcedure: {0, 3, 3, false},
	} {
		w := &wire{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequest(http.MethodPost, path, io.MultiReader(strings.NewReader("a"), strings.NewReader("b")))
		r.Header.Set("Accept-Encoding", "gzip")
		r.Proto, r.ProtoMajor = "HTTP/2.0", 2
		compressed := false
		before := time.Now()
		server.Paced(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			compressed = r.Header.Get("Accept-Encoding") != ""
			for b := make([]byte, 8); ; {
				if _, err := r.Body.Read(b); err != nil {
					break
				}
			}
			_, _ = io.WriteString(w, "c")
			_, _ = io.WriteString(w, "d")
			_ = http.NewResponseController(w).Flush()
		}), idle, kinds).ServeHTTP(w, r)
		after := time.Now()
		within := func(t time.Time, d time.Duration) bool { return !t.Before(before.Add(d)) && !t.After(after.Add(d)) }
		var idles, limits int
		for _, d := range w.reads {
			switch {
			case within(d, idle):
				idles++
			case within(d, server.LimitOf(path)):
				limits++
			default:
				t.Errorf("%s: a deadline of reading at %v, begun at %v", path, d, before)
			}
		}
		for _, d := range w.writes {
			if !within(d, idle) {
				t.Errorf("%s: a deadline of writing at %v, begun at %v", path, d, before)
			}
		}
		if idles != want.idle || limits != want.limit || len(w.writes) != want.writes || compressed != want.compressed {
			t.Errorf("%s: %d idle, %d limit, %d writes, compressed %v, want %+v", path, idles, limits, len(w.writes), compressed, want)
		}
		if w.Body.String() != "cd" {
			t.Errorf("%s: answered %q", path, w.Body)
		}
	}
}

// TestPace_AnotherCallOnTheConnection: over HTTP/1.1 the deadline of a stream
// before is taken away.
func TestPace_AnotherCallOnTheConnection(t *testing.T) {
	path := memdv1connect.SessionServiceGetSessionProcedure
	w := &wire{ResponseRecorder: httptest.NewRecorder()}
	server.Paced(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), time.Minute,
		map[string]connect.StreamType{path: connect.StreamTypeUnary}).ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
	if len(w.writes) != 1 || !w.writes[0].IsZero() {
		t.Errorf("deadlines of writing %v", w.writes)
	}
}
