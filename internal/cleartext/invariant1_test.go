package cleartext_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/dev"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/tenants"
)

const (
	dimension = 64
	app       = "cleartext-app" // names of apps are in clear, and say so
)

// world is a memd on a folder, with everything that it says collected.
type world struct {
	t         *testing.T
	dir       string
	d         *dev.Dev
	spans     *tracetest.InMemoryExporter
	answers   answers
	canaries  []canary
	memory    memdv1connect.MemoryServiceClient
	erasure   memdv1connect.ErasureServiceClient
	sessions  memdv1connect.SessionServiceClient
	admin     memdv1connect.AdminServiceClient
	artifacts memdv1connect.ArtifactServiceClient
}

func start(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), spans: tracetest.NewInMemoryExporter()}
	// PostgreSQL's user must get through to the cluster.
	for p := w.dir; strings.HasPrefix(p, os.TempDir()) && p != os.TempDir(); p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// To append: the control writes into it too, and must not be written over.
	log, err := os.OpenFile(filepath.Join(w.dir, "memd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	w.d, err = dev.Start(t.Context(), dev.Config{
		Dir: filepath.Join(w.dir, "memd"), Listen: "127.0.0.1:0",
		Logger: slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Tracer: sdktrace.NewTracerProvider(sdktrace.WithSyncer(w.spans)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.d.Close(); err != nil {
			t.Errorf("closing memd: %v", err)
		}
	})
	p := tenants.DefaultPolicy()
	p.Dimension = dimension
	tenant, err := w.d.CreateTenantWith(t.Context(), "cleartext", "", p)
	if err != nil {
		t.Fatal(err)
	}
	key, err := w.d.CreateKey(t.Context(), tenant, "test", auth.Agent|auth.Eraser|auth.Operator)
	if err != nil {
		t.Fatal(err)
	}
	client := connect.NewClient(connecthttp.NewTransport(&http.Client{Transport: bearer(key)}, "http://"+w.d.Address))
	w.memory = memdv1connect.NewMemoryServiceClient(client)
	w.erasure = memdv1connect.NewErasureServiceClient(client)
	w.sessions = memdv1connect.NewSessionServiceClient(client)
	w.admin = memdv1connect.NewAdminServiceClient(client)
	w.artifacts = memdv1connect.NewArtifactServiceClient(client)
	return w
}

type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// answers collects the errors that callers are told.
type answers struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (a *answers) add(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fmt.Fprintf(&a.b, "%v\n", err)
	var e *connect.Error
	if errors.As(err, &e) {
		for _, d := range e.Details() {
			a.b.Write(d.Value)
		}
	}
}

func (w *world) word(kind string) string {
	s, c := word(kind)
	w.canaries = append(w.canaries, c)
	return s
}

func (w *world) direction() []float32 {
	v, c := direction(dimension)
	w.canaries = append(w.canaries, c)
	return v
}

func userScope(user string) *memdv1.Scope {
	return &memdv1.Scope{Owner: &memdv1.Scope_User{User: &memdv1.UserScope{App: app, UserId: user}}}
}

var sharedScope = &memdv1.Scope{Owner: &memdv1.Scope_Shared{Shared: &memdv1.SharedScope{App: app}}}

// good goes through a call that must succeed; bad through one that must not.
func good[T any](w *world, what string) func(T, error) T {
	return func(v T, err error) T {
		w.t.Helper()
		if err != nil {
			w.t.Fatalf("%s: %v", what, err)
		}
		return v
	}
}

func bad[T any](w *world, what string) func(T, error) {
	return func(_ T, err error) {
		w.t.Helper()
		if err == nil {
			w.t.Fatalf("%s succeeded", what)
		}
		w.answers.add(err)
	}
}

// TestInvariant1_NothingInClear says canaries through every call and every way
// to fail, and looks for them in all that is left: the data directory with its
// write-ahead log, the server's log and memd's, metrics, traces, answers,
// ledger, the emulator's file, a dump and a base backup. Each place is first
// shown to be one where the search finds what is stored without sealing.
func TestInvariant1_NothingInClear(t *testing.T) {
	w := start(t)
	user, session := w.word("user"), w.word("session")
	w.throughEveryCall(user, session)
	w.throughArtifacts(user, session)
	w.throughSessions(user, session)
	w.throughEveryFailure(user, session)
	control := w.control()

	metrics := w.metrics()
	var spans bytes.Buffer
	for _, s := range w.spans.GetSpans() {
		fmt.Fprintf(&spans, "%s %+v %+v %+v %+v\n", s.Name, s.Attributes, s.Events, s.Status, s.Resource)
	}
	if spans.Len() < 1000 || len(metrics) < 1000 || w.answers.b.Len() < 500 {
		t.Fatalf("hardly anything to search: %d bytes of traces, %d of metrics, %d of answers", spans.Len(), len(metrics), w.answers.b.Len())
	}
	w.backups()
	w.write("metrics", metrics)
	w.write("traces", spans.Bytes())
	w.write("answers", w.answers.b.Bytes())

	roots := []string{w.dir, w.d.Cluster.DataDir()}
	hits, files, size := search(t, w.canaries, roots...)
	for kind, where := range hits {
		t.Errorf("%s in clear in %d files: %.300q", kind, len(where), where)
	}
	t.Logf("%d canaries in %d files of %d MB", len(w.canaries), files, size>>20)

	// The control: without sealing, the same search finds them everywhere.
	places := map[string]bool{"base/": false, "pg_wal/": false, "plain.sql": false, "basebackup/": false, "memd.log": false}
	plain, _, _ := search(t, control, roots...)
	for kind, where := range plain {
		t.Logf("control: %s found in %d files", kind, len(where))
		for _, path := range where {
			for p := range places {
				places[p] = places[p] || strings.Contains(path, p)
			}
		}
	}
	if len(plain) != len(map[string]bool{"text": true, "vector": true}) {
		t.Errorf("control: only %v found", plain)
	}
	for p, ok := range places {
		if !ok {
			t.Errorf("control: the search finds nothing in %s, where it was put", p)
		}
	}
}

// throughEveryCall uses every call of the API with content.
func (w *world) throughEveryCall(user, session string) {
	ctx := w.t.Context()
	event := w.word("event")
	added := good[*memdv1.AddResponse](w, "Add")(w.memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{
		{Scope: userScope(user), SessionId: session, Kind: memdv1.Kind_KIND_RAW, Text: w.word("text"), Vector: w.direction(),
			Metadata: map[string]string{w.word("key"): w.word("value")}, EventId: event, SourceTime: timestamppb.Now()},
		{Scope: userScope(user), SessionId: session, Kind: memdv1.Kind_KIND_RAW, Text: strings.Repeat(w.word("long")+" ", 200)},
		{Scope: sharedScope, Contributor: &memdv1.Session{UserId: user, SessionId: session}, Kind: memdv1.Kind_KIND_FACT, Text: w.word("text"), Vector: w.direction()},
	}})).GetResults()
	good[*memdv1.AddResponse](w, "Add derived")(w.memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{{
		Scope: userScope(w.word("user")), Kind: memdv1.Kind_KIND_SUMMARY, Text: w.word("text"),
		Sources: []*memdv1.Source{{Source: &memdv1.Source_MemoryId{MemoryId: added[0].GetMemoryId()}}},
	}}}))
	good[*memdv1.AddResponse](w, "Add again")(w.memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{{
		Scope: userScope(user), SessionId: session, Kind: memdv1.Kind_KIND_RAW, Text: w.word("text"), EventId: event,
	}}}))
	found := good[*memdv1.SearchResponse](w, "Search")(w.memory.Search(ctx, &memdv1.SearchRequest{
		Scope: userScope(user), Text: w.word("query"), TopK: 5, IncludeShared: true, IncludeVectors: true,
	}))
	if len(found.GetHits()) == 0 {
		w.t.Fatal("Search finds nothing: the test would be vacuous")
	}
	good[*memdv1.SearchResponse](w, "Search")(w.memory.Search(ctx, &memdv1.SearchRequest{
		Scope: userScope(user), Vector: w.direction(), Filter: &memdv1.Filter{SessionIds: []string{session}, Metadata: map[string]string{w.word("key"): w.word("value")}},
	}))
	good[*memdv1.ListResponse](w, "List")(w.memory.List(ctx, &memdv1.ListRequest{Scope: userScope(user), PageSize: 1, IncludeVectors: true}))
	got := good[*memdv1.GetResponse](w, "Get")(w.memory.Get(ctx, &memdv1.GetRequest{Scope: userScope(user), MemoryId: added[1].GetMemoryId(), IncludeVector: true}))
	good[*memdv1.UpdateResponse](w, "Update")(w.memory.Update(ctx, &memdv1.UpdateRequest{
		Scope: userScope(user), MemoryId: added[1].GetMemoryId(), ExpectedVersion: got.GetMemory().GetVersion(),
		Text: w.word("text"), Vector: w.direction(), Metadata: map[string]string{w.word("key"): w.word("value")},
	}))
	good[*memdv1.DeleteResponse](w, "Delete")(w.memory.Delete(ctx, &memdv1.DeleteRequest{Scope: userScope(user), MemoryId: added[2].GetMemoryId()}))
	other, gone := w.word("user"), w.word("session")
	good[*memdv1.AddResponse](w, "Add")(w.memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{
		{Scope: userScope(other), SessionId: gone, Kind: memdv1.Kind_KIND_RAW, Text: w.word("text"), Vector: w.direction()},
	}}))
	good[*memdv1.ForgetSessionResponse](w, "ForgetSession")(w.erasure.ForgetSession(ctx, &memdv1.ForgetSessionRequest{
		App: app, UserId: other, SessionId: gone, RequestId: uuid.NewString(),
	}))
	good[*memdv1.ForgetUserResponse](w, "ForgetUser")(w.erasure.ForgetUser(ctx, &memdv1.ForgetUserRequest{
		App: app, UserId: other, RequestId: uuid.NewString(),
	}))
	bad[*memdv1.AddResponse](w, "Add to a forgotten session")(w.memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{
		{Scope: userScope(other), SessionId: gone, Kind: memdv1.Kind_KIND_RAW, Text: w.word("text"), SourceTime: timestamppb.Now()},
	}}))
}

// throughEveryFailure is refused in every way there is.
func (w *world) throughEveryFailure(user, session string) {
	ctx := w.t.Context()
	row := func() *memdv1.Row {
		return &memdv1.Row{Scope: userScope(user), SessionId: session, Kind: memdv1.Kind_KIND_RAW, Text: w.word("text"), Vector: w.direction()}
	}
	for what, spoil := range map[string]func(r *memdv1.Row){
		"a long user id":    func(r *memdv1.Row) { r.Scope = userScope(strings.Repeat(w.word("user"), 30)) },
		"a long session id": func(r *memdv1.Row) { r.SessionId = strings.Repeat(w.word("session"), 30) },
		"a long event id":   func(r *memdv1.Row) { r.EventId = strings.Repeat(w.word("event"), 30) },
		"a long text":       func(r *memdv1.Row) { r.Text = strings.Repeat(w.word("text"), 10_000) },
		"another dimension": func(r *memdv1.Row) { r.Vector = r.Vector[:32] },
		"a zero vector":     func(r *memdv1.Row) { r.Vector = make([]float32, dimension) },
		"large metadata":    func(r *memdv1.Row) { r.Metadata = map[string]string{"k": strings.Repeat(w.word("value"), 1000)} },
		"sources of a raw row": func(r *memdv1.Row) {
			r.Sources = []*memdv1.Source{{Source: &memdv1.Source_MemoryId{MemoryId: uuid.NewString()}}}
		},
		"a source that is gone": func(r *memdv1.Row) {
			r.Kind = memdv1.Kind_KIND_FACT
			r.Sources = []*memdv1.Source{{Source: &memdv1.Source_MemoryId{MemoryId: uuid.NewString()}}}
		},
		"a time to come":         func(r *memdv1.Row) { r.SourceTime = timestamppb.New(time.Now().Add(time.Hour)) },
		"an expiry that is past": func(r *memdv1.Row) { r.ExpiresAt = timestamppb.New(time.Unix(1, 0)) },
		"a memory id that is not": func(r *memdv1.Row) {
			r.Kind = memdv1.Kind_KIND_FACT
			r.Sources = []*memdv1.Source{{Source: &memdv1.Source_MemoryId{MemoryId: w.word("id")}}}
		},
		"a NUL in a user id": func(r *memdv1.Row) { r.Scope = userScope(w.word("user") + "\x00") },
	} {
		r := row()
		spoil(r)
		if _, err := w.memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{r}}); err != nil {
			w.answers.add(err)
		} else if what != "a NUL in a user id" {
			w.t.Errorf("Add with %s succeeded", what)
		}
	}
	bad[*memdv1.GetResponse](w, "Get")(w.memory.Get(ctx, &memdv1.GetRequest{Scope: userScope(user), MemoryId: w.word("id")}))
	bad[*memdv1.ListResponse](w, "List")(w.memory.List(ctx, &memdv1.ListRequest{Scope: userScope(user), PageToken: w.word("token")}))
	bad[*memdv1.SearchResponse](w, "Search")(w.memory.Search(ctx, &memdv1.SearchRequest{Scope: userScope(user), Text: w.word("query"), Vector: w.direction()[:3]}))
	bad[*memdv1.ForgetUserResponse](w, "ForgetUser")(w.erasure.ForgetUser(ctx, &memdv1.ForgetUserRequest{App: app, UserId: user, RequestId: w.word("request")}))
	bad[*memdv1.GetTenantResponse](w, "GetTenant")(w.admin.GetTenant(ctx, &memdv1.GetTenantRequest{Name: w.word("tenant")}))

	w.failedStatements()

	// The key service is away, for a user of whose tenant nothing is cached: a
	// fresh key is needed after every rotation.
	stop := w.d.KMS.Inject(kmsemu.Fault{Method: "Decrypt", Code: codes.Unavailable, Times: 1_000_000})
	good[*memdv1.ForgetUserResponse](w, "ForgetUser")(w.forgetLater(w.word("user")))
	stop()
	bad[*memdv1.AddResponse](w, "an Add that is cut off")(func() (*memdv1.AddResponse, error) {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return w.memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{row()}})
	}())
	// Bytes that are no message at all.
	for _, kind := range []string{"application/json", "application/proto", "application/grpc", "text/plain"} {
		r, err := http.Post("http://"+w.d.Address+"/memd.v1.MemoryService/Add", kind, strings.NewReader(`{"rows":[{"text":"`+w.word("text")+`", "kind":`))
		if err != nil {
			w.t.Fatal(err)
		}
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		w.answers.add(errors.New(string(b)))
	}
}

// forgetLater forgets somebody while the key service is away for a moment.
func (w *world) forgetLater(user string) (*memdv1.ForgetUserResponse, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 300*time.Millisecond)
	defer cancel()
	r, err := w.erasure.ForgetUser(ctx, &memdv1.ForgetUserRequest{App: app, UserId: user, RequestId: uuid.NewString()})
	if err != nil {
		w.answers.add(err)
		return nil, nil
	}
	return r, nil
}

// failedStatements fails in the database with content in hand: whatever the
// server and the driver say of it is logged.
func (w *world) failedStatements() {
	ctx := w.t.Context()
	log, err := os.OpenFile(filepath.Join(w.dir, "memd.log"), os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	defer log.Close()
	for _, sql := range []string{
		`SELECT $1::text::int`, `SELECT 1/0 WHERE $1::text <> ''`, `SELECT $1::text::uuid`, `SELECT $1::text::jsonb`,
		`INSERT INTO memd.subjects (tenant_no, subject_no, app, kind, user_ref, sealed_user_id, admitted_at) VALUES (1, 1, $1, 9, '', '', now())`,
		`INSERT INTO memd.principals (key_id, name, roles, secret_hash, created_at) VALUES (gen_random_uuid(), $1, 1, '', now())`,
		`DO $$ BEGIN RAISE EXCEPTION 'no'; END $$; -- $1`,
	} {
		err := w.d.Server.Pool.With(ctx, func(db pg.DB) error {
			_, err := db.Exec(ctx, sql, w.word("parameter"))
			return err
		})
		if err == nil {
			w.t.Errorf("%s succeeded", sql)
		}
		w.answers.add(err)
		fmt.Fprintln(log, err)
	}
}

// control stores canaries without sealing, in a table of the same cluster and
// in the log, and returns them.
func (w *world) control() []canary {
	text, a := word("text")
	v, b := direction(dimension)
	conn, err := pgx.Connect(w.t.Context(), w.d.Cluster.URL(dev.Database, ""))
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close(w.t.Context())
	var raw []byte
	for i := range b.forms[:1] {
		raw = append(raw, b.forms[i]...)
	}
	_ = v
	_, err = conn.Exec(w.t.Context(), `CREATE TABLE public.control (body text, vector bytea)`)
	if err == nil {
		_, err = conn.Exec(w.t.Context(), `INSERT INTO public.control VALUES ($1, $2)`, text, raw)
	}
	if err == nil {
		_, err = conn.Exec(w.t.Context(), `CHECKPOINT`)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(w.dir, "memd.log"), os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(log, text)
		log.Close()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return []canary{a, b}
}

func (w *world) metrics() []byte {
	r, err := http.Get("http://" + w.d.Address + "/metrics")
	if err != nil {
		w.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		w.t.Fatalf("metrics: %v, %v", r.Status, err)
	}
	return b
}

// backups takes a dump, in text and not compressed, and a base backup with its
// log.
func (w *world) backups() {
	url := w.d.Cluster.URL(dev.Database, "")
	for _, args := range [][]string{
		{"pg_dump", "--no-unlogged-table-data", "--file=" + filepath.Join(w.dir, "plain.sql"), url},
		{"pg_basebackup", "--wal-method=stream", "--checkpoint=fast", "--pgdata=" + filepath.Join(w.dir, "basebackup"), "--dbname=" + url},
	} {
		cmd := exec.CommandContext(w.t.Context(), filepath.Join(w.d.Cluster.Programs(), args[0]), args[1:]...)
		if out, err := cmd.CombinedOutput(); err != nil {
			w.t.Fatalf("%s: %v\n%s", args[0], err, out)
		}
	}
}

func (w *world) write(name string, b []byte) {
	if err := os.WriteFile(filepath.Join(w.dir, name), b, 0o600); err != nil {
		w.t.Fatal(err)
	}
}
