// Package journal keeps what must outlive a rollback of the database outside
// it, and keeps a database that was rolled back from serving.
//
// # Facts
//
// Triggers write facts (tombstones, fences, erasures, holds, tenants' states,
// policies and transitions, revoked API keys, punctures, purge targets, key trees) into
// memd.ledger_outbox, in the transaction that makes them. Whoever ships takes all that are committed,
// writes them as one record to every ledger, and takes them out of the outbox in
// the transaction that notes the record. A fact is taken out by its own id, not
// up to a number, so one whose transaction commits late is not skipped; and of
// two facts about one row the later one was numbered after the earlier one had
// committed, so that they keep their order.
//
// A record is journal/<number>, written once: a checksum, the digest of the
// record before it, the installation and its generation. Whoever died between
// writing a record and noting it has left facts in the outbox that are in the
// record: the next one takes the record as its own, if all of its facts are
// there and the same. If they are not, the database was rolled back.
//
// What was committed is acknowledged, and a key version is destroyed, only after
// Flush.
//
// # A new kind of fact
//
// Whatever would be wrong to lose by a rollback is a fact. Six places know of a
// kind, all but the first two in the migration of the outbox:
//
//  1. Kind in record.go, and its name: append only.
//  2. What makes it waits for Flush: internal/server/durable.go.
//  3. The bound of memd.ledger_outbox.kind, and the list in its comment.
//  4. A trigger on the table, memd.note_fact with the kind and the columns that
//     are left out; or memd.note_facts, where statements change many rows. None
//     names anybody, and no column is secret unless sealed.
//  5. memd.replay_fact: how a database that lost it has it again. It is called
//     with every fact of every kind in the order in which they were made, also
//     with such as it has, and may be called again. memd.replay_row puts a row
//     back as it was; the table's own triggers fire.
//  6. memd.note_all, for ledgers that are rebuilt.
//
// TestJournal_EveryKind fails while one of 4 to 6 is missing.
//
// # Gate
//
// A restart, a failover, a restore and a copy change the answer of memd.server.
// Every new connection is asked for it, and so is the database, once a second.
// When it differs from what was last compared, nothing more is answered until
// the database's last record is the ledger's last. Then a generation is claimed
// in the ledger, under a name that is written once, and raised in the database,
// so that no number that may have been given out in a lost stretch of time is
// given out again; and the gate opens. Otherwise it stays closed until memd
// restore has run. A process that was running before a restore ends after it:
// whatever it remembers is of a past that did not happen.
package journal
