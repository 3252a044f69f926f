// Package demo shows on one machine what memd promises, with nothing mocked:
// a private PostgreSQL, the API over HTTP with API keys, the worker, the KMS
// emulator over gRPC, a backup taken with pg_dump, and a store outside memd that
// is served with package eraser.
//
// Two tenants talk to their agents, who keep conversations, notes and files, over
// three months. One user is forgotten, by a job whose steps are shown, and every promise becomes a
// check that looks for itself: at the tables by SQL, at the bytes on the disk, at
// the key trees with the KMS at hand, at two copies restored from the same dump,
// at the receipts with the command line and the public key. Of the product's code
// the checks use the client's side of the API, the verification of receipts, and
// the decryption, because whoever steals a backup has that too.
//
// Then the oldest month of that tenant expires and the other tenant leaves, and a
// table says what can still be read, tenant by tenant, user by user and month by
// month, live and in the backup, with whatever key there is anywhere. Each cell is
// held against what was there before, by rules of the demo's own. The dates follow,
// and the bill of a larger installation, from what was counted.
//
// A check that cannot fail shows nothing. Each looks for the same thing before
// the forgetting and must find it, and Config.Instead leaves the forgetting
// out, or forges the receipt, so that the checks can be seen to fail.
package demo
