package cleartext_test

import (
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// throughSessions uses every call of the SessionService with content in every
// field, and fails in the ways that it can.
func (w *world) throughSessions(user, session string) {
	ctx := w.t.Context()
	quoted := func(kind string) string { return `"` + w.word(kind) + `"` }
	state := func() map[string]string {
		return map[string]string{
			w.word("key"): quoted("value"), "user:" + w.word("key"): quoted("value"),
			"app:" + w.word("key"): quoted("value"), "temp:" + w.word("key"): quoted("value"),
		}
	}
	event := func(id string) *memdv1.Event {
		return &memdv1.Event{
			Id: id, Author: w.word("author"), Timestamp: timestamppb.Now(), InvocationId: w.word("invocation"), Branch: w.word("branch"),
			Content:    `{"parts":[{"text":"` + w.word("text") + `"},{"functionCall":{"name":"` + w.word("text") + `"}}]}`,
			StateDelta: state(), Actions: `{"transferToAgent":` + quoted("author") + `}`, Extra: `{"more":` + quoted("text") + `}`,
		}
	}
	create := func(id string) *memdv1.CreateSessionRequest {
		return &memdv1.CreateSessionRequest{App: app, UserId: user, SessionId: id, State: state()}
	}
	for _, id := range []string{session, w.word("session")} {
		created := good[*memdv1.CreateSessionResponse](w, "CreateSession")(w.sessions.CreateSession(ctx, create(id))).GetSession()
		known := w.word("event")
		long := event(w.word("event"))
		long.Content = `"` + strings.Repeat(w.word("long")+" ", 2000) + `"`
		good[*memdv1.AppendEventsResponse](w, "AppendEvents")(w.sessions.AppendEvents(ctx, &memdv1.AppendEventsRequest{
			App: app, UserId: user, SessionId: id, Events: []*memdv1.Event{event(known), long}, LastUpdateTime: created.GetLastUpdateTime(),
		}))
		bad[*memdv1.AppendEventsResponse](w, "a stale AppendEvents")(w.sessions.AppendEvents(ctx, &memdv1.AppendEventsRequest{
			App: app, UserId: user, SessionId: id, Events: []*memdv1.Event{event(known), event(w.word("event"))}, LastUpdateTime: created.GetLastUpdateTime(),
		}))
		got := good[*memdv1.GetSessionResponse](w, "GetSession")(w.sessions.GetSession(ctx, &memdv1.GetSessionRequest{App: app, UserId: user, SessionId: id}))
		if n := len(got.GetSession().GetEvents()); n != 2 || len(got.GetSession().GetState()) < 9 {
			w.t.Fatalf("GetSession finds %d events: the test would be vacuous", n)
		}
		good[*memdv1.AddSessionResponse](w, "AddSession")(w.memory.AddSession(ctx, &memdv1.AddSessionRequest{App: app, UserId: user, SessionId: id}))
		bad[*memdv1.CreateSessionResponse](w, "CreateSession again")(w.sessions.CreateSession(ctx, create(id)))
		for _, spoil := range []func(*memdv1.Event){
			func(e *memdv1.Event) { e.Content = w.word("text") },
			func(e *memdv1.Event) { e.Actions = `{"stateDelta":{"` + w.word("key") + `":1}}` },
			func(e *memdv1.Event) { e.StateDelta = map[string]string{w.word("key"): w.word("value")} },
			func(e *memdv1.Event) { e.Author = strings.Repeat(w.word("author"), 30) },
		} {
			e := event(w.word("event"))
			spoil(e)
			bad[*memdv1.AppendEventsResponse](w, "AppendEvents")(w.sessions.AppendEvents(ctx, &memdv1.AppendEventsRequest{
				App: app, UserId: user, SessionId: id, Events: []*memdv1.Event{e},
			}))
		}
	}
	good[*memdv1.ListSessionsResponse](w, "ListSessions")(w.sessions.ListSessions(ctx, &memdv1.ListSessionsRequest{App: app, UserId: user}))
	bad[*memdv1.GetSessionResponse](w, "GetSession")(w.sessions.GetSession(ctx, &memdv1.GetSessionRequest{App: app, UserId: user, SessionId: w.word("session")}))
	gone := w.word("session")
	good[*memdv1.CreateSessionResponse](w, "CreateSession")(w.sessions.CreateSession(ctx, create(gone)))
	good[*memdv1.DeleteSessionResponse](w, "DeleteSession")(w.sessions.DeleteSession(ctx, &memdv1.DeleteSessionRequest{App: app, UserId: user, SessionId: gone}))
	bad[*memdv1.AppendEventsResponse](w, "AppendEvents to a deleted session")(w.sessions.AppendEvents(ctx, &memdv1.AppendEventsRequest{
		App: app, UserId: user, SessionId: gone, Events: []*memdv1.Event{event(w.word("event"))},
	}))
}
