package cleartext_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/protobuf/proto"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/dev"
	"forgettable.dev/memd/tenants"
)

// Names of tenants and apps are in clear, and said to be.
const (
	dimension = 64
	tenant    = "canarytenant"
	app       = "canaryapp"
)

// world is a memd on a folder, with everything that it says collected.
type world struct {
	t        *testing.T
	dir      string
	d        *dev.Dev
	logger   *slog.Logger
	registry *prometheus.Registry
	spans    *tracetest.InMemoryExporter
	tracer   *sdktrace.TracerProvider
	answers  answers
	fed      *fed
	// canaries may be nowhere; told ones, what operators call things, stand in the
	// database and the ledger.
	canaries, told []canary
	// everyRole is a key of the tenant, root one of the installation.
	everyRole, root string

	memory    memdv1connect.MemoryServiceClient
	erasure   memdv1connect.ErasureServiceClient
	sessions  memdv1connect.SessionServiceClient
	admin     memdv1connect.AdminServiceClient
	artifacts memdv1connect.ArtifactServiceClient
}

func start(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), registry: prometheus.NewRegistry(), spans: tracetest.NewInMemoryExporter(), fed: newFed()}
	w.tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(w.spans))
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
	w.logger = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w.d, err = dev.Start(t.Context(), dev.Config{
		Dir: filepath.Join(w.dir, "memd"), Listen: "127.0.0.1:0", Logger: w.logger, Tracer: w.tracer, Registry: w.registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.d.Close(); err != nil {
			t.Errorf("closing memd: %v", err)
		}
	})
	w.keepLog()
	const every = auth.Agent | auth.Eraser | auth.Auditor | auth.Operator | auth.Approver
	w.root = w.key(auth.Installation, auth.Auditor|auth.Operator|auth.Approver)
	w.everyRole = w.key(w.tenant(tenant), every)
	client := w.client(w.everyRole)
	w.memory = memdv1connect.NewMemoryServiceClient(client)
	w.erasure = memdv1connect.NewErasureServiceClient(client)
	w.sessions = memdv1connect.NewSessionServiceClient(client)
	w.admin = memdv1connect.NewAdminServiceClient(client)
	w.artifacts = memdv1connect.NewArtifactServiceClient(client)
	return w
}

// keepLog has the server keep all of its write-ahead log: it writes over what was
// before a checkpoint sooner or later, and what was in it is to be searched.
func (w *world) keepLog() {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.d.Cluster.URL(dev.Database, ""))
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close(w.t.Context()) }()
	for _, sql := range []string{`ALTER SYSTEM SET wal_keep_size = '4GB'`, `SELECT pg_reload_conf()`} {
		if _, err := conn.Exec(w.t.Context(), sql); err != nil {
			w.t.Fatal(err)
		}
	}
}

// tenant makes a tenant.
func (w *world) tenant(name string) memd.TenantNo {
	w.t.Helper()
	p := tenants.DefaultPolicy()
	p.Dimension = dimension
	t, err := w.d.CreateTenantWith(w.t.Context(), name, "", p)
	if err != nil {
		w.t.Fatal(err)
	}
	return t.No
}

func (w *world) key(t memd.TenantNo, roles auth.Roles) string {
	w.t.Helper()
	secret, err := w.d.CreateKey(w.t.Context(), tenants.Tenant{No: t}, "test", roles)
	if err != nil {
		w.t.Fatal(err)
	}
	return secret
}

// client notes what it sends.
func (w *world) client(secret string) *connect.Client {
	return connect.NewClient(connecthttp.NewTransport(&http.Client{Transport: bearer(secret)}, "http://"+w.d.Address), w.fed.intercept)
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

// open returns a canary of what operators call things by.
func (w *world) open(kind string) string {
	s, c := word(kind)
	w.told = append(w.told, c)
	return strings.ToLower(s)
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

// TestInvariant1_NothingInClear says canaries through every field of every call
// and every way to fail, and looks for them in all that is left: the data
// directory with its write-ahead log, the server's log and memd's, metrics,
// traces, refusals, what others are answered, ledger, archives, the emulator's
// files, a dump and a base backup.
func TestInvariant1_NothingInClear(t *testing.T) {
	w := start(t)
	user, session := w.word("user"), w.word("session")
	w.throughEveryCall(user, session)
	w.throughArtifacts(user, session)
	w.throughSessions(user, session)
	w.throughExports(user)
	w.throughErasures()
	w.throughTargets()
	w.throughTenants()
	w.throughEveryFailure(user, session)
	w.throughEveryField()
	w.fed.complete(t)
	controls := w.controls()
	w.write("metrics", w.metrics())
	w.write("traces", w.traces())
	w.write("answers", w.answers.b.Bytes())
	// Another tenant, with every role, and an operator of the installation.
	w.write("others", w.answered(w.key(w.tenant("other"), auth.Agent|auth.Eraser|auth.Auditor|auth.Operator|auth.Approver)))
	w.write("operators", w.answered(w.key(auth.Installation, auth.Operator)))
	w.backups()

	all := slices.Clone(w.canaries)
	for _, c := range w.told {
		all = append(all, canary{"told " + c.name, c.forms})
	}
	for _, c := range controls {
		all = append(all, c.canary)
	}
	hits, files, size := search(t, all, w.dir, filepath.Dir(w.d.Cluster.DataDir()))
	t.Logf("%d canaries in %d files of %d MB", len(w.canaries), files, size>>20)
	for _, c := range controls {
		if missing := c.unfound(hits[c.canary.name]); len(missing) > 0 {
			t.Errorf("control: the search finds nothing in %v, where it was put", missing)
		}
		delete(hits, c.canary.name)
	}
	for kind, where := range hits {
		if strings.HasPrefix(kind, "told ") {
			where = slices.DeleteFunc(where, func(path string) bool {
				return !slices.Contains([]string{"/metrics", "/traces", "/answers", "/others"}, path)
			})
		}
		if len(where) > 0 {
			t.Errorf("%s in clear in %d files: %.300q", kind, len(where), where)
		}
	}
	// What the user is answered has it all: an answer is searched as well as a file.
	if found := newFinder(w.canaries).found(w.own(user)); !found["text"] || !found["vector"] {
		t.Errorf("control: in what the user is answered the search finds only %v", found)
	}
}

// traces are the spans with all that they carry.
func (w *world) traces() []byte {
	var b bytes.Buffer
	for _, s := range w.spans.GetSpans() {
		fmt.Fprintf(&b, "%s %+v %+v %+v %+v\n", s.Name, s.Attributes, s.Events, s.Status, s.Resource)
	}
	return b.Bytes()
}

// answered is what somebody is answered to whom nothing was said, asking every
// procedure that can be asked without knowing an id.
func (w *world) answered(secret string) []byte {
	w.t.Helper()
	var b bytes.Buffer
	good := 0
	for _, m := range methods() {
		if !strings.HasPrefix(string(m.Name()), "List") && !strings.HasPrefix(string(m.Name()), "Get") && !strings.HasPrefix(string(m.Name()), "Plan") {
			continue
		}
		body := `{}`
		if m.Input().Fields().ByName("tenant") != nil {
			body = `{"tenant":"` + tenant + `"}`
		}
		answer, ok := w.ask("/"+string(m.Parent().FullName())+"/"+string(m.Name()), secret, "json", []byte(body), false)
		b.Write(answer)
		if ok {
			good++
		}
	}
	if good < 3 {
		w.t.Errorf("only %d procedures answer somebody else, which proves little", good)
	}
	return b.Bytes()
}

// own is what the user is answered.
func (w *world) own(user string) []byte {
	w.t.Helper()
	found := good[*memdv1.ListResponse](w, "List")(w.memory.List(w.t.Context(), &memdv1.ListRequest{Scope: userScope(user), IncludeVectors: true}))
	b, err := proto.Marshal(found)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
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
