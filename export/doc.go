// Package export hands a tenant, or one user, everything that memd keeps of them:
// in a sealed archive that only the customer can open.
//
// # The archive
//
// An archive is made of parts, each a file of its own with a bounded group of
// subjects, and of a manifest that comes last: what parts there are, with their
// sizes, SHA-256 sums and counts. All are sealed with age to the recipients that
// came with the request; memd keeps no key that opens them. To who downloads it
// the archive is one file, a tar of these; Verify and Open read it.
//
// Inside, a part is a tar as well: for each subject a folder with a description,
// JSON lines (sessions, events, state, artifacts, memories with whose words they
// are of and what they were derived from) and the artifacts as files. Ids are in
// clear in there: it is the customer's data.
//
// # How it is made
//
// The worker writes parts one after the other, each as a stream: of rows, one is
// in memory, of the sessions of the subject that is being written, their ids. A
// part counts when its file is durable and its row in the journal is written;
// whoever comes after a crash deletes what was in flight and goes on behind the
// last part that counts.
//
// # Erasures
//
// Somebody who is being erased is in no part, whenever it was written. What is
// read is asked of views that do not show them. The database takes parts back that
// hold somebody, as owner or contributor, in the transaction that accepts the
// erasure, with the manifest and with every link; and every erasure of the tenant
// raises a number that a part must find unchanged when it is done, or else be made
// anew. The erasure itself waits until the files are gone, and says so.
//
// # Links
//
// A link is a secret of 256 bits, of which the database has the SHA-256 alone. It
// leads to one archive of one tenant, for MaxLinkLife at most, can be taken back,
// and each use is counted.
package export
