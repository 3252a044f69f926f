package failures_test

// It came back.
//
//	a late write resurrects: langgraph#7206            ALateWriteResurrects;
//	                                                   tombstones.TestRace_NoWritePastAFence
//	learnt again from the same conversation:           LearntAgainFromTheSameConversation
//	  stella#671
//	the turn that asks to forget is remembered         TheTurnThatAsksIsRemembered
//	updating a soft-deleted session undeletes it: Zep  UpdatingUndeletes
//	history keeps the deleted text and feeds it back:  HistoryKeepsTheText
//	  mem0#5578
//	a restore resurrects                               restore.TestInvariant9_RestoreBringsNobodyBack

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

func TestFailure_langgraph_7206_ALateWriteResurrects(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	c.add(said("alice", "s1", "alice"))
	// Writers who began before go on through all of it, on both replicas.
	var written atomic.Int64
	enough, stop := make(chan struct{}), make(chan struct{})
	var group sync.WaitGroup
	began := time.Now()
	for i := range 6 {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				row := at(said("alice", []string{"s1", "s2", ""}[i%3], "late"), began)
				if i == 5 {
					row = at(contributed("alice", "s1", "late"), began)
				}
				_, err := c.memory[i%2].Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
				switch r := reason(err); {
				case err == nil:
					if written.Add(1) == 20 {
						close(enough)
					}
				case !slices.Contains([]string{"FENCED", "SUBJECT_FENCED", "SESSION_FORGOTTEN", "ERASED_BEFORE", "STALE"}, r):
					t.Errorf("refused with %q: %v", r, err)
					return
				}
			}
		})
	}
	select {
	case <-enough:
	case <-time.After(time.Minute):
		t.Error("the writers do not get on")
	}
	c.forgetUser(0, "alice")
	after := written.Load()
	c.wants(user("alice"))
	c.wants(shared())
	close(stop)
	group.Wait()
	if n := written.Load(); n != after {
		t.Errorf("%d rows were written after it was done", n-after)
	}
	if n := in.count(`SELECT count(*) FROM memd.memories`); n != 0 {
		t.Errorf("%d rows came back", n)
	}
}

func TestFailure_stella_671_LearntAgainFromTheSameConversation(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	spoken := time.Now().Add(-time.Hour)
	conversation := func() []*memdv1.Row {
		rows := []*memdv1.Row{at(said("alice", "s1", "I am allergic"), spoken), at(said("alice", "s1", "and I like tea"), spoken)}
		for i := range rows {
			rows[i].EventId = []string{"e1", "e2"}[i]
		}
		return rows
	}
	ids := c.add(conversation()...)
	c.forgetUser(0, "alice")
	for _, row := range conversation() {
		c.refused(row, "SESSION_FORGOTTEN", "ERASED_BEFORE")
	}
	c.refused(drawn(user("alice"), "allergic", ids[0]), "SOURCE_TIME_REQUIRED", "SOURCE_GONE")
	c.refused(at(drawn(user("bob"), "alice is allergic", ids[0]), time.Now()), "SOURCE_GONE")
	c.wants(user("alice"))
	// A single session likewise, while its user stays.
	c.add(at(said("bob", "b1", "I am bob"), spoken), at(said("bob", "b2", "still"), spoken))
	c.forgetSession(1, "bob", "b1")
	c.refused(at(said("bob", "b1", "I am bob"), spoken), "SESSION_FORGOTTEN")
	c.wants(user("bob"), "still")
}

func TestFailure_seeds_TheTurnThatAsksIsRemembered(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	c.add(said("alice", "s1", "alice"))
	asked := time.Now() // "Please forget me", she says, and the agent stores turns later.
	c.forgetUser(0, "alice")
	c.refused(at(said("alice", "s1", "please forget me"), asked), "SESSION_FORGOTTEN", "ERASED_BEFORE")
	c.refused(at(said("alice", "", "please forget me"), asked), "ERASED_BEFORE")
	c.refused(said("alice", "", "please forget me"), "SOURCE_TIME_REQUIRED")
	c.wants(user("alice"))
}

func TestFailure_Zep_UpdatingUndeletes(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	ids := c.add(said("alice", "s1", "alice"), said("alice", "s2", "deleted"), said("bob", "b1", "bob"))
	if _, err := c.memory[0].Delete(t.Context(), &memdv1.DeleteRequest{Scope: user("alice"), MemoryId: ids[1]}); err != nil {
		t.Fatal(err)
	}
	c.forgetSession(0, "alice", "s1")
	for _, m := range c.memory {
		for _, id := range ids[:2] {
			_, err := m.Update(t.Context(), &memdv1.UpdateRequest{
				Scope: user("alice"), MemoryId: id, ExpectedVersion: 1, Text: "back", UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"text"}},
			})
			if reason(err) != "NOT_FOUND" {
				t.Errorf("updating what is gone: %q, %v", reason(err), err)
			}
		}
	}
	c.wants(user("alice"))
	c.wants(user("bob"), "bob")
}

func TestFailure_mem0_5578_HistoryKeepsTheText(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	id := c.add(said("alice", "s1", "the old text"))[0]
	sealed := func() string {
		t.Helper()
		return in.text(`SELECT encode(sealed_text, 'hex') FROM memd.memories`)
	}
	old := sealed()
	_, err := c.memory[0].Update(t.Context(), &memdv1.UpdateRequest{
		Scope: user("alice"), MemoryId: id, ExpectedVersion: 1, Text: "the new text", Vector: vector(),
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"text", "vector"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.wants(user("alice"), "the new text")
	if now := sealed(); now == old || now == "" {
		t.Error("the old text is still there")
	}
	// Nowhere else either: no table keeps what was replaced.
	tables := in.texts(`SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'memd'`)
	for _, table := range tables {
		if n := in.count(`SELECT count(*) FROM `+table+` t WHERE strpos(t::text, $1) > 0`, old); n != 0 {
			t.Errorf("%s keeps the old text", table)
		}
	}
	if len(tables) < 15 {
		t.Errorf("%d tables were searched", len(tables))
	}
	c.forgetUser(0, "alice")
	c.wants(user("alice"))
}
