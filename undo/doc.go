// Package undo takes back an erasure of the wrong one, while the key service can
// still restore the key version that was destroyed after it.
//
// One person asks, with an API key of the role operator, and another one
// approves, with one of the role approver; the approval carries it out. The keys
// of exactly that erasure are there again (see shred.Rotator.Undo), everything
// else that the same rotation erased stays erased, and the version that was
// restored for it is destroyed again.
//
// Keys are not rows. What was deleted is deleted; it can be read again in a
// backup from before the erasure, and a restore of such a backup leaves it
// there: that the erasure was undone is a fact of the journal. Its receipt stays
// in the log, as everything does that was once signed.
package undo
