package server_test

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
)

func (s *instance) sessions(secret string) memdv1connect.SessionServiceClient {
	return memdv1connect.NewSessionServiceClient(s.client(secret))
}

// says is an event with one text part.
func says(id, author, text string) *memdv1.Event {
	return &memdv1.Event{
		Id: id, Author: author, Timestamp: timestamppb.Now(), Content: `{"role":"user","parts":[{"text":"` + text + `"}]}`,
	}
}

func TestSessions_ThroughTheAPI(t *testing.T) {
	in := setup(t)
	s := in.serve()
	_, secret := in.key(in.tenant("acme").No, auth.Agent)
	c := s.sessions(secret)
	created, err := c.CreateSession(t.Context(), &memdv1.CreateSessionRequest{
		App: "chat", UserId: "alice", State: map[string]string{"k": `1`, "user:k": `2`, "app:k": `3`, "temp:k": `4`},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := created.GetSession().GetSessionId()
	if uuid.Validate(id) != nil || len(created.GetSession().GetState()) != 3 {
		t.Errorf("created %v", created)
	}
	_, err = c.CreateSession(t.Context(), &memdv1.CreateSessionRequest{App: "chat", UserId: "alice", SessionId: id})
	if got := answerOf(t, err); got.code != connect.CodeAlreadyExists || got.reason != "EXISTS" {
		t.Errorf("the same id again: %v", got)
	}
	add := func(seen *timestamppb.Timestamp, events ...*memdv1.Event) (*memdv1.AppendEventsResponse, error) {
		return c.AppendEvents(t.Context(), &memdv1.AppendEventsRequest{
			App: "chat", UserId: "alice", SessionId: id, LastUpdateTime: seen, Events: events,
		})
	}
	first, err := add(created.GetSession().GetLastUpdateTime(), says("e1", "user", "green tea"), &memdv1.Event{Id: "p", Author: "bot", Partial: true})
	if err != nil {
		t.Fatal(err)
	}
	if r := first.GetResults(); r[0].GetStatus() != memdv1.AppendStatus_APPEND_STATUS_STORED || r[0].GetSequence() != 1 || r[1].GetStatus() != memdv1.AppendStatus_APPEND_STATUS_PARTIAL {
		t.Errorf("appended %v", first)
	}
	_, err = add(created.GetSession().GetLastUpdateTime(), says("e2", "user", "x"))
	if got := answerOf(t, err); got.code != connect.CodeAborted || got.reason != "SESSION_CHANGED" {
		t.Errorf("a stale append: %v", got)
	}
	if again, err := add(created.GetSession().GetLastUpdateTime(), says("e1", "user", "green tea")); err != nil ||
		again.GetResults()[0].GetStatus() != memdv1.AppendStatus_APPEND_STATUS_REPEATED {
		t.Errorf("repeated: %v, %v", again, err)
	}
	if _, err := add(first.GetLastUpdateTime(), says("e2", "bot", "with milk")); err != nil {
		t.Error(err)
	}
	got, err := c.GetSession(t.Context(), &memdv1.GetSessionRequest{App: "chat", UserId: "alice", SessionId: id, NumRecentEvents: new(int32(1))})
	if err != nil || len(got.GetSession().GetEvents()) != 1 || got.GetSession().GetEvents()[0].GetId() != "e2" || got.GetSession().GetEventCount() != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	none, err := c.GetSession(t.Context(), &memdv1.GetSessionRequest{App: "chat", UserId: "alice", SessionId: id, NumRecentEvents: new(int32(0))})
	if err != nil || len(none.GetSession().GetEvents()) != 0 {
		t.Errorf("no events asked for: %v, %v", none, err)
	}
	list, err := c.ListSessions(t.Context(), &memdv1.ListSessionsRequest{App: "chat"})
	if err != nil || len(list.GetSessions()) != 1 || list.GetSessions()[0].GetUserId() != "alice" {
		t.Errorf("listed %v, %v", list, err)
	}
}

// TestSessions_ASessionOfAnotherUserCannotBeToldFromNone: nor of another app.
func TestSessions_ASessionOfAnotherUserCannotBeToldFromNone(t *testing.T) {
	in := setup(t)
	s := in.serve()
	_, secret := in.key(in.tenant("acme").No, auth.Agent)
	c := s.sessions(secret)
	if _, err := c.CreateSession(t.Context(), &memdv1.CreateSessionRequest{App: "chat", UserId: "alice", SessionId: "s1"}); err != nil {
		t.Fatal(err)
	}
	for _, who := range []struct{ app, user, session string }{{"chat", "bob", "s1"}, {"talk", "alice", "s1"}, {"chat", "alice", "s2"}} {
		_, err := c.GetSession(t.Context(), &memdv1.GetSessionRequest{App: who.app, UserId: who.user, SessionId: who.session})
		if got := answerOf(t, err); got.code != connect.CodeNotFound {
			t.Errorf("getting %v: %v", who, got)
		}
		_, err = c.AppendEvents(t.Context(), &memdv1.AppendEventsRequest{App: who.app, UserId: who.user, SessionId: who.session, Events: []*memdv1.Event{says("e", "user", "x")}})
		if got := answerOf(t, err); got.code != connect.CodeNotFound {
			t.Errorf("appending to %v: %v", who, got)
		}
		_, err = s.memory(secret).AddSession(t.Context(), &memdv1.AddSessionRequest{App: who.app, UserId: who.user, SessionId: who.session})
		if got := answerOf(t, err); got.code != connect.CodeNotFound {
			t.Errorf("remembering %v: %v", who, got)
		}
	}
}

func TestSessions_RefuseWhatIsMalformed(t *testing.T) {
	in := setup(t)
	s := in.serve()
	_, secret := in.key(in.tenant("acme").No, auth.Agent)
	c := s.sessions(secret)
	const secretText = "Q7secretQ7"
	for field, events := range map[string][]*memdv1.Event{
		"events":           nil,
		"content":          {{Id: "e", Author: "user", Content: secretText}},
		"author":           {{Id: "e"}},
		"actions":          {{Id: "e", Author: "user", Actions: `{"state_delta":{"temp:x":"` + secretText + `"}}`}},
		"state_delta":      {{Id: "e", Author: "user", StateDelta: map[string]string{secretText: secretText}}},
		"events[1].id":     {says("e", "user", "x"), says("e", "user", "x")},
		"events[0].author": {{Id: "e", Author: strings.Repeat("x", 513)}},
	} {
		_, err := c.AppendEvents(t.Context(), &memdv1.AppendEventsRequest{App: "chat", UserId: "alice", SessionId: "s", Events: events})
		got := answerOf(t, err)
		if got.code != connect.CodeInvalidArgument || !strings.Contains(got.message, field) || strings.Contains(got.message, secretText) {
			t.Errorf("%s: %v", field, got)
		}
	}
	_, err := c.ListSessions(t.Context(), &memdv1.ListSessionsRequest{App: "chat", PageToken: "nonsense"})
	if got := answerOf(t, err); got.code != connect.CodeInvalidArgument {
		t.Errorf("a page token: %v", got)
	}
	_, err = c.DeleteSession(t.Context(), &memdv1.DeleteSessionRequest{App: "chat", UserId: "alice", SessionId: "s", RequestId: "nonsense"})
	if got := answerOf(t, err); got.code != connect.CodeInvalidArgument {
		t.Errorf("a request id: %v", got)
	}
	_, err = c.DeleteSession(t.Context(), &memdv1.DeleteSessionRequest{App: "chat", UserId: "alice", SessionId: "s", DeleteMemories: true})
	if got := answerOf(t, err); got.code != connect.CodePermissionDenied {
		t.Errorf("memories by an agent: %v", got)
	}
}

// TestAddSession_HoweverOftenAndHoweverLate takes a session into memory again
// and again: ours, and the same events sent along.
func TestAddSession_HoweverOftenAndHoweverLate(t *testing.T) {
	in := setup(t)
	s := in.serve()
	_, secret := in.key(in.tenant("acme").No, auth.Agent)
	c, m := s.sessions(secret), s.memory(secret)
	if _, err := c.CreateSession(t.Context(), &memdv1.CreateSessionRequest{App: "chat", UserId: "alice", SessionId: "s1"}); err != nil {
		t.Fatal(err)
	}
	events := []*memdv1.Event{
		says("e1", "user", "green tea"), says("e2", "bot", "black coffee"), says("e3", "user", "red wine"),
		{Id: "call", Author: "bot", Content: `{"parts":[{"functionCall":{"name":"f"}},{"text":"a thought","thought":true}]}`},
		{Id: "bare", Author: "user"},
	}
	for i := range 600 { // more than two batches
		e := says("n"+uuid.NewString(), "user", "line")
		e.Timestamp = timestamppb.New(time.Now().Add(time.Duration(i-700) * time.Second))
		events = append(events, e)
	}
	for from := 0; from < len(events); from += 256 {
		if _, err := c.AppendEvents(t.Context(), &memdv1.AppendEventsRequest{
			App: "chat", UserId: "alice", SessionId: "s1", Events: events[from:min(len(events), from+256)],
		}); err != nil {
			t.Fatal(err)
		}
	}
	remember := func(along []*memdv1.Event, added, unchanged, refused, skipped int64) {
		t.Helper()
		r, err := m.AddSession(t.Context(), &memdv1.AddSessionRequest{App: "chat", UserId: "alice", SessionId: "s1", Events: along})
		if err != nil {
			t.Fatal(err)
		}
		if r.GetAdded() != added || r.GetUnchanged() != unchanged || r.GetRefused() != refused || r.GetSkipped() != skipped || r.GetUpdated() != 0 {
			t.Errorf("remembered %v, want %d, %d, %d, %d", r, added, unchanged, refused, skipped)
		}
	}
	remember(nil, 603, 0, 0, 2)
	remember(nil, 0, 603, 0, 2)
	remember(events, 0, 603, 0, 2)
	found, err := m.Search(t.Context(), &memdv1.SearchRequest{Scope: user("chat", "alice"), Text: "green tea", TopK: 1})
	if err != nil || len(found.GetHits()) != 1 || found.GetHits()[0].GetMemory().GetMetadata()["author"] != "user" {
		t.Fatalf("found %v, %v", found, err)
	}
	if _, err := m.Delete(t.Context(), &memdv1.DeleteRequest{Scope: user("chat", "alice"), MemoryId: found.GetHits()[0].GetMemory().GetMemoryId()}); err != nil {
		t.Fatal(err)
	}
	remember(nil, 0, 602, 1, 2)
	remember(append(events, says("late", "user", "x")), 1, 602, 1, 2)
}
