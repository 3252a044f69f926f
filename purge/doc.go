// Package purge reaches the stores outside memd that an erasure must reach: it
// keeps the list of a tenant's purge targets, calls them, and keeps what they
// answered.
//
// # Targets
//
// A target is an endpoint that implements memd.v1.EraserService, a receiver of
// signed webhooks, a log file on the worker's disk, or a store that merely keeps
// things for a short time. It never changes once it is made: its address and its
// secret belong together, and whoever could move the address could read the
// secret. The secret is sealed under the tenant's key: the server seals it, the
// worker opens it, and nobody shows it again.
//
// # Calls
//
// A Caller counts, erases and verifies. Each call is idempotent at the target, is
// repeated within bounds when what went wrong may pass, and ends in an Ack: a
// code, counts, a time. Nothing of a target's answer is quoted anywhere but its
// numbers, because the answer may hold what was asked for; nothing of a request
// is quoted at all. What could not be checked has a code that says so
// (CodeUncounted, CodeResidual) and is no proof.
//
// An address is checked when it is dialled, after the name was resolved, so that
// a name which changes its mind in between leads nowhere. Proxies are not used,
// redirects are not followed, TLS is required beyond loopback, and answers are
// bounded.
//
// # Log files
//
// Lines are overwritten where they stand, in two steps with a sync between: first
// all of the line but what it was found by, then the rest. The file keeps its
// size, its inode and every other line, whoever appends to it meanwhile; a crash
// at any point leaves lines that the next try finds. A copy that replaces the
// file by renaming, the usual way, would lose what is appended through handles
// that are open on the old one, which is how programs write logs.
package purge
