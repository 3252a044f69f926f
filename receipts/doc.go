// Package receipts makes the signed record of an erasure, keeps it in a
// transparency log, and checks it again, offline, with a public key alone.
//
// A Receipt holds no personal data. It says whom it is about by a salted
// Commitment, which only the holder of the salt can open. Each string in it is
// one of a closed set or of a strict pattern, and New refuses everything else:
// there is no field that a name, an address or a sentence would fit.
//
// Its encoding is canonical (RFC 8785) by construction: one value has one
// encoding, and Parse refuses any other bytes, also those that mean the same.
//
// # The log
//
// Each tenant has a log of its own: a Merkle tree after RFC 6962 whose leaves
// are Entries. An Entry is a receipt with its place in the log and the hash of
// the entry before it, signed with Ed25519. After each entry the log's head is
// signed as a checkpoint (C2SP tlog-checkpoint). A Bundle is all that a person
// is given: entry, signature, inclusion proof, checkpoint. The proof leads to
// the tree that ends with the entry, so that it also holds the whole left
// border of that tree: from one bundle and the entries after it, every later
// head can be computed, and two heads of one log be compared.
//
// # Order of writing, and crashes
//
// Ledger names are write-once and decide the log's order: "receipts/7/3" is the
// third-but-first entry of tenant 7 or nothing is. An Issuer reads the head that
// the database has, takes over what the ledger has beyond it, and only then
// writes its own entry: to every ledger location first, to the database last.
//
//   - Killed before the ledger took the entry: there is no receipt; the next
//     attempt makes it.
//   - Killed between ledger and database, or with a mirror half written: the
//     next Issue of that tenant, for whatever request, completes the mirror and
//     copies the entry into the database. An attempt for the same request then
//     finds it, and returns the same bytes.
//   - A database that was rolled back takes over what it lost, entry by entry,
//     in the same way. It cannot fork the log: the names are taken.
//   - Two issuers: one gets the name. The other takes the winner's entry over
//     and tries the next place. No lock is held.
//
// A receipt is issued when Issue has returned it, and then every ledger location
// and the database have it.
package receipts
