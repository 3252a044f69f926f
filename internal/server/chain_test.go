package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectinprocess"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/server"
)

// fake answers Get with what the test says, and every other call with "not
// implemented".
type fake struct {
	memdv1connect.UnimplementedMemoryServiceHandler
	get func() error
}

func (f *fake) Get(context.Context, *memdv1.GetRequest) (*memdv1.GetResponse, error) {
	if err := f.get(); err != nil {
		return nil, err
	}
	return &memdv1.GetResponse{}, nil
}

// Add says that validation let the rows through.
func (f *fake) Add(_ context.Context, req *memdv1.AddRequest) (*memdv1.AddResponse, error) {
	return &memdv1.AddResponse{Results: make([]*memdv1.AddResult, len(req.GetRows()))}, nil
}

func (f *fake) Search(context.Context, *memdv1.SearchRequest) (*memdv1.SearchResponse, error) {
	return &memdv1.SearchResponse{}, nil
}

func (f *fake) Update(context.Context, *memdv1.UpdateRequest) (*memdv1.UpdateResponse, error) {
	return &memdv1.UpdateResponse{}, nil
}

// logBuffer is a log that a test reads while others write.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

type chain struct {
	fake     *fake
	log      *logBuffer
	registry *prometheus.Registry
	rpc      *connect.Server
	client   memdv1connect.MemoryServiceClient
}

func newChain() *chain {
	c := &chain{fake: &fake{}, log: &logBuffer{}, registry: prometheus.NewRegistry()}
	l := slog.New(slog.NewJSONHandler(c.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c.rpc = connect.NewServer(server.OpenChain(l, c.registry)...)
	memdv1connect.RegisterMemoryServiceHandler(c.rpc, c.fake)
	c.client = memdv1connect.NewMemoryServiceClient(connect.NewClient(connectinprocess.New(c.rpc)))
	return c
}

func user(app, id string) *memdv1.Scope {
	return &memdv1.Scope{Owner: &memdv1.Scope_User{User: &memdv1.UserScope{App: app, UserId: id}}}
}

func shared(app string) *memdv1.Scope {
	return &memdv1.Scope{Owner: &memdv1.Scope_Shared{Shared: &memdv1.SharedScope{App: app}}}
}

func (c *chain) get() error {
	_, err := c.client.Get(context.Background(), &memdv1.GetRequest{Scope: user("app", "alice"), MemoryId: uuid.NewString()})
	return err
}

// answer is what a caller can see of an error.
type answer struct {
	code    connect.Code
	reason  string
	message string
}

func answerOf(t *testing.T, err error) answer {
	t.Helper()
	var e *connect.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is no answer", err)
	}
	return answer{e.Code(), errorInfo(t, e).GetReason(), e.Message()}
}

func TestChain_APanicIsAnOpaqueErrorAndLogsOnlyItsTypeAndStack(t *testing.T) {
	c := newChain()
	for name, value := range map[string]any{
		"a string":     "alice likes tea",
		"an error":     fmt.Errorf("alice likes %s", "tea"),
		"a type of us": struct{ text string }{"alice likes tea"},
	} {
		c.fake.get = func() error { panic(value) }
		if got := answerOf(t, c.get()); got != (answer{connect.CodeInternal, "INTERNAL", "internal error"}) {
			t.Errorf("%s: %v", name, got)
		}
		log := c.log.String()
		if strings.Contains(log, "tea") {
			t.Errorf("%s: its value is in the log: %s", name, log)
		}
		for _, want := range []string{fmt.Sprintf("%T", value), "chain_test.go", "panic of type"} {
			if !strings.Contains(log, want) {
				t.Errorf("%s: no %q in the log", name, want)
			}
		}
	}
	c.fake.get = func() error { return nil }
	if err := c.get(); err != nil {
		t.Errorf("the call after a panic: %v", err)
	}
	const want = `
# HELP memd_panics_total Calls that ended in a panic.
# TYPE memd_panics_total counter
memd_panics_total 3
`
	if err := testutil.GatherAndCompare(c.registry, strings.NewReader(want), "memd_panics_total"); err != nil {
		t.Error(err)
	}
}

func TestChain_LogsFaultsWithTheirChainAndRefusalsWithout(t *testing.T) {
	c := newChain()
	c.fake.get = func() error { return errors.New("opening the frontier: bad magic") }
	if got := answerOf(t, c.get()); got != (answer{connect.CodeInternal, "INTERNAL", "internal error"}) {
		t.Error(got)
	}
	if !strings.Contains(c.log.String(), "opening the frontier: bad magic") {
		t.Error("a fault's chain is not logged")
	}
	c.fake.get = func() error { return fmt.Errorf("reading for alice: %w", memd.ErrNotFound) }
	if got := answerOf(t, c.get()); got != (answer{connect.CodeNotFound, "NOT_FOUND", "not found"}) {
		t.Error(got)
	}
	if strings.Contains(c.log.String(), "alice") {
		t.Error("a refusal's chain is logged")
	}
}

func TestChain_CountsCallsByProcedureAndCode(t *testing.T) {
	c := newChain()
	c.fake.get = func() error { return nil }
	_, _ = c.get(), c.get()
	c.fake.get = func() error { return memd.ErrFenced }
	_ = c.get()
	const want = `
# HELP memd_calls_total Calls of the API that have ended, by procedure and code.
# TYPE memd_calls_total counter
memd_calls_total{code="failed_precondition",procedure="/memd.v1.MemoryService/Get"} 1
memd_calls_total{code="ok",procedure="/memd.v1.MemoryService/Get"} 2
`
	if err := testutil.GatherAndCompare(c.registry, strings.NewReader(want), "memd_calls_total"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(c.registry, "memd_call_seconds"); err != nil || n != 2 {
		t.Errorf("%d histograms, %v", n, err)
	}
}

// TestChain_DecodingErrorsDoNotQuoteTheRequest sends what a person types by
// hand.
func TestChain_DecodingErrorsDoNotQuoteTheRequest(t *testing.T) {
	c := newChain()
	mux := http.NewServeMux()
	connecthttp.Mount(mux, c.rpc)
	s := httptest.NewServer(mux)
	defer s.Close()
	for body, want := range map[string]string{
		`{"scope": {"user": {"app": "a", "user_id": 7777}}}`: `"the request could not be decoded at line 1:44"`,
		`{"memory_id": secret7777`:                           `"the request could not be decoded at line 1:15"`,
	} {
		res, err := http.Post(s.URL+memdv1connect.MemoryServiceGetProcedure, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		if err := errors.Join(err, res.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusBadRequest || !strings.Contains(string(got), want) || strings.Contains(string(got), "7777") {
			t.Errorf("%s: %d %s", body, res.StatusCode, got)
		}
	}
	if strings.Contains(c.log.String(), "7777") {
		t.Error("the request is in the log")
	}
}
