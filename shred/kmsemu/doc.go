// Package kmsemu is an EMULATOR of Google Cloud KMS, for development and tests
// ONLY. It protects nothing: its keys lie in clear in a file on this machine,
// whoever reads that file reads everything, a destroyed key may survive in freed
// disk blocks, snapshots and backups of that disk, and its callers prove
// themselves with a token that travels without TLS.
//
// It serves the real gRPC API (google.cloud.kms.v1.KeyManagementService), so
// that the client of production runs against it unchanged, and keeps to what
// Google documents where memd depends on it:
//
//   - Versions are ENABLED, DISABLED, DESTROY_SCHEDULED or DESTROYED. Only
//     ENABLED and DISABLED ones can be scheduled for destruction; what is
//     scheduled can be restored, and comes back DISABLED; what is destroyed
//     never comes back, and its material leaves the file.
//   - The destroy delay is fixed when a key is made: 24 hours to 120 days, 30
//     days when nothing is said.
//   - A version that is not ENABLED is refused with FAILED_PRECONDITION and a
//     PreconditionFailure that names the state.
//   - Encrypt takes a version, or a key and then uses its primary version.
//     Decrypt takes a key and finds the version in the ciphertext. Associated
//     data is authenticated. Checksums are verified and given both ways.
//   - A key with a rotation period rotates by itself, so that a test can show
//     what that does to whoever relies on the primary version.
//
// Symmetric software keys are all it has. Other methods answer UNIMPLEMENTED.
//
// Callers are told apart by a bearer token and may do what the four identities
// of memd may do in production; see Identity.
//
// State changes are on disk before they are answered: one JSON file, replaced
// atomically and synced with its directory, readable by its owner alone, and
// locked against a second process. The file never belongs in the database, nor
// on its volume: what destroying a key proves is that the copies of the
// database cannot bring it back.
package kmsemu
