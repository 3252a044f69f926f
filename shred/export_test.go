package shred

import "forgettable.dev/memd/internal/pg"

// SetDerive replaces how a rotator makes the next state. With skipEarlyProof a
// wrong state gets past the check before the switch, so that the one behind it
// can be seen at work.
func (r *Rotator) SetDerive(derive func(old *Tree, punctured []Path) (*Tree, error), skipEarlyProof bool) {
	r.derive, r.skipEarlyProof = derive, skipEarlyProof
}

// LedgerName is where a ledger keeps a state.
var LedgerName = ledgerName

// SetLock gives a rotator a lock of its own, so that it does not wait for others.
func (r *Rotator) SetLock(n int64) { r.lockPurpose = pg.LockRotate + pg.LockID(n)<<40 + 16<<40 }
