// Package tombstones keeps what must never come back out.
//
// A fence is the user-level tombstone "erasure in progress": no read and no
// write of that user's, on any replica, from the moment it committed. It is
// raised in two transactions. The first commits the state fencing without any
// lock, so that writers who arrive later are refused at once. The second takes
// the user's advisory lock exclusively, which every writer holds shared until
// it commits, and so waits for those who were already under way; it then hides
// the user's rows in every other scope and commits fenced. Between the two,
// nothing that was not committed can commit any more, and everything that was
// is visible to the erasure.
//
// The writers' half is in the database: the guard triggers of the migrations,
// which hand-written SQL meets as well.
//
// A session tombstone is permanent and drains the same way. Lifting a fence
// leaves the session tombstones, and erased_before: what was said before the
// erasure ended is refused for ever.
//
// Everything is keyed by digest, never by number, so that somebody never seen
// can be forgotten too and somebody who returns inherits what was decided.
package tombstones
