// Package gcpkms speaks to Google Cloud KMS. It is the only package that
// imports the Cloud KMS client, and the only implementation of shred.KMS: the
// emulator of shred/kmsemu serves the same API and is spoken to by the same
// code, so what development and tests exercise is what production runs.
//
// # What it insists on
//
// Encryption names a version, never a key: "primary" is eventually consistent
// and may be moved by an automatic rotation, so the service would choose under
// which version a tenant's tree is wrapped. The answer's name must be the
// version that was asked for. Plaintext, associated data and ciphertext carry
// CRC32C both ways, and an answer that does not say that it verified ours, or
// whose own does not fit, is thrown away.
//
// # Shredded, or merely away
//
// Cloud KMS answers FAILED_PRECONDITION when a version may not be used, but not
// only then: a project whose KMS API was switched off and a version that is
// still being generated get the same code. So the code alone proves nothing.
// The refusal counts as memd.ErrShredded only when the answer itself names the
// state, either as a google.rpc.PreconditionFailure violation of type
// KEY_DISABLED, KEY_DESTROY_SCHEDULED or KEY_DESTROYED, or in the text "is not
// enabled, current state is: S" with one of these states; if both are there
// they must agree. Every other FAILED_PRECONDITION, and every code that this
// package does not know, is memd.ErrKeyUnavailable: it says nothing about the
// key, and confirms no destruction.
//
// # Retries
//
// UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, a version still being
// generated and damage in transit are tried again with exponential backoff and
// full jitter until Config.MaxElapsed. The library's own retries are switched
// off: two loops inside each other would multiply.
//
// Errors hold the method, the gRPC code, a machine-readable reason and resource
// names, never the service's text, which is not ours to vouch for.
package gcpkms
