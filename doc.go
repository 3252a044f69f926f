// Package memd is the vocabulary of memd, a memory service for AI agents that
// can forget and prove it: identifiers, numbers, classes of data, the errors
// that callers can test for, and the clock.
//
// It imports the standard library only, and everything else in the module may
// import it. The service itself is built from the packages below it in the
// tree: shred (keys), provenance (who and which session), tombstones (fences),
// memory (rows and search), erasure (forgetting) and internal/server (the API).
package memd
