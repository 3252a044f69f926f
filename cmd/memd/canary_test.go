package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/tenants"
)

// canaryTarget is a memd to be proved, and the command line with its key.
type canaryTarget struct {
	*memdtest.Stack
	url    string
	getenv func(string) string
	dir    string
}

func newCanaryTarget(t *testing.T) *canaryTarget {
	t.Helper()
	c := &canaryTarget{Stack: memdtest.Start(t), dir: t.TempDir()}
	_, c.url = c.Server()
	p := memdtest.Policy()
	p.Embedder, p.Dimension, p.IngestionDelay = tenants.EmbedderLexical, 64, time.Second
	key := c.Key(c.Tenant("acme", p).No, auth.Agent|auth.Eraser)
	c.getenv = func(name string) string {
		return map[string]string{"MEMD_API_KEY": key}[name]
	}
	return c
}

func (c *canaryTarget) run(t *testing.T, args ...string) (status int, report canaryReport, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	args = append([]string{"canary", "run", "--json"}, args...)
	status = run(t.Context(), args, c.getenv, strings.NewReader(""), &out, &errs)
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &report); err != nil {
			t.Fatalf("the report is no JSON: %v\n%s", err, out.String())
		}
	}
	return status, report, errs.String()
}

func (r canaryReport) results(result string) []string {
	var out []string
	for _, k := range r.Checks {
		if k.Result == result {
			out = append(out, k.Name)
		}
	}
	slices.Sort(out)
	return out
}

func TestCanary_AServiceThatForgets(t *testing.T) {
	c := newCanaryTarget(t)
	// The signing key is made with the first receipt.
	if status, r, stderr := c.run(t, "--target", c.url); status != exitOK {
		t.Fatalf("status %d: %v, failed %v\n%s", status, stderr, r.results(canaryFail), c.Logs)
	}
	junit, keys := filepath.Join(c.dir, "junit.xml"), filepath.Join(c.dir, "keys.json")
	c.writeKeys(t, keys)
	status, r, stderr := c.run(t, "--target", c.url, "--junit", junit, "--public-key", keys)
	if status != exitOK || !r.Passed || stderr != "" {
		t.Errorf("status %d, %s, failed %v", status, stderr, r.results(canaryFail))
	}
	if n := r.results(canaryNotRun); n != nil {
		t.Errorf("not run: %v", n)
	}
	if len(r.Checks) < 30 || r.Took > 30*time.Second {
		t.Errorf("%d checks in %s", len(r.Checks), r.Took)
	}
	data, err := os.ReadFile(junit)
	if err != nil {
		t.Fatal(err)
	}
	var suite junitSuite
	if err := xml.Unmarshal(data, &suite); err != nil || suite.Tests != len(r.Checks) || suite.Failures+suite.Errors+suite.Skipped > 0 {
		t.Errorf("JUnit: %+v, %v", suite, err)
	}
	// Nobody stays: neither of both users is known any more.
	var live int
	err = c.DB.Pool("").With(t.Context(), func(db pg.DB) error {
		return db.QueryRow(t.Context(), `SELECT count(*) FROM memd.subjects WHERE kind = 1 AND retired_at IS NULL`).Scan(&live)
	})
	if err != nil || live != 0 {
		t.Errorf("%d users are left, %v", live, err)
	}
	t.Logf("%d checks in %s", len(r.Checks), r.Took)
}

func (c *canaryTarget) writeKeys(t *testing.T, name string) {
	t.Helper()
	err := c.DB.Pool("memd_worker").With(t.Context(), func(db pg.DB) error {
		keys, err := receipts.PublicKeys(t.Context(), db)
		if err != nil {
			return err
		}
		data, err := keys.JSON()
		if err != nil {
			return err
		}
		return os.WriteFile(name, data, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A service that says it forgets and does not: everything else it does right.
func TestCanary_AServiceThatLies(t *testing.T) {
	c := newCanaryTarget(t)
	memd, err := url.Parse(c.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(memd)
	lie, err := proto.Marshal(&memdv1.ForgetUserResponse{Report: &memdv1.Report{State: memdv1.ErasureState_ERASURE_STATE_DONE}})
	if err != nil {
		t.Fatal(err)
	}
	liar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/ForgetUser") {
			w.Header().Set("Content-Type", "application/proto")
			_, _ = w.Write(lie)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer liar.Close()
	junit := filepath.Join(c.dir, "junit.xml")
	status, r, stderr := c.run(t, "--target", liar.URL, "--junit", junit, "--sweep-wait", "0s")
	if status != exitFailure || r.Passed || !strings.Contains(stderr, "canary") {
		t.Errorf("status %d, passed %v, %q", status, r.Passed, stderr)
	}
	want := []string{
		"app_state", "artifact_names", "derived_memory", "events", "events_of_second_session", "late_add", "late_add_own_scope", "late_add_session",
		"late_append", "late_artifact", "memories", "memory_by_id", "memory_of_session", "race_add", "race_add_own_scope", "race_add_session",
		"race_append", "race_artifact", "raw_memory", "raw_memory_of_second_session", "report", "second_user", "session_artifact", "session_state", "sessions",
		"shared_scope", "shared_summary", "shared_summary_by_id", "streamed_artifact", "user_artifact", "user_state",
	}
	for _, name := range want {
		if !slices.Contains(r.results(canaryFail), name) {
			t.Errorf("%s does not fail", name)
		}
	}
	data, err := os.ReadFile(junit)
	if err != nil || strings.Count(string(data), "<failure") < len(want) {
		t.Errorf("JUnit has %d failures, %v", strings.Count(string(data), "<failure"), err)
	}
}

func TestCanary_CommandLine(t *testing.T) {
	c := &canaryTarget{getenv: func(string) string { return "" }}
	for _, args := range [][]string{
		{}, // no key
		{"--key", "memd_x", "--target", "nowhere"},
		{"--key", "memd_x", "--limit", "0s"},
		{"--key", "memd_x", "--dimension", "-1"},
		{"--key", "memd_x", "--public-key", "/no/such/file"},
	} {
		if status, _, stderr := c.run(t, args...); status != exitUsage {
			t.Errorf("%v: status %d, %s", args, status, stderr)
		}
	}
	// Nothing answers: that is a failure, and no proof.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errs bytes.Buffer
	gone := httptest.NewServer(nil)
	gone.Close()
	args := []string{"canary", "run", "--target", gone.URL, "--key", "memd_x", "--limit", "2s"}
	if status := run(ctx, args, c.getenv, strings.NewReader(""), &out, &errs); status != exitFailure {
		t.Errorf("status %d: %s", status, errs.String())
	}
}
