package server_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect/v2"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/server"
)

// What changes something that must outlive a rollback waits for the ledgers, and
// what only reads or remembers does not.
func TestDurability_KnowsEveryProcedure(t *testing.T) {
	reads := []string{
		"Search", "Get", "List", "Load", "Watch", "Verify", "DryRun", "Test", "Save", "Append", "CreateSession", "CreateApiKey",
		"RemoveSurvivors", "PlanRetention",
		"StartExport", "DeleteExport", "CreateExportLink", "RevokeExportLink",
		"PlanCompaction", "RunCompaction", "PauseCompaction", "ResumeCompaction", "SetCompactionSchedule",
	}
	for _, p := range server.Procedures() {
		waits, known := server.Durability(p)
		if !known {
			t.Errorf("%s has no row: does it make facts that must outlive a rollback?", p)
			continue
		}
		_, method, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
		want := !slices.ContainsFunc(reads, func(prefix string) bool { return strings.HasPrefix(method, prefix) })
		if waits != want {
			t.Errorf("%s: waits %v, want %v", p, waits, want)
		}
	}
}

// An answer is held back until the ledgers have it, and an acknowledgement that
// they do not have is none.
func TestDurability_NoAcknowledgementBeforeTheLedger(t *testing.T) {
	in := setup(t)
	var asked atomic.Int64
	var away atomic.Bool
	in.durable = func(context.Context) error {
		asked.Add(1)
		if away.Load() {
			return memd.ErrLedgerUnavailable
		}
		return nil
	}
	tenant := in.tenant("acme")
	_, secret := in.key(tenant.No, auth.Agent|auth.Eraser)
	s := in.serve()
	row := raw(user("chat", "alice"), "tea")
	row.EventId, row.SessionId = "e1", "s1"
	added, err := s.memory(secret).Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
	if err != nil || asked.Load() != 0 {
		t.Fatalf("adding asked %d times, %v", asked.Load(), err)
	}
	away.Store(true)
	refused := func(what string, err error) {
		t.Helper()
		got := answerOf(t, err)
		if got.code != connect.CodeUnavailable || got.reason != "LEDGER_UNAVAILABLE" {
			t.Errorf("%s: %v", what, got)
		}
	}
	id := added.GetResults()[0].GetMemoryId()
	row.Text = "coffee"
	_, err = s.memory(secret).Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
	refused("replacing a text", err)
	deletion := &memdv1.DeleteRequest{Scope: user("chat", "alice"), MemoryId: id}
	_, err = s.memory(secret).Delete(t.Context(), deletion)
	refused("deleting", err)
	if _, err := s.memory(secret).Search(t.Context(), &memdv1.SearchRequest{Scope: user("chat", "bob"), Text: "tea"}); err != nil {
		t.Errorf("searching waits for no ledger: %v", err)
	}
	away.Store(false)
	if _, err := s.memory(secret).Delete(t.Context(), deletion); err != nil {
		t.Errorf("calling again: %v", err)
	}
}
