package server_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc/codes"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred/kmsemu"
)

// closeDatabase lets nobody in and throws everybody out.
func (in *installation) closeDatabase() {
	in.t.Helper()
	conn, err := pgx.Connect(in.t.Context(), strings.Replace(in.db.URL(""), in.db.Name, "postgres", 1))
	if err != nil {
		in.t.Fatal(err)
	}
	defer func() { _ = conn.Close(in.t.Context()) }()
	for _, sql := range []string{
		"ALTER DATABASE " + in.db.Name + " ALLOW_CONNECTIONS false",
		"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '" + in.db.Name + "'",
	} {
		if _, err := conn.Exec(in.t.Context(), sql); err != nil {
			in.t.Fatal(err)
		}
	}
}

func TestOutage_NoDatabase(t *testing.T) {
	in := setup(t)
	_, secret := in.key(in.tenant("acme").No, auth.Agent)
	s := in.serve()
	if status, _ := get(t, s.url+"/readyz"); status != http.StatusOK {
		t.Errorf("ready with a database: %d", status)
	}
	in.closeDatabase()
	_, err := s.memory(secret).Search(t.Context(), &memdv1.SearchRequest{Scope: user("chat", "alice"), Text: "tea"})
	want := answer{connect.CodeUnavailable, "DATABASE_UNAVAILABLE", "the database is unavailable"}
	if got := answerOf(t, err); got != want {
		t.Error(got)
	}
	if status, body := get(t, s.url+"/readyz"); status != http.StatusServiceUnavailable || strings.Contains(body, "SQLSTATE") {
		t.Errorf("ready without a database: %d %s", status, body)
	}
	if status, _ := get(t, s.url+"/healthz"); status != http.StatusOK {
		t.Errorf("the process itself is well: %d", status)
	}
	if err := s.stop(); !errors.Is(err, memd.ErrDatabaseUnavailable) {
		t.Errorf("stopping, which cannot sign off: %v", err)
	}
}

func TestOutage_NoConnectionInTime(t *testing.T) {
	in := setup(t)
	_, secret := in.key(in.tenant("acme").No, auth.Agent)
	pool := in.db.Open(pg.Config{URL: in.db.URL("memd_app"), MaxConns: 4, AcquireTimeout: 50 * time.Millisecond})
	s := in.serveWith(pool)
	for range 4 {
		conn, err := pool.Raw().Acquire(t.Context()) // Waits for those of the server to come back.
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
	_, err := s.memory(secret).Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{raw(user("chat", "alice"), "tea")}})
	want := answer{connect.CodeResourceExhausted, "DATABASE_BUSY", "no database connection became free in time; nothing was written"}
	if got := answerOf(t, err); got != want {
		t.Error(got)
	}
}

// TestOutage_NoKeyService: no key, no write, and no row that only looks like
// one.
func TestOutage_NoKeyService(t *testing.T) {
	in := setup(t)
	_, secret := in.key(in.tenant("acme").No, auth.Agent)
	s := in.serve()
	back := in.kms.Server.Inject(kmsemu.Fault{Method: "Decrypt", Code: codes.Unavailable})
	add := func() error {
		_, err := s.memory(secret).Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{raw(user("chat", "alice"), "tea")}})
		return err
	}
	if got := answerOf(t, add()); got.code != connect.CodeUnavailable || got.reason != "KEY_UNAVAILABLE" {
		t.Error(got)
	}
	var rows int
	err := in.worker.With(t.Context(), func(db pg.DB) error {
		return db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM memd.memories) + (SELECT count(*) FROM memd.subjects)`).Scan(&rows)
	})
	if err != nil || rows != 0 {
		t.Errorf("%d rows were written, %v", rows, err)
	}
	back()
	if err := add(); err != nil {
		t.Errorf("with the key service back: %v", err)
	}
}

// TestOutage_KeyServiceRefusesUs: what the key service says of this process is
// neither the caller's key's fault nor its scope's, and an operator reads why.
func TestOutage_KeyServiceRefusesUs(t *testing.T) {
	in := setup(t)
	_, secret := in.key(in.tenant("acme").No, auth.Agent)
	for _, code := range []codes.Code{codes.Unauthenticated, codes.PermissionDenied, codes.NotFound} {
		t.Run(code.String(), func(t *testing.T) {
			s := in.serve()
			defer in.kms.Server.Inject(kmsemu.Fault{Method: "Decrypt", Code: code})()
			_, err := s.memory(secret).Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{raw(user("chat", "alice"), "tea")}})
			want := answer{connect.CodeUnavailable, "KEY_UNAVAILABLE", "the key service is unavailable; nothing was written"}
			if got := answerOf(t, err); got != want {
				t.Error(got)
			}
			told := false
			for line := range strings.Lines(s.log.String()) {
				told = told || strings.Contains(line, `"level":"WARN","msg":"call"`) && strings.Contains(line, "KMS Decrypt: ") && strings.Contains(line, "("+code.String())
			}
			if !told {
				t.Errorf("the log does not say why:\n%s", s.log)
			}
		})
	}
}
