package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"forgettable.dev/memd/compact"
	"forgettable.dev/memd/erasure"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/tenants"
)

// TestEnums_HaveTheSameNumbersEverywhere: the handlers convert by number.
func TestEnums_HaveTheSameNumbersEverywhere(t *testing.T) {
	for prefix, c := range map[string]struct {
		enum protoreflect.EnumDescriptor
		name func(n int32) fmt.Stringer
	}{
		"KIND_":                   {memdv1.Kind(0).Descriptor(), func(n int32) fmt.Stringer { return memory.Kind(n) }},
		"TENANT_STATE_":           {memdv1.TenantState(0).Descriptor(), func(n int32) fmt.Stringer { return tenants.State(n) }},
		"VECTOR_FORMAT_":          {memdv1.VectorFormat(0).Descriptor(), func(n int32) fmt.Stringer { return tenants.VectorFormat(n) }},
		"INDEX_MODE_":             {memdv1.IndexMode(0).Descriptor(), func(n int32) fmt.Stringer { return tenants.IndexMode(n) }},
		"LIFT_FENCE_":             {memdv1.LiftFence(0).Descriptor(), func(n int32) fmt.Stringer { return tenants.LiftMode(n) }},
		"COMPACTION_MODE_":        {memdv1.CompactionMode(0).Descriptor(), func(n int32) fmt.Stringer { return tenants.CompactionMode(n) }},
		"COMPACTION_CAUSE_":       {memdv1.CompactionCause(0).Descriptor(), func(n int32) fmt.Stringer { return compact.Cause(n) }},
		"COMPACTION_STATE_":       {memdv1.CompactionState(0).Descriptor(), func(n int32) fmt.Stringer { return compact.State(n) }},
		"TABLE_COMPACTION_STATE_": {memdv1.TableCompactionState(0).Descriptor(), func(n int32) fmt.Stringer { return compact.TableState(n) }},
		"ERASURE_STATE_":          {memdv1.ErasureState(0).Descriptor(), func(n int32) fmt.Stringer { return erasure.State(n) }},
	} {
		for i := range c.enum.Values().Len() {
			v := c.enum.Values().Get(i)
			if v.Number() == 0 {
				continue
			}
			api := strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix))
			if domain := c.name(int32(v.Number())).String(); domain != api {
				t.Errorf("%s is %q in the domain", v.Name(), domain)
			}
		}
		if domain := c.name(int32(c.enum.Values().Len())).String(); !strings.Contains(domain, "(") {
			t.Errorf("%s lacks the domain's %q", c.enum.Name(), domain)
		}
	}
	if compact.Vacuum != compact.Mode(tenants.CompactionVacuum) || compact.Rewrite != compact.Mode(tenants.CompactionRewrite) {
		t.Error("modes of tenants and compact differ")
	}
	if memory.FormatFloat16 != memory.VectorFormat(tenants.Float16) || memory.FormatFloat32 != memory.VectorFormat(tenants.Float32) {
		t.Error("vector formats of tenants and memory differ")
	}
	for status, api := range map[memory.Status]memdv1.AddStatus{
		memory.StatusCreated: memdv1.AddStatus_ADD_STATUS_CREATED, memory.StatusUpdated: memdv1.AddStatus_ADD_STATUS_UPDATED,
		memory.StatusUnchanged: memdv1.AddStatus_ADD_STATUS_UNCHANGED, memory.StatusKept: memdv1.AddStatus_ADD_STATUS_KEPT,
		memory.StatusDeleted: memdv1.AddStatus_ADD_STATUS_DELETED,
	} {
		if int(status) != int(api) {
			t.Errorf("%v is %d in the domain", api, status)
		}
	}
}

// TestMemory_EveryFieldArrives takes a row through all calls, by another
// replica each time.
func TestMemory_EveryFieldArrives(t *testing.T) {
	in := setup(t)
	first, second := in.serve(), in.serve()
	_, secret := in.key(in.tenant("acme").No, auth.Agent)
	a, b := first.memory(secret), second.memory(secret)
	ctx := t.Context()
	spoken := timestamppb.New(time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC))
	expires := timestamppb.New(time.Now().Add(time.Hour))
	alice := user("chat", "alice")
	row := &memdv1.Row{
		Scope: alice, SessionId: "s1", Kind: memdv1.Kind_KIND_RAW, Text: "She lives at 12 Elm Street.",
		Metadata: map[string]string{"lang": "en"}, EventId: "e1", SourceTime: spoken, ExpiresAt: expires,
	}
	added, err := a.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
	if err != nil {
		t.Fatal(err)
	}
	id := added.GetResults()[0].GetMemoryId()
	again, err := b.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
	if err != nil || again.GetResults()[0].GetStatus() != memdv1.AddStatus_ADD_STATUS_UNCHANGED || again.GetResults()[0].GetMemoryId() != id {
		t.Errorf("again: %v, %v", again, err)
	}
	got, err := b.Get(ctx, &memdv1.GetRequest{Scope: alice, MemoryId: id, IncludeVector: true})
	if err != nil {
		t.Fatal(err)
	}
	m := got.GetMemory()
	if m.GetText() != row.GetText() || m.GetMetadata()["lang"] != "en" || len(m.GetVector()) != 384 || m.GetVersion() != 1 ||
		fmt.Sprint(m.GetSessionIds()) != "[s1]" || m.GetContributionCount() != 1 || m.GetKind() != memdv1.Kind_KIND_RAW ||
		m.GetScope().GetUser().GetUserId() != "alice" || m.GetSourceTime().GetNanos() != 123456000 || m.GetExpiresAt() == nil || m.GetCreatedAt() == nil {
		t.Errorf("got %v", m)
	}
	// A summary of it, in the shared scope.
	derived, err := a.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{{
		Scope: shared("chat"), Kind: memdv1.Kind_KIND_SUMMARY, Text: "Somebody lives in Elm Street.",
		Sources: []*memdv1.Source{{Source: &memdv1.Source_MemoryId{MemoryId: id}, Version: 1}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	// A source's session is the scope's user's where it names nobody.
	fact, err := a.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{{
		Scope: user("chat", "carol"), Kind: memdv1.Kind_KIND_FACT, Text: "Carol was here.",
		Sources: []*memdv1.Source{{Source: &memdv1.Source_Session{Session: &memdv1.Session{SessionId: "s7"}}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	carol, err := b.Get(ctx, &memdv1.GetRequest{Scope: user("chat", "carol"), MemoryId: fact.GetResults()[0].GetMemoryId()})
	if err != nil || fmt.Sprint(carol.GetMemory().GetSessionIds()) != "[s7]" {
		t.Errorf("drawn from a session of the scope's user: %v, %v", carol, err)
	}
	for includeShared, want := range map[bool]int{false: 1, true: 2} {
		found, err := b.Search(ctx, &memdv1.SearchRequest{Scope: alice, Text: "elm street", IncludeShared: includeShared})
		if err != nil || len(found.GetHits()) != want {
			t.Errorf("include_shared %v: %v, %v", includeShared, found, err)
		}
	}
	for weight, fused := range map[float32]bool{0: false, 0.5: true, 1: true} {
		found, err := b.Search(ctx, &memdv1.SearchRequest{Scope: alice, Text: "elm street", IncludeShared: true, LexicalWeight: weight})
		if err != nil || len(found.GetHits()) != 2 || found.GetFused() != fused {
			t.Errorf("lexical_weight %g: %v, %v", weight, found, err)
		}
	}
	for field, bad := range map[string]*memdv1.SearchRequest{
		"lexical_weight": {Scope: alice, Text: "elm", LexicalWeight: 1.5},
		"text":           {Scope: alice, Vector: make([]float32, 384), LexicalWeight: 1},
	} {
		_, err := b.Search(ctx, bad)
		if got := answerOf(t, err); got.code != connect.CodeInvalidArgument || !strings.Contains(got.message, field) {
			t.Errorf("%s: %v", field, got)
		}
	}
	for name, c := range map[string]struct {
		filter *memdv1.Filter
		want   int
	}{
		"its kind":        {&memdv1.Filter{Kinds: []memdv1.Kind{memdv1.Kind_KIND_RAW}}, 1},
		"another kind":    {&memdv1.Filter{Kinds: []memdv1.Kind{memdv1.Kind_KIND_FACT}}, 0},
		"its session":     {&memdv1.Filter{SessionIds: []string{"s0", "s1"}}, 1},
		"another session": {&memdv1.Filter{SessionIds: []string{"s0"}}, 0},
		"its metadata":    {&memdv1.Filter{Metadata: map[string]string{"lang": "en"}}, 1},
		"other metadata":  {&memdv1.Filter{Metadata: map[string]string{"lang": "de"}}, 0},
		"from its time":   {&memdv1.Filter{SourceTime: &memdv1.TimeRange{From: timestamppb.New(spoken.AsTime().Truncate(time.Microsecond))}}, 1},
		"to its time":     {&memdv1.Filter{SourceTime: &memdv1.TimeRange{To: timestamppb.New(spoken.AsTime().Truncate(time.Microsecond))}}, 0},
	} {
		list, err := b.List(ctx, &memdv1.ListRequest{Scope: alice, Filter: c.filter})
		if err != nil || len(list.GetMemories()) != c.want {
			t.Errorf("listing by %s: %v, %v", name, list, err)
		}
		found, err := b.Search(ctx, &memdv1.SearchRequest{Scope: alice, Text: "elm street", Filter: c.filter})
		if err != nil || len(found.GetHits()) != c.want {
			t.Errorf("searching by %s: %v, %v", name, found, err)
		}
	}
	updated, err := b.Update(ctx, &memdv1.UpdateRequest{
		Scope: alice, MemoryId: id, ExpectedVersion: 1, Text: "She moved to 3 Oak Lane.",
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"text", "expires_at", "metadata"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if u := updated.GetMemory(); u.GetText() != "She moved to 3 Oak Lane." || u.GetExpiresAt() != nil || len(u.GetMetadata()) != 0 || u.GetVersion() != 2 {
		t.Errorf("updated to %v", u)
	}
	_, err = a.Update(ctx, &memdv1.UpdateRequest{Scope: alice, MemoryId: id, ExpectedVersion: 1, Text: "lost"})
	if got := answerOf(t, err); got.reason != "VERSION_CONFLICT" {
		t.Errorf("a lost update: %v", got)
	}
	kept, err := a.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
	if err != nil || kept.GetResults()[0].GetStatus() != memdv1.AddStatus_ADD_STATUS_KEPT {
		t.Errorf("after the update: %v, %v", kept, err)
	}
	gone, err := a.Delete(ctx, &memdv1.DeleteRequest{Scope: alice, MemoryId: id, DeleteDerived: true})
	if err != nil || gone.GetDerivedDeleted() != 1 {
		t.Errorf("deleted %v, %v", gone, err)
	}
	for scope, memory := range map[*memdv1.Scope]string{alice: id, shared("chat"): derived.GetResults()[0].GetMemoryId()} {
		_, err := b.Get(ctx, &memdv1.GetRequest{Scope: scope, MemoryId: memory})
		if got := answerOf(t, err); got.reason != "NOT_FOUND" {
			t.Errorf("after the deletion: %v", got)
		}
	}
}
