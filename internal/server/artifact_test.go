package server_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
)

func (s *instance) artifacts(secret string, options ...connecthttp.Option) memdv1connect.ArtifactServiceClient {
	return memdv1connect.NewArtifactServiceClient(s.client(secret, options...))
}

func artifactOwner(user string) *memdv1.ArtifactOwner {
	return &memdv1.ArtifactOwner{App: "pharmacy", UserId: user, SessionId: "monday"}
}

func artifactHeader(user, name string) *memdv1.SaveArtifactHeader {
	return &memdv1.SaveArtifactHeader{Owner: artifactOwner(user), Name: name, MimeType: "text/plain", Metadata: map[string]string{"k": "v"}}
}

// upload sends what r has, in messages of some bytes.
func upload(ctx context.Context, c memdv1connect.ArtifactServiceClient, h *memdv1.SaveArtifactHeader, r io.Reader, size int) (*memdv1.SaveArtifactResponse, error) {
	stream, err := c.SaveArtifact(ctx)
	if err != nil {
		return nil, err
	}
	err = stream.Send(&memdv1.SaveArtifactRequest{Part: &memdv1.SaveArtifactRequest_Header{Header: h}})
	b := make([]byte, size)
	for err == nil {
		n, end := io.ReadFull(r, b)
		if n > 0 {
			err = stream.Send(&memdv1.SaveArtifactRequest{Part: &memdv1.SaveArtifactRequest_Data{Data: b[:n]}})
		}
		if end != nil {
			break
		}
	}
	// A stream that the server ended says why when its answer is read.
	return stream.CloseAndReceive()
}

// download writes what comes to w and returns the header.
func download(ctx context.Context, c memdv1connect.ArtifactServiceClient, req *memdv1.LoadArtifactRequest, w io.Writer) (*memdv1.LoadArtifactHeader, error) {
	stream, err := c.LoadArtifact(ctx, req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	var header *memdv1.LoadArtifactHeader
	for {
		m, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return header, nil
		}
		if err != nil {
			return header, err
		}
		if h := m.GetHeader(); h != nil {
			header = h
		}
		if _, err := w.Write(m.GetData()); err != nil {
			return header, err
		}
	}
}

func seeded(n int64) io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{1}), n) }

// compared fails at the first byte that differs.
type compared struct {
	want io.Reader
	n    int64
}

func (c *compared) Write(p []byte) (int, error) {
	want := make([]byte, len(p))
	if _, err := io.ReadFull(c.want, want); err != nil || !bytes.Equal(p, want) {
		return 0, errors.New("the bytes differ")
	}
	c.n += int64(len(p))
	return len(p), nil
}

func TestArtifacts_StreamOverEveryProtocol(t *testing.T) {
	in := setup(t)
	s := in.serve()
	_, agent := in.key(in.tenant("acme").No, auth.Agent)
	http1 := &instance{url: s.url, http: &http.Client{}}
	t.Cleanup(http1.http.CloseIdleConnections)
	for name, c := range map[string]memdv1connect.ArtifactServiceClient{
		"connect":               s.artifacts(agent),
		"connect over HTTP/1.1": http1.artifacts(agent),
		"connect, JSON":         s.artifacts(agent, connecthttp.WithProtoJSON()),
		"grpc":                  s.artifacts(agent, connecthttp.WithGRPC()),
	} {
		const size = 3<<20 + 17
		saved, err := upload(t.Context(), c, artifactHeader(name, "film"), seeded(size), 100_000)
		if err != nil || saved.GetVersion().GetSize() != size || saved.GetVersion().GetVersion() != 0 {
			t.Fatalf("%s: saved %v, %v", name, saved, err)
		}
		w := &compared{want: seeded(size)}
		h, err := download(t.Context(), c, &memdv1.LoadArtifactRequest{Owner: artifactOwner(name), Name: "film"}, w)
		if err != nil || w.n != size || h.GetVersion().GetMimeType() != "text/plain" {
			t.Errorf("%s: %d bytes came back, %v", name, w.n, err)
		}
		var part bytes.Buffer
		h, err = download(t.Context(), c, &memdv1.LoadArtifactRequest{Owner: artifactOwner(name), Name: "film", Offset: size - 5, Length: 100}, &part)
		if err != nil || part.Len() != 5 || h.GetLength() != 5 {
			t.Errorf("%s: a range: %d bytes, %v", name, part.Len(), err)
		}
	}
}

// A stream that breaks off between two messages, however politely the line goes
// down, is no end of it.
func TestArtifacts_BrokenStreamMakesNoVersion(t *testing.T) {
	in := setup(t)
	s := in.serve()
	tenant := in.tenant("acme")
	_, agent := in.key(tenant.No, auth.Agent)
	http1 := &instance{url: s.url, http: &http.Client{}}
	t.Cleanup(http1.http.CloseIdleConnections)
	for name, c := range map[string]memdv1connect.ArtifactServiceClient{
		"HTTP/2": s.artifacts(agent), "HTTP/1.1": http1.artifacts(agent), "grpc": s.artifacts(agent, connecthttp.WithGRPC()),
	} {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := c.SaveArtifact(ctx)
		if err != nil {
			t.Fatal(err)
		}
		err = stream.Send(&memdv1.SaveArtifactRequest{Part: &memdv1.SaveArtifactRequest_Header{Header: artifactHeader(name, "film")}})
		for range 20 {
			err = errors.Join(err, stream.Send(&memdv1.SaveArtifactRequest{Part: &memdv1.SaveArtifactRequest_Data{Data: make([]byte, 256<<10)}}))
		}
		if err != nil {
			t.Fatal(err)
		}
		in.eventually(func() bool { return in.chunks() > 0 })
		cancel()
		in.eventually(func() bool { return in.chunks() == 0 })
		if _, err := stream.CloseAndReceive(); err == nil {
			t.Errorf("%s: a stream that was given up has an answer", name)
		}
		_, err = c.GetArtifactVersion(t.Context(), &memdv1.GetArtifactVersionRequest{Owner: artifactOwner(name), Name: "film"})
		if connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// eventually asks until it is so; the test's own time limit ends it.
func (in *installation) eventually(so func() bool) {
	in.t.Helper()
	for !so() {
		if in.t.Context().Err() != nil {
			in.t.Fatal("it never was")
		}
		runtime.Gosched()
	}
}

func (in *installation) chunks() (n int) {
	in.t.Helper()
	err := in.worker.With(in.t.Context(), func(db pg.DB) error {
		return db.QueryRow(in.t.Context(), `SELECT count(*) FROM memd.artifact_chunks`).Scan(&n)
	})
	if err != nil {
		in.t.Fatal(err)
	}
	return n
}

// TestArtifacts_ConstantMemory moves 96 MiB through client and server, which
// share this process, and watches the heap.
func TestArtifacts_ConstantMemory(t *testing.T) {
	in := setup(t)
	s := in.serve()
	_, agent := in.key(in.tenant("acme").No, auth.Agent)
	c := s.artifacts(agent)
	if _, err := upload(t.Context(), c, artifactHeader("anna", "warm"), seeded(4<<20), 256<<10); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	const size, ceiling = 96 << 20, 32 << 20
	var peak atomic.Uint64
	watch := func(r io.Reader) io.Reader { return &watched{r, &peak} }
	if _, err := upload(t.Context(), c, artifactHeader("anna", "film"), watch(seeded(size)), 256<<10); err != nil {
		t.Fatal(err)
	}
	up := peak.Swap(0)
	w := &compared{want: watch(seeded(size))}
	if _, err := download(t.Context(), c, &memdv1.LoadArtifactRequest{Owner: artifactOwner("anna"), Name: "film"}, w); err != nil || w.n != size {
		t.Fatalf("%d bytes, %v", w.n, err)
	}
	down := peak.Load()
	t.Logf("96 MiB: the live heap of client and server grew by %d KiB saving and %d KiB loading", int64(up-before.HeapAlloc)>>10, int64(down-before.HeapAlloc)>>10)
	for name, got := range map[string]uint64{"saving": up, "loading": down} {
		if got > before.HeapAlloc+ceiling {
			t.Errorf("%s took %d MiB", name, (got-before.HeapAlloc)>>20)
		}
	}
}

// watched collects garbage and notes what is live, every 8 MiB.
type watched struct {
	io.Reader
	peak *atomic.Uint64
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if rand.N(32) == 0 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		w.peak.Store(max(w.peak.Load(), m.HeapAlloc))
	}
	return n, err
}

func TestArtifacts_InlineByPlainHTTP(t *testing.T) {
	in := setup(t)
	s := in.serve()
	_, agent := in.key(in.tenant("acme").No, auth.Agent)
	post := func(method, body string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/memd.v1.ArtifactService/"+method, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+agent)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	owner := `"owner": {"app": "pharmacy", "userId": "anna", "sessionId": "monday"}`
	post("SaveArtifactInline", `{"header": {`+owner+`, "name": "note", "mimeType": "text/plain"}, "data": "dGVh"}`)
	if got := post("LoadArtifactInline", `{"load": {`+owner+`, "name": "note"}}`); !strings.Contains(got, `"data":"dGVh"`) || !strings.Contains(got, `"text/plain"`) {
		t.Errorf("loaded %s", got)
	}
	if got := post("ListArtifacts", `{`+owner+`}`); !strings.Contains(got, `"name":"note"`) {
		t.Errorf("listed %s", got)
	}
	for method, body := range map[string]string{
		"DeleteArtifact": `{` + owner + `, "name": "note"}`, "SaveArtifactInline": `{"header": {"owner": {"app": "pharmacy", "userId": "anna"}, "name": "note"}}`,
		"LoadArtifactInline": `{"load": {` + owner + `, "name": "note", "offset": 4}}`, "GetArtifactVersion": `{` + owner + `, "name": "note", "version": -1}`,
		"ListArtifactVersions": `{` + owner + `, "name": "*"}`,
	} {
		if got := post(method, body); !strings.Contains(got, `"invalid_argument"`) {
			t.Errorf("%s: %s", method, got)
		}
	}
	if got := post("DeleteArtifact", `{`+owner+`, "name": "note", "allVersions": true}`); !strings.Contains(got, `"versionsDeleted":"1"`) {
		t.Errorf("deleted %s", got)
	}
}

func TestArtifacts_StreamsAreCheckedLikeCalls(t *testing.T) {
	in := setup(t)
	s := in.serve()
	acme, globex := in.tenant("acme"), in.tenant("globex")
	_, agent := in.key(acme.No, auth.Agent)
	_, other := in.key(globex.No, auth.Agent)
	_, eraser := in.key(acme.No, auth.Eraser)
	if _, err := upload(t.Context(), s.artifacts(agent), artifactHeader("anna", "film"), seeded(100), 10); err != nil {
		t.Fatal(err)
	}
	load := &memdv1.LoadArtifactRequest{Owner: artifactOwner("anna"), Name: "film"}
	for name, c := range map[string]struct {
		key  string
		req  *memdv1.LoadArtifactRequest
		want connect.Code
	}{
		"no key":         {"memd_nonsense", load, connect.CodeUnauthenticated},
		"another role":   {eraser, load, connect.CodePermissionDenied},
		"another tenant": {other, load, connect.CodeNotFound},
		"another user":   {agent, &memdv1.LoadArtifactRequest{Owner: artifactOwner("bernd"), Name: "film"}, connect.CodeNotFound},
		"never there":    {agent, &memdv1.LoadArtifactRequest{Owner: artifactOwner("anna"), Name: "never"}, connect.CodeNotFound},
		"malformed":      {agent, &memdv1.LoadArtifactRequest{Name: "film"}, connect.CodeInvalidArgument},
	} {
		if _, err := download(t.Context(), s.artifacts(c.key), c.req, io.Discard); connect.CodeOf(err) != c.want {
			t.Errorf("loading, %s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		key    string
		header *memdv1.SaveArtifactHeader
		want   connect.Code
	}{
		"no key":       {"memd_nonsense", artifactHeader("anna", "film"), connect.CodeUnauthenticated},
		"another role": {eraser, artifactHeader("anna", "film"), connect.CodePermissionDenied},
		"no owner":     {agent, &memdv1.SaveArtifactHeader{Name: "film"}, connect.CodeInvalidArgument},
		"no header":    {agent, nil, connect.CodeInvalidArgument},
		"a wildcard":   {agent, artifactHeader("anna", "*"), connect.CodeInvalidArgument},
	} {
		if _, err := upload(t.Context(), s.artifacts(c.key), c.header, seeded(100), 10); connect.CodeOf(err) != c.want {
			t.Errorf("saving, %s: %v", name, err)
		}
	}
	stream, err := s.artifacts(agent).SaveArtifact(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_ = stream.Send(&memdv1.SaveArtifactRequest{Part: &memdv1.SaveArtifactRequest_Header{Header: artifactHeader("anna", "film")}})
	}
	if _, err := stream.CloseAndReceive(); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("two headers: %v", err)
	}
	res, err := s.artifacts(agent).ListArtifactVersions(t.Context(), &memdv1.ListArtifactVersionsRequest{Owner: artifactOwner("anna"), Name: "film"})
	if err != nil || len(res.GetVersions()) != 1 {
		t.Errorf("versions: %v, %v", res, err)
	}
	if n := in.chunks(); n != 1 {
		t.Errorf("%d chunks are there: what was refused left some", n)
	}
}

// TestArtifacts_StreamsAreBounded: one more than may pass at once is told so,
// and finds a place when another has ended.
func TestArtifacts_StreamsAreBounded(t *testing.T) {
	in := setup(t)
	in.streams = 1
	s := in.serve()
	_, secret := in.key(in.tenant("acme").No, auth.Agent)
	c := s.artifacts(secret)
	stream, err := c.SaveArtifact(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&memdv1.SaveArtifactRequest{Part: &memdv1.SaveArtifactRequest_Header{Header: artifactHeader("ada", "a")}}); err != nil {
		t.Fatal(err)
	}
	load := &memdv1.LoadArtifactRequest{Owner: artifactOwner("ada"), Name: "b"}
	inline := func() error {
		_, err := c.LoadArtifactInline(t.Context(), &memdv1.LoadArtifactInlineRequest{Load: load})
		return err
	}
	in.eventually(func() bool { return connect.CodeOf(inline()) == connect.CodeResourceExhausted }) // the save has its place
	_, err = c.SaveArtifactInline(t.Context(), &memdv1.SaveArtifactInlineRequest{Header: artifactHeader("ada", "c"), Data: []byte("x")})
	_, streamed := download(t.Context(), c, load, io.Discard)
	_, uploaded := upload(t.Context(), c, artifactHeader("ada", "d"), strings.NewReader("x"), 1)
	for _, err := range []error{err, streamed, uploaded} {
		if connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Errorf("beside a stream: %v", err)
		}
	}
	if _, err := c.ListArtifacts(t.Context(), &memdv1.ListArtifactsRequest{Owner: artifactOwner("ada")}); err != nil {
		t.Errorf("what streams nothing: %v", err)
	}
	if _, err := stream.CloseAndReceive(); err != nil {
		t.Errorf("the stream that had the place: %v", err)
	}
	in.eventually(func() bool { return connect.CodeOf(inline()) == connect.CodeNotFound })
}
