package eraser_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"forgettable.dev/memd/eraser"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

const token = "memdt_0123456789abcdef"

// shelf counts what it is asked.
type shelf struct {
	mu     sync.Mutex
	erases int
	last   eraser.Request
	err    error
}

func (s *shelf) Count(_ context.Context, r eraser.Request) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = r
	return 4, s.err
}

func (s *shelf) Erase(_ context.Context, r eraser.Request) (eraser.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = r
	if s.err == nil {
		s.erases++
	}
	return eraser.Result{Erased: int64(s.erases)}, s.err
}

func (s *shelf) Verify(_ context.Context, r eraser.Request) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = r
	return 0, s.err
}

type rig struct {
	t   *testing.T
	s   *shelf
	now time.Time
	url string
}

func start(t *testing.T) *rig {
	t.Helper()
	g := &rig{t: t, s: &shelf{}, now: time.Unix(1_700_000_000, 0)}
	h, err := eraser.Handler(g.s, eraser.WithToken(token, "another-token-of-16"), eraser.WithKey(secret), eraser.WithClock(func() time.Time { return g.now }))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	g.url = srv.URL
	return g
}

func subject() eraser.Request {
	return eraser.Request{ID: uuid.New(), Mode: eraser.ModeUser, Tenant: "acme", App: "chat", UserID: "alice", Round: 1}
}

func (g *rig) post(h http.Header, body []byte) (int, string) {
	g.t.Helper()
	req, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost, g.url+"/hook", strings.NewReader(string(body)))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header = h
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(text))
}

func (g *rig) signed(op eraser.Op, r eraser.Request, at time.Time) (http.Header, []byte) {
	g.t.Helper()
	body, err := eraser.EncodeMessage(op, r, at)
	if err != nil {
		g.t.Fatal(err)
	}
	return signer(secret, eraser.MessageID(op, r), at.Unix(), string(body)), body
}

func TestHandler_NeedsAWayToTellWhoCalls(t *testing.T) {
	for name, options := range map[string][]eraser.Option{
		"nothing": nil, "short token": {eraser.WithToken("short")}, "bad key": {eraser.WithKey("x")}, "no key": {eraser.WithKey()},
	} {
		if _, err := eraser.Handler(&shelf{}, options...); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := eraser.Handler(nil, eraser.WithToken(token)); err == nil {
		t.Error("no store: accepted")
	}
}

func TestHandler_AdmitsCallsByToken(t *testing.T) {
	g := start(t)
	client := func(authorization string) memdv1connect.EraserServiceClient {
		return memdv1connect.NewEraserServiceClient(connect.NewClient(connecthttp.NewTransport(http.DefaultClient, g.url),
			func(next connect.ClientFunc) connect.ClientFunc {
				return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
					if info, ok := connect.CallInfoForClientContext(ctx); ok && authorization != "" {
						info.RequestHeader().Set("Authorization", authorization)
					}
					return next(ctx, spec)
				}
			}))
	}
	defer http.DefaultClient.CloseIdleConnections()
	r := subject()
	for _, good := range []string{"Bearer " + token, "Bearer another-token-of-16"} {
		got, err := client(good).Count(t.Context(), &memdv1.CountRequest{Subject: r.ToProto()})
		if err != nil || got.GetCount() != 4 {
			t.Errorf("%s: %v, %v", good, got, err)
		}
		if diff := cmp.Diff(r, g.s.last); diff != "" {
			t.Error(diff)
		}
	}
	code := func(err error) connect.Code {
		var e *connect.Error
		if !errors.As(err, &e) {
			t.Fatalf("no error of connect's: %v", err)
		}
		return e.Code()
	}
	for _, bad := range []string{"", "Bearer ", token, "Bearer " + token + "x", "Bearer " + token[:20], "Basic " + token} {
		_, err := client(bad).Erase(t.Context(), &memdv1.EraseRequest{Subject: r.ToProto()})
		if code(err) != connect.CodeUnauthenticated {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for name, change := range map[string]func(*memdv1.ErasureSubject){
		"no user": func(s *memdv1.ErasureSubject) { s.UserId = "" }, "all users": func(s *memdv1.ErasureSubject) { s.UserId = "%" },
		"no id": func(s *memdv1.ErasureSubject) { s.RequestId = "" }, "no mode": func(s *memdv1.ErasureSubject) { s.Mode = 0 },
		"a mode of tomorrow": func(s *memdv1.ErasureSubject) { s.Mode = 260 }, "a session too many": func(s *memdv1.ErasureSubject) { s.SessionId = "x" },
		"a tenant and a user": func(s *memdv1.ErasureSubject) { s.Mode = memdv1.ErasureMode_ERASURE_MODE_TENANT },
	} {
		s := r.ToProto()
		change(s)
		_, err := client("Bearer "+token).Erase(t.Context(), &memdv1.EraseRequest{Subject: s})
		if code(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := client("Bearer "+token).Erase(t.Context(), &memdv1.EraseRequest{}); code(err) != connect.CodeInvalidArgument {
		t.Errorf("nothing: %v", err)
	}
	if g.s.erases != 0 {
		t.Errorf("%d were carried out", g.s.erases)
	}
	// A store's error may say what was asked; the answer does not.
	g.s.err = errors.New("no row for alice")
	_, counting := client("Bearer "+token).Count(t.Context(), &memdv1.CountRequest{Subject: r.ToProto()})
	_, erasing := client("Bearer "+token).Erase(t.Context(), &memdv1.EraseRequest{Subject: r.ToProto()})
	_, verifying := client("Bearer "+token).Verify(t.Context(), &memdv1.VerifyRequest{Subject: r.ToProto()})
	for _, err := range []error{counting, erasing, verifying} {
		if code(err) != connect.CodeUnavailable || strings.Contains(err.Error(), "alice") {
			t.Error(err)
		}
	}
}

func TestHandler_CarriesOutAWebhookOnceAndKnowsACopy(t *testing.T) {
	g := start(t)
	r := subject()
	header, body := g.signed(eraser.OpErase, r, g.now)
	for range 3 { // The same bytes again, and a try with another time.
		if status, text := g.post(header, body); status != 200 || text != `{"erased":1}` {
			t.Fatalf("%d %s", status, text)
		}
		g.now = g.now.Add(time.Second)
		again := signer(secret, eraser.MessageID(eraser.OpErase, r), g.now.Unix(), string(body))
		if status, text := g.post(again, body); status != 200 || text != `{"erased":1}` {
			t.Fatalf("%d %s", status, text)
		}
	}
	if g.s.erases != 1 {
		t.Errorf("carried out %d times", g.s.erases)
	}
	// Whoever recorded it and waits is refused by the time.
	g.now = g.now.Add(eraser.Tolerance + time.Second)
	if status, _ := g.post(header, body); status != http.StatusUnauthorized || g.s.erases != 1 {
		t.Errorf("a copy that is too old: %d, carried out %d times", status, g.s.erases)
	}
	// A new round is another message.
	r.Round = 2
	header, body = g.signed(eraser.OpErase, r, g.now)
	if status, text := g.post(header, body); status != 200 || text != `{"erased":2}` {
		t.Errorf("%d %s", status, text)
	}
	// One that failed is carried out when it comes again.
	r.Round, g.s.err = 3, errors.New("down")
	header, body = g.signed(eraser.OpErase, r, g.now)
	if status, text := g.post(header, body); status != http.StatusServiceUnavailable || strings.Contains(text, "down") {
		t.Errorf("%d %s", status, text)
	}
	g.s.err = nil
	if status, text := g.post(header, body); status != 200 || text != `{"erased":3}` {
		t.Errorf("%d %s", status, text)
	}
	// Counting and verifying are asked of the store each time.
	header, body = g.signed(eraser.OpVerify, r, g.now)
	if status, text := g.post(header, body); status != 200 || text != `{"remaining":0}` || g.s.last != r {
		t.Errorf("%d %s", status, text)
	}
}

func TestHandler_RefusesWebhooksThatAreNotMemds(t *testing.T) {
	g := start(t)
	r := subject()
	header, body := g.signed(eraser.OpErase, r, g.now)
	if status, _ := g.post(header, append(body, ' ')); status != http.StatusUnauthorized {
		t.Errorf("another body: %d", status)
	}
	id := eraser.MessageID(eraser.OpErase, r)
	for name, text := range map[string]string{
		"nonsense":           `{`,
		"another type":       strings.Replace(string(body), "erasure.erase", "erasure.all", 1),
		"an unknown field":   strings.Replace(string(body), `"mode"`, `"dry_run":true,"mode"`, 1),
		"an unknown mode":    strings.Replace(string(body), `"user"`, `"everybody"`, 1),
		"no user":            strings.Replace(string(body), `"user_id":"alice",`, ``, 1),
		"all users":          strings.Replace(string(body), `alice`, `*`, 1),
		"two of them":        string(body) + string(body),
		"a round that is no": strings.Replace(string(body), `"round":1`, `"round":0`, 1),
		// Signed by memd, for another operation than its id says.
		"another operation": strings.Replace(string(body), "erasure.erase", "erasure.verify", 1),
	} {
		if text == string(body) {
			t.Fatalf("%s: nothing was changed", name)
		}
		if status, answer := g.post(signer(secret, id, g.now.Unix(), text), []byte(text)); status != http.StatusBadRequest || strings.Contains(answer, "alice") {
			t.Errorf("%s: %d %s", name, status, answer)
		}
	}
	if status, _ := g.post(signer(secret, id, g.now.Unix(), strings.Repeat(" ", 1<<20)), []byte(strings.Repeat(" ", 1<<20))); status != http.StatusBadRequest {
		t.Errorf("a huge one: %d", status)
	}
	if g.s.erases != 0 {
		t.Errorf("%d were carried out", g.s.erases)
	}
	resp, err := http.Get(g.url + "/hook")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", resp.StatusCode)
	}
}
