package cleartext_test

import (
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// throughEveryCall uses every call of the API with content.
func (w *world) throughEveryCall(user, session string) {
	ctx := w.t.Context()
	event := w.word("event")
	added := good[*memdv1.AddResponse](w, "Add")(w.memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{
		{Scope: userScope(user), SessionId: session, Kind: memdv1.Kind_KIND_RAW, Text: w.word("text"), Vector: w.direction(),
			Metadata: map[string]string{w.word("key"): w.word("value")}, EventId: event, SourceTime: timestamppb.Now()},
		{Scope: userScope(user), SessionId: session, Kind: memdv1.Kind_KIND_RAW, Text: strings.Repeat(w.word("long")+" ", 200)},
		{Scope: sharedScope, Contributor: &memdv1.Session{UserId: user, SessionId: session}, Kind: memdv1.Kind_KIND_FACT, Text: w.word("text"), Vector: w.direction()},
	}})).GetResults()
	good[*memdv1.AddResponse](w, "Add derived")(w.memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{{
		Scope: userScope(w.word("user")), Kind: memdv1.Kind_KIND_SUMMARY, Text: w.word("text"),
		Sources: []*memdv1.Source{{Source: &memdv1.Source_MemoryId{MemoryId: added[0].GetMemoryId()}}},
	}}}))
	good[*memdv1.AddResponse](w, "Add again")(w.memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{{
		Scope: userScope(user), SessionId: session, Kind: memdv1.Kind_KIND_RAW, Text: w.word("text"), EventId: event,
	}}}))
	found := good[*memdv1.SearchResponse](w, "Search")(w.memory.Search(ctx, &memdv1.SearchRequest{
		Scope: userScope(user), Text: w.word("query"), TopK: 5, IncludeShared: true, IncludeVectors: true,
	}))
	if len(found.GetHits()) == 0 {
		w.t.Fatal("Search finds nothing: the test would be vacuous")
	}
	good[*memdv1.SearchResponse](w, "Search")(w.memory.Search(ctx, &memdv1.SearchRequest{
		Scope: userScope(user), Vector: w.direction(), Filter: &memdv1.Filter{SessionIds: []string{session}, Metadata: map[string]string{w.word("key"): w.word("value")}},
	}))
	for _, filter := range []*memdv1.Filter{nil, {SessionIds: []string{session}, Metadata: map[string]string{w.word("key"): w.word("value")}}} {
		good[*memdv1.ListResponse](w, "List")(w.memory.List(ctx, &memdv1.ListRequest{Scope: userScope(user), PageSize: 1, IncludeVectors: true, Filter: filter}))
	}
	got := good[*memdv1.GetResponse](w, "Get")(w.memory.Get(ctx, &memdv1.GetRequest{Scope: userScope(user), MemoryId: added[1].GetMemoryId(), IncludeVector: true}))
	good[*memdv1.UpdateResponse](w, "Update")(w.memory.Update(ctx, &memdv1.UpdateRequest{
		Scope: userScope(user), MemoryId: added[1].GetMemoryId(), ExpectedVersion: got.GetMemory().GetVersion(),
		Text: w.word("text"), Vector: w.direction(), Metadata: map[string]string{w.word("key"): w.word("value")},
	}))
	good[*memdv1.DeleteResponse](w, "Delete")(w.memory.Delete(ctx, &memdv1.DeleteRequest{Scope: userScope(user), MemoryId: added[2].GetMemoryId()}))
	w.inSharedScope(user, session)
	good[*memdv1.AddSessionResponse](w, "AddSession")(w.memory.AddSession(ctx, &memdv1.AddSessionRequest{App: app, UserId: user, SessionId: w.word("session"), Events: []*memdv1.Event{{
		Id: w.word("event"), Author: w.word("author"), InvocationId: w.word("invocation"), Branch: w.word("branch"), Timestamp: timestamppb.Now(),
		Content: `{"parts":[{"text":"` + w.word("text") + `"}]}`, StateDelta: map[string]string{w.word("key"): `"` + w.word("value") + `"`},
		Actions: `{"transferToAgent":"` + w.word("author") + `"}`, Extra: `{"more":"` + w.word("text") + `"}`,
	}}}))
	other, gone := w.word("user"), w.word("session")
	good[*memdv1.AddResponse](w, "Add")(w.memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{
		{Scope: userScope(other), SessionId: gone, Kind: memdv1.Kind_KIND_RAW, Text: w.word("text"), Vector: w.direction()},
	}}))
	good[*memdv1.ForgetSessionResponse](w, "ForgetSession")(w.erasure.ForgetSession(ctx, &memdv1.ForgetSessionRequest{
		App: app, UserId: other, SessionId: gone, RequestId: uuid.NewString(),
	}))
	good[*memdv1.ForgetUserResponse](w, "ForgetUser")(w.erasure.ForgetUser(ctx, &memdv1.ForgetUserRequest{
		App: app, UserId: other, RequestId: uuid.NewString(),
	}))
	bad[*memdv1.AddResponse](w, "Add to a forgotten session")(w.memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{
		{Scope: userScope(other), SessionId: gone, Kind: memdv1.Kind_KIND_RAW, Text: w.word("text"), SourceTime: timestamppb.Now()},
	}}))
}

// inSharedScope uses the calls on what an app's users share.
func (w *world) inSharedScope(user, session string) {
	ctx := w.t.Context()
	source := []*memdv1.Source{{Source: &memdv1.Source_Session{Session: &memdv1.Session{UserId: user, SessionId: session}}}}
	id := good[*memdv1.AddResponse](w, "Add from a session")(w.memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{
		{Scope: sharedScope, Kind: memdv1.Kind_KIND_FACT, Text: w.word("text"), Vector: w.direction(), Sources: source},
	}})).GetResults()[0].GetMemoryId()
	good[*memdv1.SearchResponse](w, "Search")(w.memory.Search(ctx, &memdv1.SearchRequest{Scope: sharedScope, Text: w.word("query")}))
	good[*memdv1.ListResponse](w, "List")(w.memory.List(ctx, &memdv1.ListRequest{Scope: sharedScope}))
	got := good[*memdv1.GetResponse](w, "Get")(w.memory.Get(ctx, &memdv1.GetRequest{Scope: sharedScope, MemoryId: id}))
	good[*memdv1.UpdateResponse](w, "Update")(w.memory.Update(ctx, &memdv1.UpdateRequest{
		Scope: sharedScope, MemoryId: id, ExpectedVersion: got.GetMemory().GetVersion(), Text: w.word("text"), Vector: w.direction(), Sources: source,
	}))
	good[*memdv1.DeleteResponse](w, "Delete")(w.memory.Delete(ctx, &memdv1.DeleteRequest{Scope: sharedScope, MemoryId: id}))
}
