// Package backup takes a dump of the database with what is needed to know what
// it is, and brings it into an empty database. It holds ciphertext, numbers and
// digests, as the database does, and leaves out the sketches of large scopes.
//
// A dump that was loaded is a database that was rolled back: package restore
// brings it up to the ledger before it serves.
package backup
