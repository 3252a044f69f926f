package sessions_test

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/sessions"
)

func TestService_KeepsAnEventByteForByte(t *testing.T) {
	b := setup(t)
	created := b.create(id("ada", "s1"), map[string]string{"lang": `"en"`, "temp:draft": `1`})
	if diff := cmp.Diff(map[string]string{"lang": `"en"`}, created.State); diff != "" {
		t.Errorf("state of a new session (-want +got):\n%s", diff)
	}
	e := sessions.Event{
		ID: "e1", Author: "pharmacist", Time: b.clock.Now().Add(-time.Hour), InvocationID: "i1", Branch: "a.b",
		Content:    `{"parts":[{"text":"naïve \u0000 text"},{"functionCall":{"name":"f","args":{"n":12345678901234567890}}}],  "role":"model"}`,
		StateDelta: map[string]string{"n": `1.0`, "user:x": `null`, "app:y": `{"b":1,"a":2}`, "temp:z": `"secret"`},
		Actions:    `{"transferToAgent": "other", "artifactDelta": {"f.txt": 3}}`, Extra: `{"longRunningToolIds": ["x"], "later": [1e400]}`,
	}
	a := b.append(id("ada", "s1"), e)
	if len(a.Events) != 1 || a.Events[0].Seq != 1 || a.Events[0].Status != sessions.StatusStored || !a.UpdatedAt.After(created.UpdatedAt) {
		t.Errorf("appended %+v", a)
	}
	got := b.get(id("ada", "s1"))
	delete(e.StateDelta, "temp:z")
	e.Seq, e.AppendedAt = 1, a.UpdatedAt
	want := sessions.Session{
		ID: id("ada", "s1"), CreatedAt: created.CreatedAt, UpdatedAt: a.UpdatedAt, EventCount: 1,
		State:  map[string]string{"lang": `"en"`, "n": `1.0`, "user:x": `null`, "app:y": `{"b":1,"a":2}`},
		Events: []sessions.Event{e},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// A process that has nothing in memory reads the same.
	srv, _ := b.Server()
	cold, err := b.serviceOf(srv).Get(t.Context(), b.tenant, id("ada", "s1"), sessions.Query{Events: 10})
	b.must(err)
	if diff := cmp.Diff(want, cold); diff != "" {
		t.Errorf("another process (-want +got):\n%s", diff)
	}
}

// A session may be larger than what one read returns. Neither how much is stored
// nor how much comes out of it fills the process, and less of it can be read.
func TestService_ReadsNoMoreThanFits(t *testing.T) {
	const mib = 1 << 20
	for name, text := range map[string]func() string{
		"that repeats itself": func() string { return strings.Repeat("x", mib-1024) },
		"that does not":       func() string { return incompressible(mib - 1024) },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.create(id("ada", "s1"), nil)
			const events = memd.MaxReadBytes/mib + 2
			for i := range events {
				b.append(id("ada", "s1"), b.event(fmt.Sprint(i), text()))
			}
			_, err := b.s.Get(t.Context(), b.tenant, id("ada", "s1"), sessions.Query{Events: memd.MaxReadEvents})
			wantErr(t, err, memd.ErrInvalid)
			got, err := b.s.Get(t.Context(), b.tenant, id("ada", "s1"), sessions.Query{Events: 3})
			if err != nil || len(got.Events) != 3 || got.Events[2].ID != fmt.Sprint(events-1) {
				t.Errorf("%d events, %v", len(got.Events), err)
			}
			var after int64
			for read, pages := 0, 0; ; pages++ {
				page, err := b.s.Events(t.Context(), b.tenant, id("ada", "s1"), after, memd.MaxBatch)
				if err != nil || len(page) > 20 {
					t.Fatalf("%d events at once, %v", len(page), err)
				}
				if len(page) == 0 {
					if read != events || pages < 4 {
						t.Errorf("%d events on %d pages", read, pages)
					}
					break
				}
				read, after = read+len(page), page[len(page)-1].Seq
			}
		})
	}
}

// incompressible is text of that many bytes, as good as random.
func incompressible(n int) string {
	b := make([]byte, n/2)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

func TestService_Create(t *testing.T) {
	b := setup(t)
	b.create(id("ada", "s1"), nil)
	_, err := b.s.Create(t.Context(), b.tenant, id("ada", "s1"), map[string]string{"a": `1`}, false)
	wantErr(t, err, memd.ErrExists)
	if s := b.get(id("ada", "s1")); len(s.State) > 0 {
		t.Errorf("a refused Create left state %v", s.State)
	}
	generated := b.create(id("ada", ""), nil)
	if uuid.Validate(generated.SessionID) != nil {
		t.Errorf("generated id %q", generated.SessionID)
	}
	// The same id of another user, or of another app, is another session.
	b.create(id("bob", "s1"), nil)
	b.create(sessions.ID{App: "other", UserID: "ada", SessionID: "s1"}, nil)
	if n := b.count(`SELECT count(*) FROM memd.session_heads`); n != 4 {
		t.Errorf("%d sessions, want 4", n)
	}
}

func TestService_Get_NewestAndSince(t *testing.T) {
	b := setup(t)
	b.create(id("ada", "s1"), nil)
	var events []sessions.Event
	noon := b.clock.Now().Add(-24 * time.Hour)
	for i := range 5 {
		e := b.event(string(rune('a'+i)), "x")
		e.Time = noon.Add(time.Duration(i) * time.Minute)
		events = append(events, e)
	}
	b.append(id("ada", "s1"), events...)
	for name, tc := range map[string]struct {
		q    sessions.Query
		want string
	}{
		"all":                   {sessions.Query{Events: 10}, "abcde"},
		"none":                  {sessions.Query{}, ""},
		"the newest two":        {sessions.Query{Events: 2}, "de"},
		"since, inclusive":      {sessions.Query{Events: 10, Since: noon.Add(3 * time.Minute)}, "de"},
		"newest of those since": {sessions.Query{Events: 1, Since: noon.Add(time.Minute)}, "e"},
		"before a place":        {sessions.Query{Events: 2, Before: 4}, "bc"},
	} {
		s, err := b.s.Get(t.Context(), b.tenant, id("ada", "s1"), tc.q)
		b.must(err)
		if got := strings.Join(eventIDs(s), ""); got != tc.want || s.EventCount != 5 {
			t.Errorf("%s: %q of %d, want %q of 5", name, got, s.EventCount, tc.want)
		}
	}
	// In order to the end, page by page.
	var all string
	after := int64(0)
	for {
		page, err := b.s.Events(t.Context(), b.tenant, id("ada", "s1"), after, 2)
		b.must(err)
		if len(page) == 0 {
			break
		}
		for _, e := range page {
			all += e.ID
		}
		after = page[len(page)-1].Seq
	}
	if all != "abcde" {
		t.Errorf("all events: %q", all)
	}
}

func TestService_List(t *testing.T) {
	b := setup(t)
	for _, s := range []sessions.ID{id("ada", "s1"), id("bob", "s1"), id("ada", "s2"), {App: "other", UserID: "ada", SessionID: "s9"}, id("ada", "s3")} {
		b.create(s, map[string]string{"k": `1`})
	}
	b.append(id("ada", "s2"), b.event("e", "x"))
	list := func(app, user string, size int) (out []string) {
		t.Helper()
		token := ""
		for {
			p, err := b.s.List(t.Context(), b.tenant, app, user, size, token)
			b.must(err)
			for _, s := range p.Sessions {
				out = append(out, s.UserID+"/"+s.SessionID)
				if s.State != nil || s.Events != nil || s.App != app {
					t.Errorf("listed %+v", s)
				}
				if want := map[bool]int64{true: 1}[s.SessionID == "s2"]; s.EventCount != want {
					t.Errorf("%s has %d events", s.SessionID, s.EventCount)
				}
			}
			if token = p.Next; token == "" {
				return out
			}
		}
	}
	for size := 1; size < 6; size++ {
		if diff := cmp.Diff([]string{"ada/s1", "ada/s2", "ada/s3"}, list("app", "ada", size)); diff != "" {
			t.Errorf("ada's, %d at a time (-want +got):\n%s", size, diff)
		}
		if diff := cmp.Diff([]string{"ada/s1", "bob/s1", "ada/s2", "ada/s3"}, list("app", "", size)); diff != "" {
			t.Errorf("the app's, %d at a time (-want +got):\n%s", size, diff)
		}
	}
	if got := list("nothing", "ada", 10); got != nil {
		t.Errorf("an app that was never seen has %v", got)
	}
	for _, token := range []string{"!", "AAAA", "////////////////////////////////"} {
		_, err := b.s.List(t.Context(), b.tenant, "app", "ada", 1, token)
		wantErr(t, err, memd.ErrInvalid)
	}
}

// TestCreate_TheFirstOfAMonth: many processes meet a month without a partition
// at once.
func TestCreate_TheFirstOfAMonth(t *testing.T) {
	b := setup(t)
	b.create(id("ada", "s0"), nil) // admits the user
	b.clock.advance(40 * 24 * time.Hour)
	start := make(chan struct{})
	var group sync.WaitGroup
	for i := range 12 {
		s := b.serviceOf(b.srv)
		group.Go(func() {
			<-start
			if _, err := s.Create(t.Context(), b.tenant, id("ada", fmt.Sprint("s", i+1)), nil, false); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	group.Wait()
	if n := b.count(`SELECT count(*) FROM pg_inherits WHERE inhparent = 'memd.session_events'::regclass`); n != 2 {
		t.Errorf("%d partitions, want 2", n)
	}
	// The month of a session is that of its creation, whenever its events come.
	b.append(id("ada", "s0"), b.event("late", "x"))
	if n := b.count(`SELECT count(*) FROM memd.session_events e JOIN memd.session_heads h USING (tenant_no, subject_no, session_no, month)`); n != 1 {
		t.Error("an event has another month than its session")
	}
}
