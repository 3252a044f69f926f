// Package sketches keeps, in the database, what an index there can search of scopes
// too large for a replica's memory: each row's id and the bits of its code (package
// codes), in one UNLOGGED table a scope, under HNSW by Hamming distance.
//
// Bits in clear are obfuscation, not encryption: without the scope's rotation they
// show which of its rows are alike, and about a hundred known pairs break the
// rotation. So they exist only for scopes that ask for them and of tenants whose
// policy allows them, never in the write-ahead log, a standby or a backup, and not
// any more from the moment at which somebody whose words are in the scope is
// forgotten: the transaction that says so takes the table out of the directory
// (memd.sketches), and it is dropped as soon as nobody reads it.
//
// A table is as of a transaction, its Since: it has every row that was committed by
// one before. Rows that changed since are found among the rows themselves, so adding
// costs nothing here, and now and then the builder brings the table up to date.
// Directory and table change in one transaction, so whoever reads both in one
// snapshot reads one state. A table is never emptied or used again, because both
// would be seen by snapshots from before; one that was dropped is an error to them,
// ErrGone.
//
// The application reads; memd_maintain builds and writes, through functions of the
// schema's owner, which all tables belong to. See docs/design/0019-sketches.md.
package sketches
