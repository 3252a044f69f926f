package failures_test

// Deleted less than was asked.
//
//	delete-all clears the first page: mem0#6627,       DeleteAllClearsOnlyTheFirstPage
//	  an AgentCore helper
//	the row goes and the vector stays, or the search   TheVectorStaysOrTheSearchFindsIt
//	  still returns it: mem0 PR #3610, #3695, #5066,
//	  cognee PR #1534, langgraph#8757
//	cleanup works only in the process that wrote:      CleansUpOnlyInTheProcessThatWrote
//	  mem0#7226
//	delete aborts half-way: mem0#5696                  DeleteAbortsHalfWay;
//	                                                   erasure.TestInvariant5_CrashSweep
//	events survive their session and come back when    EventsOfASessionComeBackWithItsID
//	  the id is used again: adk-python#2752
//	foreign keys block the deletion: adk-go#482        ForeignKeysBlockTheDeletion
//	success although the store failed:                 SuccessAlthoughTheStoreFailed
//	  TencentDB-Agent-Memory#1434, opencode-supermemory#5
//	complete while an embedding remains:               erasure.TestInvariant8_ASurvivorKeepsTheKeys
//	  semantica#1027
//	a tenant's foreign keys, a disabled connector:     connector_test.go
//	  breeze#4100, fides#2048

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

func TestFailure_mem0_6627_DeleteAllClearsOnlyTheFirstPage(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	c.add(said("bob", "b1", "bob"), contributed("bob", "b1", "bob shared"))
	for _, n := range []int{101, 1001, 10001} { // Above pages of 10, 100, 1,000 and our own batches.
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			id := fmt.Sprintf("user%d", n)
			rows := make([]*memdv1.Row, n)
			for i := range rows {
				switch {
				case i%10 == 9:
					rows[i] = contributed(id, fmt.Sprintf("s%d", i%1200), "shared")
				default:
					rows[i] = said(id, fmt.Sprintf("s%d", i%1200), "own")
				}
			}
			c.add(rows...)
			began := time.Now()
			r := c.forgetUser(n%2, id)
			took := time.Since(began)
			if before, after := store(r, "memories"); before != int64(n) || after != 0 {
				t.Errorf("the report says %d before and %d after", before, after)
			}
			if before, after := store(r, "sessions"); before != int64(min(n, 1200)) || after != 0 {
				t.Errorf("the report says %d sessions before and %d after", before, after)
			}
			c.wants(user(id))
			c.wants(shared(), "bob shared")
			if left := in.count(`SELECT count(*) FROM memd.memories`); left != 2 {
				t.Errorf("%d rows are left in the table", left-2)
			}
			if left := in.count(`SELECT count(*) FROM memd.sessions WHERE state <> 2 OR sealed_id <> ''`); left != 1 {
				t.Errorf("%d sessions are left", left-1)
			}
			// cognee PR #4235: 13,000 rows took half an hour.
			if t.Logf("%d rows were forgotten in %v", n, took); took > time.Minute {
				t.Error("that is too long")
			}
		})
	}
	c.wants(user("bob"), "bob")
}

func TestFailure_mem0_3610_TheVectorStaysOrTheSearchFindsIt(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	ids := c.add(said("alice", "s1", "one"), said("alice", "s1", "two"), said("bob", "b1", "bob"))
	c.wants(user("alice"), "one", "two") // In memory on both.
	if _, err := c.memory[1].Delete(t.Context(), &memdv1.DeleteRequest{Scope: user("alice"), MemoryId: ids[0]}); err != nil {
		t.Fatal(err)
	}
	c.wants(user("alice"), "two")
	r := c.forgetUser(0, "alice")
	if before, after := store(r, "vectors"); before != 1 || after != 0 {
		t.Errorf("the report says %d vectors before and %d after", before, after)
	}
	c.wants(user("alice"))
	if n := in.count(`SELECT count(*) FROM memd.memories WHERE sealed_vector IS NOT NULL`); n != 1 {
		t.Errorf("%d vectors are left", n)
	}
}

func TestFailure_mem0_7226_CleansUpOnlyInTheProcessThatWrote(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	c.add(said("alice", "s1", "alice"), contributed("alice", "s1", "alice shared"), contributed("bob", "b1", "bob shared")) // By the first.
	c.wants(user("alice"), "alice")
	c.wants(shared(), "alice shared", "bob shared")
	c.forgetUser(1, "alice") // By the second, carried out by a third process.
	_, url := in.Server()    // And one that never saw any of it.
	c.memory = append(c.memory, in.memoryAt(c, url))
	c.wants(user("alice"))
	c.wants(shared(), "bob shared")
	c.refused(said("alice", "s1", "late"), "SOURCE_TIME_REQUIRED", "SESSION_FORGOTTEN")
}

func TestFailure_mem0_5696_DeleteAbortsHalfWay(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	rows := make([]*memdv1.Row, 1500)
	for i := range rows {
		rows[i] = said("alice", "s1", "words")
	}
	c.add(append(rows, said("bob", "b1", "bob"))...)
	// The second batch fails, three times.
	in.exec(`CREATE SEQUENCE public.tries`)
	in.exec(`CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN
		  IF (SELECT count(*) FROM memd.memories) < 502 AND nextval('public.tries') <= 3 THEN RAISE EXCEPTION 'no'; END IF;
		  RETURN NULL;
		END $$`)
	in.exec(`CREATE TRIGGER fail AFTER DELETE ON memd.memories FOR EACH STATEMENT EXECUTE FUNCTION public.fail()`)
	r := c.forgetUser(0, "alice")
	if before, after := store(r, "memories"); before != 1500 || after != 0 {
		t.Errorf("the report says %d before and %d after", before, after)
	}
	if n := in.count(`SELECT last_value::int FROM public.tries`); n < 4 {
		t.Errorf("%d tries: nothing failed", n)
	}
	c.wants(user("alice"))
	c.wants(user("bob"), "bob")
}

func TestFailure_adk_python_2752_EventsOfASessionComeBackWithItsID(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	event := func(session string) *memdv1.Row {
		row := at(said("alice", session, "in "+session), time.Now())
		row.EventId = "e1"
		return row
	}
	c.add(event("s1"))
	c.forgetSession(0, "alice", "s1")
	c.wants(user("alice"))
	c.refused(event("s1"), "SESSION_FORGOTTEN")
	ids := c.add(event("s2")) // The same event's id in another session is another event.
	c.wants(user("alice"), "in s2")
	if again := c.add(event("s2")); again[0] != ids[0] {
		t.Error("the same event twice")
	}
	c.wants(user("alice"), "in s2")
}

func TestFailure_adk_go_482_ForeignKeysBlockTheDeletion(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	a := c.add(said("alice", "s1", "one"), said("alice", "s2", "two"))
	s := c.add(drawn(user("alice"), "summary", a...))
	c.add(drawn(user("alice"), "of the summary", s[0], a[1]))
	// From the bottom, with everything that hangs on it.
	if _, err := c.memory[0].Delete(t.Context(), &memdv1.DeleteRequest{Scope: user("alice"), MemoryId: a[0]}); err != nil {
		t.Fatal(err)
	}
	c.forgetSession(0, "alice", "s2")
	c.forgetUser(0, "alice")
	if n := in.count(`SELECT (SELECT count(*) FROM memd.memories) + (SELECT count(*) FROM memd.memory_sources) + (SELECT count(*) FROM memd.memory_contributions)`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

func TestFailure_TencentDB_1434_SuccessAlthoughTheStoreFailed(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	c.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	in.exec(`CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$`)
	in.exec(`CREATE TRIGGER fail BEFORE DELETE ON memd.memories FOR EACH STATEMENT EXECUTE FUNCTION public.fail()`)
	in.a.Erasure.Wait = time.Second
	req := &memdv1.ForgetUserRequest{App: app, UserId: "alice", RequestId: uuid.NewString()}
	res, err := c.eraser[0].ForgetUser(t.Context(), req)
	if r := res.GetReport(); err != nil || r.GetState() != memdv1.ErasureState_ERASURE_STATE_RUNNING || r.GetFinishedAt() != nil || r.GetKey() != nil {
		t.Errorf("while nothing can be deleted: %v, %v", r, err)
	}
	for _, s := range res.GetReport().GetCounts() {
		if s.After != nil {
			t.Errorf("%s was not counted after, and the report says %d", s.GetStore(), s.GetAfter())
		}
	}
	c.wants(user("alice")) // Hidden all the same.
	in.exec(`DROP TRIGGER fail ON memd.memories`)
	if res, err = c.eraser[1].ForgetUser(t.Context(), req); err != nil || res.GetReport().GetState() != memdv1.ErasureState_ERASURE_STATE_DONE {
		t.Errorf("afterwards: %v, %v", res, err)
	}
	c.wants(user("bob"), "bob")
}
