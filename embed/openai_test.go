package embed_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/embed"
)

const (
	personal = "my passport number is 533380006"
	testKey  = "sk-very-secret"
)

// answer writes one vector for each input, last first: (length of the text, 1).
func answer(w http.ResponseWriter, r *http.Request) {
	var req struct{ Input []string }
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	type datum struct {
		Index     int       `json:"index"`
		Embedding []float32 `json:"embedding"`
	}
	var data []datum
	for i, s := range slices.Backward(req.Input) {
		data = append(data, datum{Index: i, Embedding: []float32{float32(len(s)), 1}})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"data": data})
}

// serve starts an endpoint and an embedder of dimension 2 that asks it. The
// number of requests it saw is counted.
func serve(t *testing.T, handler http.HandlerFunc, change func(*embed.Config)) (embed.Embedder, *atomic.Int64) {
	t.Helper()
	var calls atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		handler(w, r)
	}))
	t.Cleanup(srv.Close)
	cfg := embed.Config{
		BaseURL: srv.URL + "/v1/", Model: "test-model", Dimension: 2, APIKey: testKey,
		RetryWait: time.Microsecond, HTTPClient: srv.Client(),
	}
	if change != nil {
		change(&cfg)
	}
	e, err := embed.OpenAI(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e, &calls
}

func TestOpenAI_OrderAndBatches(t *testing.T) {
	var mu sync.Mutex
	var sizes []int
	e, calls := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var req struct {
			Model          string   `json:"model"`
			Input          []string `json:"input"`
			EncodingFormat string   `json:"encoding_format"`
			Dimensions     *int     `json:"dimensions"`
		}
		if err := json.Unmarshal(body, &req); err != nil {
			t.Error(err)
		}
		mu.Lock()
		sizes = append(sizes, len(req.Input))
		mu.Unlock()
		if req.Model != "test-model" || req.EncodingFormat != "float" || req.Dimensions != nil {
			t.Errorf("request has model %q, format %q, dimensions %v", req.Model, req.EncodingFormat, req.Dimensions)
		}
		if r.URL.Path != "/v1/embeddings" || r.Header.Get("Authorization") != "Bearer "+testKey {
			t.Errorf("request for %s without the key", r.URL.Path)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer(w, r)
	}, func(c *embed.Config) { c.BatchSize = 10 })

	texts := make([]string, 37)
	for i := range texts {
		texts[i] = strings.Repeat("x", i+1)
	}
	got, err := e.Embed(t.Context(), texts)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if want := float64(i + 1); math.Abs(float64(v[0]/v[1])-want) > 1e-3 || math.Abs(cosine(v, v)-1) > 1e-5 {
			t.Errorf("text %d has vector %v", i, v)
		}
	}
	slices.Sort(sizes)
	if diff := cmp.Diff([]int{7, 10, 10, 10}, sizes); diff != "" || calls.Load() != 4 {
		t.Errorf("batches (-want +got):\n%s", diff)
	}
}

func TestOpenAI_SendsDimensionWhenAsked(t *testing.T) {
	var sent atomic.Int64
	e, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Dimensions int64 `json:"dimensions"`
		}
		_ = json.NewDecoder(r.Body).Decode(&req)
		sent.Store(req.Dimensions)
		fmt.Fprint(w, `{"data":[{"embedding":[3,4]}]}`)
	}, func(c *embed.Config) { c.SendDimension = true })
	if _, err := e.Embed(t.Context(), []string{personal}); err != nil {
		t.Fatal(err)
	}
	if sent.Load() != 2 {
		t.Errorf("sent dimensions %d, want 2", sent.Load())
	}
}

func TestOpenAI_Failures(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.WriteHeader(code)
			fmt.Fprintf(w, "%s %s", body, r.Header.Get("Authorization")) // an endpoint that repeats everything
		}
	}
	text := func(s string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s) }
	}
	tests := []struct {
		name    string
		handler http.HandlerFunc
		want    error
		calls   int64
	}{
		{"bad request is the text's fault", status(400), memd.ErrInvalid, 1},
		{"too large is the text's fault", status(413), memd.ErrInvalid, 1},
		{"wrong key is not retried", status(401), memd.ErrEmbedderUnavailable, 1},
		{"unknown model is not retried", status(404), memd.ErrEmbedderUnavailable, 1},
		{"too many requests is retried", status(429), memd.ErrEmbedderUnavailable, 4},
		{"server error is retried", status(500), memd.ErrEmbedderUnavailable, 4},
		{"bad gateway is retried", status(502), memd.ErrEmbedderUnavailable, 4},
		{"not implemented is not retried", status(501), memd.ErrEmbedderUnavailable, 1},
		{"redirect is refused", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, memd.ErrEmbedderUnavailable, 1},
		{"not JSON", text("<html>" + personal), memd.ErrEmbedderUnavailable, 1},
		{"too few vectors", text(`{"data":[]}`), memd.ErrEmbedderUnavailable, 1},
		{"another dimension", text(`{"data":[{"index":0,"embedding":[1,2,3]}]}`), memd.ErrEmbedderUnavailable, 1},
		{"index out of range", text(`{"data":[{"index":1,"embedding":[1,2]}]}`), memd.ErrEmbedderUnavailable, 1},
		{"zero vector", text(`{"data":[{"index":0,"embedding":[0,0]}]}`), memd.ErrEmbedderUnavailable, 1},
		{"number too large for a float32", text(`{"data":[{"index":0,"embedding":[1e300,0]}]}`), memd.ErrEmbedderUnavailable, 1},
		{"answer too large", text(`{"data":[{"index":0,"embedding":[1,2]}]}` + strings.Repeat(" ", 4<<20)), memd.ErrEmbedderUnavailable, 1},
		{"connection cut", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, memd.ErrEmbedderUnavailable, 4},
		{"answer broken off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, `{"data":`)
		}, memd.ErrEmbedderUnavailable, 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, calls := serve(t, tt.handler, nil)
			vs, err := e.Embed(t.Context(), []string{personal})
			if vs != nil || !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if errors.Is(err, memd.ErrInvalid) && errors.Is(err, memd.ErrEmbedderUnavailable) {
				t.Errorf("%v is both the caller's fault and not", err)
			}
			if calls.Load() != tt.calls {
				t.Errorf("%d requests, want %d", calls.Load(), tt.calls)
			}
			for _, secret := range []string{personal, "533380006", testKey, "127.0.0.1"} {
				if strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), secret) {
					t.Errorf("the error repeats %q: %v", secret, err)
				}
			}
		})
	}
}

func TestOpenAI_RecoversAfterFailures(t *testing.T) {
	var n atomic.Int64
	e, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch n.Add(1) {
		case 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 2:
			panic(http.ErrAbortHandler)
		case 3:
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			answer(w, r)
		}
	}, nil)
	vs, err := e.Embed(t.Context(), []string{personal})
	if err != nil || len(vs) != 1 {
		t.Fatalf("got %d vectors, %v", len(vs), err)
	}
}

func TestOpenAI_NobodyListens(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	srv.Close()
	e, err := embed.OpenAI(embed.Config{BaseURL: srv.URL, Model: "m", Dimension: 2, RetryWait: time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Embed(t.Context(), []string{personal}); !errors.Is(err, memd.ErrEmbedderUnavailable) || !strings.Contains(err.Error(), "no connection") {
		t.Errorf("got %v", err)
	}
}

// roundTripper is an endpoint inside a synctest bubble, where no real network
// may be waited for.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func reply(code int, header http.Header, body string) *http.Response {
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{StatusCode: code, Header: header, Body: io.NopCloser(strings.NewReader(body))}
}

func TestOpenAI_Waits(t *testing.T) {
	const good = `{"data":[{"index":0,"embedding":[1,2]}]}`
	tests := []struct {
		name     string
		after    func() string
		min, max time.Duration
		want     error
	}{
		{"backs off without Retry-After", func() string { return "" }, 100 * time.Millisecond, 200 * time.Millisecond, nil},
		{"obeys Retry-After in seconds", func() string { return "3" }, 3 * time.Second, 3 * time.Second, nil},
		{"obeys Retry-After as a date", func() string {
			return time.Now().Add(4 * time.Second).UTC().Format(http.TimeFormat)
		}, 3 * time.Second, 4 * time.Second, nil},
		{"gives up when asked to wait too long", func() string { return "3600" }, 0, 0, memd.ErrEmbedderUnavailable},
		{"ignores a header that is neither", func() string { return "soon" }, 100 * time.Millisecond, 200 * time.Millisecond, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				e, err := embed.OpenAI(embed.Config{
					BaseURL: "http://embedder/v1", Model: "m", Dimension: 2,
					HTTPClient: &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
						if calls++; calls == 1 {
							return reply(429, http.Header{"Retry-After": {tt.after()}}, ""), nil
						}
						return reply(200, nil, good), nil
					})},
				})
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				_, err = e.Embed(t.Context(), []string{personal})
				if !errors.Is(err, tt.want) {
					t.Fatalf("got %v, want %v", err, tt.want)
				}
				if took := time.Since(start); took < tt.min || took > tt.max {
					t.Errorf("took %v, want %v to %v", took, tt.min, tt.max)
				}
			})
		})
	}
}

func TestOpenAI_Timeouts(t *testing.T) {
	silent := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	})}
	cfg := embed.Config{BaseURL: "http://embedder/v1", Model: "m", Dimension: 2, HTTPClient: silent}

	t.Run("a silent endpoint is retried, then unavailable", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e, err := embed.OpenAI(cfg)
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			_, err = e.Embed(t.Context(), []string{personal})
			if !errors.Is(err, memd.ErrEmbedderUnavailable) || !strings.Contains(err.Error(), "in time") {
				t.Errorf("got %v", err)
			}
			if took := time.Since(start); took < 4*embed.DefaultTimeout {
				t.Errorf("gave up after %v: not retried", took)
			}
		})
	})
	t.Run("the caller's deadline is the caller's", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e, err := embed.OpenAI(cfg)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			_, err = e.Embed(ctx, []string{personal})
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, memd.ErrEmbedderUnavailable) {
				t.Errorf("got %v", err)
			}
			if took := time.Since(start); took != time.Second {
				t.Errorf("took %v", took)
			}
		})
	})
}

func TestOpenAI_RefusesConfig(t *testing.T) {
	good := embed.Config{BaseURL: "https://api.example.com/v1", Model: "m", Dimension: 8}
	tests := []struct {
		name   string
		change func(*embed.Config)
	}{
		{"no base URL", func(c *embed.Config) { c.BaseURL = "" }},
		{"no scheme", func(c *embed.Config) { c.BaseURL = "api.example.com/v1" }},
		{"another scheme", func(c *embed.Config) { c.BaseURL = "file:///etc/passwd" }},
		{"a user in the URL", func(c *embed.Config) { c.BaseURL = "https://u:sk-very-secret@example.com/v1" }},
		{"a query in the URL", func(c *embed.Config) { c.BaseURL = "https://example.com/v1?key=sk-very-secret" }},
		{"no model", func(c *embed.Config) { c.Model = " " }},
		{"no dimension", func(c *embed.Config) { c.Dimension = 0 }},
		{"too many dimensions", func(c *embed.Config) { c.Dimension = memd.MaxDimension + 1 }},
		{"batch too large", func(c *embed.Config) { c.BatchSize = 5000 }},
		{"negative timeout", func(c *embed.Config) { c.Timeout = -1 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := good
			tt.change(&cfg)
			_, err := embed.OpenAI(cfg)
			if !errors.Is(err, memd.ErrInvalid) {
				t.Fatalf("got %v, want ErrInvalid", err)
			}
			if strings.Contains(err.Error(), testKey) {
				t.Errorf("the error repeats the key: %v", err)
			}
		})
	}
	if _, err := embed.OpenAI(good); err != nil {
		t.Errorf("good configuration: %v", err)
	}
}

func TestSecret_DoesNotPrint(t *testing.T) {
	cfg := embed.Config{APIKey: testKey}
	var buf bytes.Buffer
	fmt.Fprintf(&buf, "%v %+v %#v %s", cfg, cfg, cfg, cfg.APIKey)
	slog.New(slog.NewJSONHandler(&buf, nil)).Info("m", "key", cfg.APIKey)
	slog.New(slog.NewTextHandler(&buf, nil)).Info("m", "key", cfg.APIKey, "cfg", cfg)
	if err := json.NewEncoder(&buf).Encode(map[string]any{"key": cfg.APIKey}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(buf.String(), testKey) {
		t.Errorf("the key was printed: %s", buf.String())
	}
}
