// Package pg is memd's way to PostgreSQL: a bounded pool, transactions that
// always end, the translation of database errors into memd's own, migrations,
// advisory locks and notifications.
//
// No error that leaves this package carries the driver's text, because that
// text can hold literals: values of a failing row, arguments that could not be
// encoded, a connection string. What remains is the caller's own description
// of what it was doing, the SQLSTATE, and the names of the constraint and of
// the server's C function, which are never data.
package pg
