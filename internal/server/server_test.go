package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	connectv1 "connectrpc.com/connect"
	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/embed"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

// TestServer_SpeaksEveryProtocolOnOnePort adds by one protocol and finds by all.
func TestServer_SpeaksEveryProtocolOnOnePort(t *testing.T) {
	in := setup(t)
	s := in.serve()
	_, secret := in.key(in.tenant("acme").No, auth.Agent)
	for name, options := range map[string][]connecthttp.Option{
		"connect":           nil,
		"connect with json": {connecthttp.WithProtoJSON()},
		"grpc":              {connecthttp.WithGRPC()},
		"grpc-web":          {connecthttp.WithGRPCWeb()},
		"grpc with gzip":    {connecthttp.WithGRPC(), connecthttp.WithSendGzip()},
	} {
		t.Run(name, func(t *testing.T) {
			c := memdv1connect.NewMemoryServiceClient(s.client(secret, options...))
			alice := user("chat", "alice of "+name)
			added, err := c.Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{raw(alice, "she likes green tea")}})
			if err != nil {
				t.Fatal(err)
			}
			found, err := c.Search(t.Context(), &memdv1.SearchRequest{Scope: alice, Text: "green tea"})
			if err != nil {
				t.Fatal(err)
			}
			if len(found.GetHits()) != 1 || found.GetHits()[0].GetMemory().GetMemoryId() != added.GetResults()[0].GetMemoryId() {
				t.Errorf("found %v", found)
			}
			_, err = c.Get(t.Context(), &memdv1.GetRequest{Scope: alice, MemoryId: uuid.NewString()})
			if got := answerOf(t, err); got != (answer{connect.CodeNotFound, "NOT_FOUND", "not found"}) {
				t.Errorf("an error arrives as %v", got)
			}
		})
	}
}

// TestServer_AnswersPlainHTTP is what the README's curl does, over HTTP/1.1.
func TestServer_AnswersPlainHTTP(t *testing.T) {
	in := setup(t)
	s := in.serve()
	_, secret := in.key(in.tenant("acme").No, auth.Agent)
	post := func(procedure, body string, out any) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+procedure, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "bearer "+secret)
		status, answer := do(t, req)
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, answer)
		}
		if err := json.Unmarshal(answer, out); err != nil {
			t.Fatal(err)
		}
	}
	var added struct {
		Results []struct{ Status, Version string }
	}
	post("/memd.v1.MemoryService/Add", `{"rows": [{"scope": {"user": {"app": "chat", "user_id": "alice"}},
		"session_id": "s1", "kind": "KIND_RAW", "text": "She lives at 12 Elm Street.", "source_time": "2026-03-01T12:00:00Z"}]}`, &added)
	if len(added.Results) != 1 || added.Results[0].Status != "ADD_STATUS_CREATED" || added.Results[0].Version != "1" {
		t.Errorf("added %+v", added)
	}
	var found struct {
		Hits []struct {
			Memory struct {
				Text       string
				SessionIDs []string `json:"sessionIds"`
			}
		}
	}
	post("/memd.v1.MemoryService/Search", `{"scope": {"user": {"app": "chat", "userId": "alice"}}, "text": "elm street", "topK": 3}`, &found)
	if len(found.Hits) != 1 || found.Hits[0].Memory.Text != "She lives at 12 Elm Street." || fmt.Sprint(found.Hits[0].Memory.SessionIDs) != "[s1]" {
		t.Errorf("found %+v", found)
	}
}

// TestServer_RefusesJSONItDoesNotKnow: dropping a misspelt filter would match
// everything, and dropping a misspelt delete_derived would keep what was to go.
func TestServer_RefusesJSONItDoesNotKnow(t *testing.T) {
	in := setup(t)
	s := in.serve()
	_, secret := in.key(in.tenant("acme").No, auth.Agent)
	const scope = `"scope": {"user": {"app": "chat", "userId": "alice"}}`
	memoryID := uuid.NewString()
	for name, tc := range map[string]struct {
		procedure, body string
		status          int
		reason          string
	}{
		"a misspelt filter":     {"Search", `{` + scope + `, "text": "tea", "filter": {"sesionIds": ["s1"]}}`, http.StatusBadRequest, "MALFORMED"},
		"the filter as it is":   {"Search", `{` + scope + `, "text": "tea", "filter": {"sessionIds": ["s1"], "kinds": ["KIND_RAW"]}}`, http.StatusOK, ""},
		"a kind that is none":   {"Search", `{` + scope + `, "text": "tea", "filter": {"kinds": ["KIND_FOO"]}}`, http.StatusBadRequest, "MALFORMED"},
		"a number that is none": {"Search", `{` + scope + `, "text": "tea", "filter": {"kinds": [77]}}`, http.StatusBadRequest, "INVALID"},
		"a misspelt option":     {"Delete", `{` + scope + `, "memoryId": "` + memoryID + `", "delete_derivd": true}`, http.StatusBadRequest, "MALFORMED"},
		"the option as it is":   {"Delete", `{` + scope + `, "memoryId": "` + memoryID + `", "delete_derived": true}`, http.StatusOK, ""},
		"a field at the top":    {"List", `{` + scope + `, "sesionIds": ["s1"]}`, http.StatusBadRequest, "MALFORMED"},
		"no object":             {"List", `[]`, http.StatusBadRequest, "MALFORMED"},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/memd.v1.MemoryService/"+tc.procedure, strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer "+secret)
			status, answer := do(t, req)
			if status != tc.status || !strings.Contains(string(answer), tc.reason) {
				t.Errorf("%d %s, want %d %s", status, answer, tc.status, tc.reason)
			}
			if strings.Contains(string(answer), "sesion") || strings.Contains(string(answer), "derivd") || strings.Contains(string(answer), "FOO") {
				t.Errorf("the answer repeats the request: %s", answer)
			}
		})
	}
}

func do(t *testing.T, req *http.Request) (int, []byte) {
	t.Helper()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, body
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	status, body := do(t, req)
	return status, string(body)
}

func TestServer_HealthReflectionAndMetricsNeedNoKey(t *testing.T) {
	in := setup(t)
	s := in.serve()
	for name, options := range map[string][]connectv1.ClientOption{
		"connect": nil, "grpc": {connectv1.WithGRPC()}, "grpc-web": {connectv1.WithGRPCWeb()},
	} {
		health := grpchealth.NewClient(s.http, s.url, options...)
		for _, service := range []string{"", memdv1connect.MemoryServiceName} {
			res, err := health.Check(t.Context(), &grpchealth.CheckRequest{Service: service})
			if err != nil || res.Status != grpchealth.StatusServing {
				t.Errorf("%s: service %q: %v, %v", name, service, res, err)
			}
		}
		if _, err := health.Check(t.Context(), &grpchealth.CheckRequest{Service: "nobody's"}); connectv1.CodeOf(err) != connectv1.CodeNotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	stream := grpcreflect.NewClient(s.http, s.url, connectv1.WithGRPC()).NewStream(t.Context())
	names, err := stream.ListServices()
	if _, e := stream.Close(); err != nil || e != nil || len(names) != 7 {
		t.Errorf("reflection lists %v, %v, %v", names, err, e)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, body := get(t, s.url+path); status != http.StatusOK || body != "ok\n" {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, body := get(t, s.url+"/metrics"); status != http.StatusOK || !strings.Contains(body, "memd_calls_in_flight") {
		t.Errorf("metrics: %d %s", status, body)
	}
	if status, _ := get(t, s.url+"/memd.v1.MemoryService/Search?encoding=json&message=%7B%7D"); status != http.StatusMethodNotAllowed {
		t.Errorf("a search by GET, whose URL would be logged: %d", status)
	}
}

func TestServer_RefusesCallsWithoutAGoodKeyBeforeReadingThem(t *testing.T) {
	in := setup(t)
	s := in.serve()
	want := answer{connect.CodeUnauthenticated, "UNAUTHENTICATED", "no valid API key"}
	for name, secret := range map[string]string{
		"no key": "", "not a key": "hunter2", "an unknown key": "memd_" + strings.Repeat("a", 52),
	} {
		// The request is invalid too, which must not be said to strangers.
		_, err := s.memory(secret).Search(t.Context(), &memdv1.SearchRequest{})
		if got := answerOf(t, err); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if strings.Contains(s.log.String(), "hunter2") {
		t.Error("what was sent as a key is in the log")
	}
}

func TestServer_RevokesOnEveryReplicaAtOnce(t *testing.T) {
	in := setup(t)
	first, second := in.serve(), in.serve()
	acme := in.tenant("acme")
	_, operator := in.key(acme.No, auth.Operator)
	key, agent := in.key(acme.No, auth.Agent)
	search := func(s *instance) error {
		_, err := s.memory(agent).Search(t.Context(), &memdv1.SearchRequest{Scope: user("chat", "alice"), Text: "tea"})
		return err
	}
	for _, s := range []*instance{first, second, first, second} {
		if err := search(s); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := first.admin(operator).RevokeApiKey(t.Context(), &memdv1.RevokeApiKeyRequest{KeyId: key.ID.String()}); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*instance{"first": first, "second": second} {
		if got := answerOf(t, search(s)); got.code != connect.CodeUnauthenticated {
			t.Errorf("on the %s replica: %v", name, got)
		}
	}
}

func TestServer_SuspensionStopsAgentsWithTheNextCall(t *testing.T) {
	in := setup(t)
	s := in.serve()
	acme := in.tenant("acme")
	_, agent := in.key(acme.No, auth.Agent)
	search := func() error {
		_, err := s.memory(agent).Search(t.Context(), &memdv1.SearchRequest{Scope: user("chat", "alice"), Text: "tea"})
		return err
	}
	if err := search(); err != nil {
		t.Fatal(err)
	}
	err := in.db.Pool("").With(t.Context(), func(db pg.DB) error {
		_, err := db.Exec(t.Context(), `UPDATE memd.tenants SET state = $1 WHERE tenant_no = $2`, int16(tenants.StateSuspended), int64(acme.No))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := answerOf(t, search()); got.reason != "TENANT_INACTIVE" {
		t.Error(got)
	}
}

func TestServer_LimitsTheSizeOfARequest(t *testing.T) {
	in := setup(t)
	s := in.serve()
	_, secret := in.key(in.tenant("acme").No, auth.Agent)
	var rows []*memdv1.Row
	for range memd.MaxBatchBytes/memd.MaxTextBytes + 1 {
		rows = append(rows, raw(user("chat", "alice"), strings.Repeat("x", memd.MaxTextBytes)))
	}
	for name, options := range map[string][]connecthttp.Option{
		"connect": nil, "grpc": {connecthttp.WithGRPC()}, "connect, compressed a thousandfold": {connecthttp.WithSendGzip()},
	} {
		c := memdv1connect.NewMemoryServiceClient(s.client(secret, options...))
		_, err := c.Add(t.Context(), &memdv1.AddRequest{Rows: rows})
		if got := answerOf(t, err); got.code != connect.CodeResourceExhausted || got.reason != "TOO_LARGE" {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestServer_FinishesCallsUnderWayAndThenStops(t *testing.T) {
	in := setup(t)
	s := in.serve()
	_, operator := in.key(auth.Installation, auth.Operator)
	made := make(chan error, 1)
	go func() {
		_, err := s.admin(operator).CreateTenant(context.Background(), &memdv1.CreateTenantRequest{Name: "acme"})
		made <- err
	}()
	acme := in.awaitCreating()
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	// The call waits for the worker; the server waits for the call.
	if err := in.finish(acme); err != nil {
		t.Fatal(err)
	}
	if err := <-made; err != nil {
		t.Errorf("the call under way: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("stopping: %v", err)
	}
	if _, err := s.admin(operator).ListTenants(t.Context(), &memdv1.ListTenantsRequest{}); err == nil {
		t.Error("a call after the end is answered")
	}
}

// awaitCreating returns the first tenant that is announced, as a worker does.
func (in *installation) awaitCreating() tenants.Tenant {
	in.t.Helper()
	ctx := in.t.Context()
	conn, err := in.worker.Conn(ctx)
	if err != nil {
		in.t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "LISTEN memd_work"); err != nil {
		in.t.Fatal(err)
	}
	for {
		found, err := tenants.Creating(ctx, conn)
		if err != nil {
			in.t.Fatal(err)
		}
		if len(found) > 0 {
			return found[0]
		}
		if _, err := conn.Conn().WaitForNotification(ctx); err != nil {
			in.t.Fatal(err)
		}
	}
}

// TestServer_LogsNobody calls with ids and texts that can be recognised, then
// looks for them in everything that the server wrote.
func TestServer_LogsNobody(t *testing.T) {
	in := setup(t)
	s := in.serve()
	_, secret := in.key(in.tenant("acme").No, auth.Agent)
	c := s.memory(secret)
	canaries := []string{"canary-user", "canary-session", "canary-text", "canary-key", "canary-value", "canary-event"}
	scope := user("chat", "canary-user")
	row := raw(scope, "canary-text")
	row.SessionId, row.EventId, row.Metadata = "canary-session", "canary-event", map[string]string{"canary-key": "canary-value"}
	added, err := c.Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
	if err != nil {
		t.Fatal(err)
	}
	id := added.GetResults()[0].GetMemoryId()
	_, err = c.Search(t.Context(), &memdv1.SearchRequest{Scope: scope, Text: "canary-text"})
	_, bad := c.Search(t.Context(), &memdv1.SearchRequest{Scope: scope, Vector: []float32{1}, Text: "canary-text"})
	_, gone := c.Get(t.Context(), &memdv1.GetRequest{Scope: user("chat", "canary-user-2"), MemoryId: id})
	_, conflict := c.Update(t.Context(), &memdv1.UpdateRequest{Scope: scope, MemoryId: id, ExpectedVersion: 9, Text: "canary-text-2"})
	if err != nil || bad == nil || gone == nil || conflict == nil {
		t.Fatal(err, bad, gone, conflict)
	}
	_, metrics := get(t, s.url+"/metrics")
	spans := s.spans.GetSpans()
	if len(spans) < 5 || !strings.Contains(fmt.Sprintf("%+v", spans), "memd.v1.MemoryService/Update") {
		t.Errorf("%d spans", len(spans))
	}
	for _, canary := range canaries {
		for where, text := range map[string]string{
			"the log": s.log.String(), "the metrics": metrics, "a trace": fmt.Sprintf("%+v", spans), "an answer": fmt.Sprintf("%v %v %v", bad, gone, conflict),
		} {
			if strings.Contains(text, canary) {
				t.Errorf("%s is in %s", canary, where)
			}
		}
	}
	if !bytes.Contains([]byte(s.log.String()), []byte(`"procedure":"/memd.v1.MemoryService/Update"`)) {
		t.Error("the log says nothing at all")
	}
}

func TestTenants_KnowTheEmbeddersOfEmbed(t *testing.T) {
	if tenants.MinLexicalDimension != embed.MinDimension {
		t.Error("the least dimension of a lexical policy is not the embedder's")
	}
	for _, name := range []string{tenants.EmbedderLexical, tenants.EmbedderNone} {
		if _, err := embed.New(name, 384, embed.Config{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
