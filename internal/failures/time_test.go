package failures_test

// Add and update.
//
//	two concurrent adds of one thing make two rows:  memory.TestService_Add_sameEventAtOnce
//	  mem0#6515
//	update drops metadata: mem0#5160                 memory.TestService_Update
//
// Time.
//
//	deleting 13,000 rows takes half an hour:         mem0_6627, which bounds the time for 10,001
//	  cognee PR #4235
//	793 rows are fetched only to be deleted, 142 s:  ErasureOpensNothing
//	  MemOS#1103
//	expired rows are readable until the sweeper:     memory.TestService_Search_neverExpired,
//	  langgraph#8902                                 erasure.TestWorker_SweepsExpiredRows
//	vacuum of a large index: pgvector#450            connector_test.go

import "testing"

func TestFailure_MemOS_1103_ErasureOpensNothing(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	c.add(said("alice", "s1", "alice"), said("alice", "s2", "alice"), said("bob", "b1", "bob"))
	// No row of hers is read to be deleted: damaged ones go just as well.
	in.exec(`ALTER TABLE memd.memories DISABLE TRIGGER USER`)
	in.exec(`UPDATE memd.memories SET sealed_text = 'damaged', sealed_vector = 'damaged' WHERE contributor_no = (SELECT min(subject_no) FROM memd.subjects)`)
	in.exec(`ALTER TABLE memd.memories ENABLE TRIGGER USER`)
	r := c.forgetUser(0, "alice")
	if before, after := store(r, "memories"); before != 2 || after != 0 {
		t.Errorf("the report says %d before and %d after", before, after)
	}
	c.wants(user("alice"))
	c.wants(user("bob"), "bob")
}
