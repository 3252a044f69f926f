// Package shred makes data unreadable for good: it derives every data key of a
// tenant from a puncturable tree, seals under them, and replaces the tree by
// one from which the keys of the erased cannot be derived any more.
//
// # Keys
//
// A Tree is a GGM tree (a puncturable pseudorandom function): child(k, b) =
// HMAC-SHA256(k, label ‖ b). A Path names a node. Keys are taken from leaves
// only: one for each class of each session of a subject, each month, each job.
// Nothing is stored for a new user, session or month. Tree.Next punctures
// paths; what is left are the siblings along them.
//
// Keys derives what callers use. A row's key needs its month's leaf and the
// leaf of every session whose words went into it, so one puncture shreds every
// row that someone contributed to, in every backup. A Sealer seals under such a
// key; the AAD functions bind a value to its place.
//
// # Epochs
//
// Each state of a tree (epoch) is sealed by SealTree under one explicit version
// of the tenant's KMS key and may be copied anywhere: it dies when that version
// is destroyed. ProveCover must accept the new state before anybody destroys
// the version of the old one.
//
// # Invariants
//
//   - No key of a state is at, above or below a punctured path.
//   - A puncture changes no other leaf's key.
//   - A state has one encoding; whatever else comes is refused as corrupt.
//   - memd.ErrShredded is said for a punctured path or a KMS version that the
//     KMS itself calls unusable, and for nothing else: not for a KMS that is
//     away, nor for data that does not verify.
//   - No error, log line or digest holds key bytes or content.
//
// # Failure
//
// Deriving has no side effects. Next leaves the old tree usable. SealTree may
// be repeated: each result is another value of the same state. Zeroing is best
// effort: the tree and the cached leaves are overwritten at Keys.Drop, copies
// on stacks and AES key schedules wait for the collector.
package shred
