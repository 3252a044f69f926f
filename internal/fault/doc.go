// Package fault breaks things off on purpose, for tests: at the k-th thing that
// a process does to the world outside it (an SQL statement, a KMS call, a ledger
// operation), before that happened or after it did and before the answer came
// back. A test sweeps k over a whole operation until k is not reached any more.
// Only tests import it.
package fault
