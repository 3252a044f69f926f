// Package restore brings a database that was rolled back up to its ledger: after
// a dump was restored, a point-in-time recovery, a snapshot, or a failover that
// lost something.
//
// It deletes by tombstone only. Facts of the journal that the database lacks are
// brought back record by record; key trees come from the ledgers, and never
// replace a newer one; every erasure that the database had not done yet is
// carried out by the same code that carries out any, up to the rotation of keys;
// the rows that are left must open with the keys that are left, or the gate stays
// closed and they are listed. Then the generation is raised, the job queue is
// filled anew, and the gate opens. What cannot be undone (rotations, and the
// destruction of key versions) waits for Release.
//
// Each record is one transaction with the note that it was replayed, and what is
// to be done after the last one is kept in the database, so that a restore that
// broke off anywhere goes on when it is run again. Nobody serves meanwhile: the
// gate of every process is closed from the first moment, because the database is
// behind its ledger, and then because a restore is under way.
package restore
