// Package pgtest gives tests a real PostgreSQL with memd's schema.
//
// With MEMD_TEST_DATABASE_URL set, that server is used: the URL's role must be
// a superuser, and memd's roles must be able to log in with the URL's password.
// Otherwise all test processes of one user and one checkout share a private
// cluster. The first to come starts it, in a process of its own, which stops
// it and removes its folder some seconds after the last test process has ended,
// however that ended.
//
// Each test gets a database of its own, cloned from one that was migrated once,
// and dropped at the test's end. A test that cannot have one fails; none is
// skipped.
package pgtest
