package node_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pgtest"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/kmstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A process without a lease answers no call that needs a key, whatever the
// database says to a SELECT: a load balancer must not send it any.
func TestServer_NotReadyWithoutLease(t *testing.T) {
	db, kms := pgtest.Database(t), kmstest.StartEmulator(t, "")
	metrics, err := node.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	s, err := node.OpenServer(t.Context(), node.ServerConfig{Common: node.Common{
		DatabaseURL: db.URL(node.AppRole), Logger: slog.New(slog.DiscardHandler), Metrics: metrics,
		KMS:     node.KMS{URL: "emulator:" + kms.Address, Token: kms.Server.Tokens()[kmsemu.App]},
		Ledgers: []string{t.TempDir()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if got := ask(s, "GET", "/readyz", ""); got.Code != http.StatusOK {
		t.Errorf("ready with a lease: %d", got.Code)
	}
	if err := s.EndLease(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := ask(s, "GET", "/readyz", ""); got.Code != http.StatusServiceUnavailable {
		t.Errorf("ready without a lease: %d", got.Code)
	}
	if got := ask(s, "POST", "/grpc.health.v1.Health/Check", "{}"); !strings.Contains(got.Body.String(), "NOT_SERVING") {
		t.Errorf("health without a lease: %s", got.Body)
	}
	_, err = s.Keyring.Keys(t.Context(), 1, 0)
	if !errors.Is(err, memd.ErrDatabaseUnavailable) || errors.Is(err, memd.ErrKeyUnavailable) {
		t.Errorf("keys without a lease: %v", err)
	}
}

func ask(s *node.Server, method, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.API.Handler().ServeHTTP(w, r)
	return w
}
