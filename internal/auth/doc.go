// Package auth keeps API keys and says who holds one.
//
// It owns the table memd.principals. A key is 32 random bytes; the table has
// their hash only. What a key may do is its set of roles; which role a call
// needs is the server's table, in internal/server.
//
// Authenticate asks the database on every call, so that a revoked key is refused
// by every replica from its next call on. The same round trip brings the tenant's
// state, policy and key epoch, which are needed fresh anyway.
//
// For a call that is no longer than that round trip itself there is Recall: what
// the last authentication found, and a premise that the call has compared with
// the database by a statement that it makes anyway. Nothing is ever trusted that
// was not found to hold by the call itself.
package auth
