package ledger_test

import (
	"bufio"
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"forgettable.dev/memd/shred/ledger"
)

// s3 answers what a ledger asks of S3, as its documentation says: a PUT with
// If-None-Match: * is refused with 412 when the key is taken. A PUT without it
// would overwrite, and fails here.
type s3 struct {
	mu      sync.Mutex
	objects map[string][]byte
}

func openS3(t testing.TB) ledger.Ledger {
	t.Helper()
	server := httptest.NewServer(&s3{objects: map[string][]byte{}})
	t.Cleanup(server.Close)
	b, err := ledger.OpenBucket(t.Context(), "s3://ledger?region=eu-central-1&use_path_style=true&anonymous=true&response_checksum_validation=when_required&endpoint="+server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (s *s3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/ledger"), "/")
	s.mu.Lock()
	defer s.mu.Unlock()
	data, there := s.objects[key]
	switch {
	case r.Method == http.MethodPut && key != "":
		body, err := sent(r)
		switch {
		case err != nil || r.Header.Get("If-None-Match") != "*":
			fail(w, http.StatusBadRequest, "InvalidRequest")
		case there:
			fail(w, http.StatusPreconditionFailed, "PreconditionFailed")
		default:
			s.objects[key] = body
			w.Header().Set("ETag", `"1"`)
		}
	case r.Method == http.MethodGet && key == "":
		s.list(w, r.URL.Query().Get("prefix"))
	case r.Method == http.MethodGet && there:
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		_, _ = w.Write(data)
	case r.Method == http.MethodGet:
		fail(w, http.StatusNotFound, "NoSuchKey")
	default:
		fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
}

func fail(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code)
}

func (s *s3) list(w http.ResponseWriter, prefix string) {
	type object struct {
		Key, LastModified, ETag string
		Size                    int
	}
	var result struct {
		XMLName  xml.Name `xml:"ListBucketResult"`
		Contents []object
	}
	for key := range s.objects {
		if strings.HasPrefix(key, prefix) {
			result.Contents = append(result.Contents, object{key, "2026-11-30T12:00:00.000Z", `"1"`, len(s.objects[key])})
		}
	}
	slices.SortFunc(result.Contents, func(a, b object) int { return strings.Compare(a.Key, b.Key) })
	_ = xml.NewEncoder(w).Encode(result)
}

// sent is the body of a request, which may come in chunks with a checksum behind.
func sent(r *http.Request) ([]byte, error) {
	if !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		return io.ReadAll(r.Body)
	}
	var out bytes.Buffer
	for in := bufio.NewReader(r.Body); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		size, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseInt(size, 16, 64)
		if err != nil || n == 0 {
			return out.Bytes(), err
		}
		if _, err := io.CopyN(&out, in, n); err != nil {
			return nil, err
		}
		if _, err := in.Discard(len("\r\n")); err != nil {
			return nil, err
		}
	}
}
