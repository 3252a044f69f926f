// Package memory stores rows and finds them again: Add, Search, Get, List,
// Update and Delete, and the deletions that an erasure asks for.
//
// A row's text, vector and metadata are sealed with a key that needs the key of
// every session that contributed to it (package shred), so that the database
// holds nothing that can be searched. Search therefore happens here: the
// vectors of a scope are opened once into memory (a resident scope), scanned
// exactly, and kept fresh by asking, with every search and in one statement,
// for what changed since the last one. Of a scope too large for that, codes of the
// vectors are in memory (a coded scope; package codes): they say which rows are
// worth reading, and those are ranked exactly. A scope too large even for its codes
// is scanned from the database in constant memory: slower, and exact.
//
// # Freshness
//
// Every row carries the transaction that last changed it. A reader remembers
// the oldest transaction that was still running at its last snapshot (xmin) and
// reads again whatever was changed by that one or a later: nothing that was in
// flight then can be missed, rows seen twice are recognised by their version,
// and no writer touches a row that other writers of the scope need. Deleted
// rows are announced by their tombstones and erased ones by hides, which are
// read by the same statement, together with the fence and the key epoch.
package memory
