// Package auth keeps API keys and says who holds one.
//
// It owns the table memd.principals. A key is 32 random bytes; the table has
// their hash only. What a key may do is its set of roles; which role a call
// needs is the server's table, in internal/server.
//
// Authenticate asks the database on every call and caches nothing, so that a
// revoked key is refused by every replica from its next call on. The same round
// trip brings the tenant's state, policy and key epoch, which are needed fresh
// anyway: it costs nothing that a cache would save.
package auth
