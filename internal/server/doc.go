// Package server is the API: it turns requests into calls of the domain
// packages, and their results and errors into answers. It decides nothing that
// the domain could decide, and it is the only place that knows Connect.
//
// One port serves Connect, gRPC and gRPC-Web, in protocol buffers and JSON, over
// HTTP/1.1 and HTTP/2 without TLS (which is a proxy's business), and beside them
// health (grpc.health.v1), reflection, /healthz, /readyz and, if asked, /metrics.
//
// # The order of the interceptors
//
// From the outside in, each with the reason for its place:
//
//  1. traces: sees the whole call and the answer that the caller sees.
//  2. metrics: likewise.
//  3. answers: the only place where an error becomes a code, a reason and a
//     text, so everything that can fail is further in. It logs what it hides.
//  4. panics: a panic further in becomes an internal error like any other.
//  5. authorisation: by headers alone, before a byte of the request is read. It
//     also bounds the time of the call.
//  6. quotas: before the request is read, too, of whoever may call.
//  7. validation: of every message as it is received.
//  8. durability: an answer that acknowledges what must outlive a rollback of the
//     database waits until it is in the ledgers.
//  9. the handler.
//
// # What may be logged
//
// Neither requests nor answers. A log line has the procedure, code, reason,
// duration, tenant, key id and, where somebody has to be told apart, a memd.Ref.
// An error's chain is logged only for faults of our own: those chains are made
// by memd's packages, which put neither content nor ids nor a driver's words
// into them. Of a panic only the type of its value and the stack are logged,
// because the value may hold anything.
package server
