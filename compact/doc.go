// Package compact takes the bytes of deleted rows out of the database's files.
//
// A deleted row stays in its page until the page is vacuumed, and for a while
// after: PostgreSQL frees the space and does not overwrite it. Of erased rows
// these bytes are sealed under a key that is gone, so they tell nobody anything;
// compaction is for whoever wants them gone all the same.
//
// # Two modes
//
// A vacuum frees dead rows and what points at them, indexes included whatever
// their share (INDEX_CLEANUP ON: by itself PostgreSQL skips the indexes when few
// pages are dead). It blocks nobody. A rewrite (VACUUM FULL) copies the living rows
// of a table into new files and removes the old ones, with TOAST and indexes: after
// it nothing of deleted rows is left in any of them. It locks the table meanwhile,
// so its time is estimated and announced before and measured after.
//
// # Who, and what counts
//
// All of it runs as memd_maintain, over a connection string of its own, in one
// worker at a time. A VACUUM by a role without the right warns, does nothing and
// succeeds; so does one that skips a table. Notices are collected, and a VACUUM
// that raised one has failed. A rewrite also has to have changed the table's file.
// What a transaction may still see is not removed either, and a rewrite copies it:
// a compaction waits until everybody who was there when it began has ended.
//
// # Blocking
//
// A statement that waits for a lock has everybody else wait behind it. So a rewrite
// looks first whether somebody keeps the table locked, queues for LockTimeout at
// most, and tries again.
//
// # Crashes
//
// The journal says what was asked, which tables are done, and which one was being
// done. A table is done when its VACUUM returned and nothing was amiss; whoever was
// killed before that left it as it was, and it is done again. See
// docs/design/0015-compaction.md.
package compact
