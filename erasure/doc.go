// Package erasure forgets: a user, or one session of a user, everywhere that
// memd keeps anything of them, and in every backup.
//
// # Steps
//
// An erasure is a persisted request and a fixed list of steps, each journalled
// when it is done; plans has them by kind. Of a user:
//
//	draw             the verifier draws probes, and shows that it finds them
//	fence, bury      no read and no write; tombstones of the sessions
//	targets_before   stores outside memd that need the sessions
//	artifacts        while their session still lists them
//	targets_with, content, delete
//	verify           the tables are counted: nothing
//	puncture, rotate the keys go, from every backup
//	targets_after
//	compact          asked for, of tables that are everybody's; it follows when it may
//	check
//	lift             done: a provisional receipt, and the fence comes down
//	sweep            again, after the tenant's ingestion delay
//	compacted        the compaction has come to its end, or will not
//	recheck
//	final            the final receipt
//
// A legal hold pauses before a step, never inside one. The steps are run by jobs
// of a queue: docs/design/0008-jobs.md says how.
//
// The fence, or the session's tombstone, comes first, in the transaction that
// accepts the request: a trigger sets it, because the application that accepts
// may not, and so it holds whether or not a worker is there. The worker then
// waits for the writers that were under way. From then on no read shows and no
// write adds anything of whom it is about, so that what is deleted next stays
// deleted. Deletion goes by provenance: rows in the user's own scope,
// and rows in any other scope to which the user contributed, summaries of
// summaries included. Only when the tables were counted and nothing is left is
// the key tree punctured and rotated, which is what reaches the backups. Keys
// go last, because a destroyed key would hide what the deletion missed.
//
// # Failure
//
// Every step may stop anywhere and be run again: deleting what is gone
// succeeds, tombstones and punctures are idempotent, a rotation resumes from its
// own journal. An erasure that cannot go on (the KMS is away) stays in its
// state, is tried again with backoff, and never claims to be done. A request id
// that comes again returns the same erasure.
package erasure
