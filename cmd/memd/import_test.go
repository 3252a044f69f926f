package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
)

// conversations makes an import file of so many users, conversations of each
// and turns of each.
func conversations(users, sessions, turns int) string {
	var b strings.Builder
	for s := range sessions {
		for u := range users {
			fmt.Fprintf(&b, `{"user":"user-%d","session":"s-%d","started_at":"2026-06-01T09:00:00Z","turns":[`, u, s)
			for i := range turns {
				if i > 0 {
					b.WriteByte(',')
				}
				fmt.Fprintf(&b, `{"author":"user","text":"turn %d of conversation %d"}`, i, s)
			}
			b.WriteString("]}\n")
		}
	}
	return b.String()
}

func TestImport_BatchesAreFullAndSmallEnough(t *testing.T) {
	f, srv := startFake(t)
	status, out, errs := invoke(t, srv.URL, conversations(3, 20, 18), "import", "-", "--concurrency=3")
	if status != exitOK || !strings.Contains(out, "imported 1080 turns of 60 conversations") {
		t.Fatalf("status %d: %s%s", status, out, errs)
	}
	if len(f.rows) != 1080 || f.largest > memd.MaxBatch {
		t.Errorf("%d rows, at most %d in one request", len(f.rows), f.largest)
	}
	// 360 turns a user: two requests each, or fewer and fuller for users that
	// share a lane.
	if f.adds > 6 {
		t.Errorf("%d requests", f.adds)
	}
}

// TestImport_ABatchTouchesFewUsers: the API refuses a request that touches more
// than memd.MaxSubjects users, and one lane may see any number.
func TestImport_ABatchTouchesFewUsers(t *testing.T) {
	f, srv := startFake(t)
	status, out, errs := invoke(t, srv.URL, conversations(150, 1, 1), "import", "-", "--concurrency=1")
	if status != exitOK {
		t.Fatalf("status %d: %s%s", status, out, errs)
	}
	if len(f.rows) != 150 || f.adds != 3 || f.largest != memd.MaxSubjects {
		t.Errorf("%d rows in %d requests of at most %d", len(f.rows), f.adds, f.largest)
	}
}

func TestImport_LargeTextsAreSentInSeveralRequests(t *testing.T) {
	f, srv := startFake(t)
	text := strings.Repeat("x", memd.MaxTextBytes)
	var b strings.Builder
	b.WriteString(`{"user":"u","session":"s","started_at":"2026-06-01T09:00:00Z","turns":[`)
	for i := range 48 {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"text":"` + text + `"}`)
	}
	b.WriteString("]}")
	status, out, errs := invoke(t, srv.URL, b.String(), "import", "-")
	if status != exitOK || len(f.rows) != 48 {
		t.Fatalf("status %d, %d rows: %s%s", status, len(f.rows), out, errs)
	}
	if f.largest > memd.MaxBatchBytes/memd.MaxTextBytes {
		t.Errorf("%d rows of %d bytes in one request", f.largest, memd.MaxTextBytes)
	}
}

func TestImport_WaitsForABusyServer(t *testing.T) {
	f, srv := startFake(t)
	f.busy = 3
	status, out, errs := invoke(t, srv.URL, conversations(2, 2, 5), "import", "-")
	if status != exitOK || len(f.rows) != 20 {
		t.Fatalf("status %d, %d rows: %s%s", status, len(f.rows), out, errs)
	}
}

// TestImport_ServerGoesAway: what was stored is told, and that importing again
// is safe.
func TestImport_ServerGoesAway(t *testing.T) {
	f, _ := startFake(t)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		adds := f.adds
		f.mu.Unlock()
		if adds >= 2 {
			http.Error(w, "a proxy speaking, with secrets", http.StatusForbidden)
			return
		}
		f.handler.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	status, _, errs := invoke(t, front.URL, conversations(1, 100, 20), "import", "-")
	if status != exitFailure || !strings.Contains(errs, "512 turns were stored before that. Importing again stores nothing twice.") {
		t.Errorf("status %d: %s", status, errs)
	}
}

func TestReadConversations(t *testing.T) {
	in := "\xef\xbb\xbf" + `{"USER":"a","session":"s","started_at":"2026-06-01T11:00:00+02:00","other":[1],"turns":[{"text":"x"},{"text":""},{"author":"b","text":"z"}]}` + "\r\n\r\n" +
		`{"user":"a","session":"s","started_at":"2026-06-01T09:00:00Z","turns":[]}`
	var got []conversation
	err := readConversations(strings.NewReader(in), func(c conversation) error {
		got = append(got, c)
		return nil
	}, func(e *lineError) error { return e })
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 6, 1, 9, 0, 0, 0, time.UTC)
	want := []conversation{
		{Line: 1, User: "a", Session: "s", StartedAt: at, Skipped: 1, Turns: []turn{{Index: 0, Text: "x"}, {Index: 2, Author: "b", Text: "z"}}},
		{Line: 3, User: "a", Session: "s", StartedAt: at},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReadConversations_LimitsOfOneLine(t *testing.T) {
	long := strings.Repeat("x", memd.MaxTextBytes+1)
	id := strings.Repeat("x", memd.MaxIDBytes+1)
	in := strings.Join([]string{
		`{"user":"a","session":"s","started_at":"2026-06-01T09:00:00Z","turns":[{"text":"x"},{"text":"` + long + `"}]}`,
		`{"user":"` + id + `","session":"s","started_at":"2026-06-01T09:00:00Z","turns":[]}`,
		`{"user":"a","session":"` + id + `","started_at":"2026-06-01T09:00:00Z","turns":[]}`,
		strings.Repeat("y", maxLineBytes+1),
		`{"user":"a","session":"s","started_at":"2026-06-01T09:00:00Z","turns":[]}`,
	}, "\n")
	var lines []int
	var problems []string
	good := 0
	err := readConversations(strings.NewReader(in), func(conversation) error { good++; return nil }, func(e *lineError) error {
		lines, problems = append(lines, e.Line), append(problems, e.Problem)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"has a text longer than 262144 bytes in turn 1", "has a user longer than 512 bytes",
		"has a session longer than 512 bytes", "is longer than 67108864 bytes",
	}
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{1, 2, 3, 4}, lines); diff != "" || good != 1 {
		t.Errorf("%d good lines; bad ones (-want +got):\n%s", good, diff)
	}
}

// FuzzParseConversation: a line error never repeats what is in the line.
func FuzzParseConversation(f *testing.F) {
	f.Add(`{"user":"zqzqzq","session":"zqzqzq","started_at":"zqzqzq","turns":[{"text":"zqzqzq"}]}`)
	f.Add(`{"user":7,"turns":{"zqzqzq":1}}`)
	f.Add(`zqzqzq`)
	f.Add(`{"turns":[{"text":5333800060001}]}`)
	f.Fuzz(func(t *testing.T, line string) {
		c, problem := parseConversation([]byte(line))
		if problem == "" {
			for _, turn := range c.Turns {
				if strings.TrimSpace(turn.Text) == "" {
					t.Error("a turn without text came through")
				}
			}
			return
		}
		for _, secret := range []string{"zqzqzq", "5333800060001"} {
			if strings.Contains(problem, secret) {
				t.Errorf("%q repeats the line", problem)
			}
		}
	})
}

func TestLineError_IsFound(t *testing.T) {
	err := readConversations(strings.NewReader("nonsense"), nil, func(e *lineError) error { return e })
	var line *lineError
	if !errors.As(err, &line) || line.Line != 1 {
		t.Errorf("got %v", err)
	}
}

// BenchmarkImport measures what the command line itself costs: the fake server
// stores nothing worth mentioning.
func BenchmarkImport(b *testing.B) {
	in := conversations(40, 20, 18)
	for b.Loop() {
		b.StopTimer()
		_, srv := newFakeServer()
		b.StartTimer()
		if status, out, errs := invoke(b, srv.URL, in, "import", "-"); status != exitOK {
			b.Fatalf("status %d: %s%s", status, out, errs)
		}
		b.StopTimer()
		srv.Close()
		b.StartTimer()
	}
	b.ReportMetric(float64(b.N*40*20*18)/b.Elapsed().Seconds(), "turns/s")
}
