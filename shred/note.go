package shred

import (
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
)

const (
	purposeNote   = "memd/note/v1"
	aadTransition = "tenant_transitions.reason"
	aadUndoReason = "undos.reason"
)

// Notes returns the Sealer of what operators write down about a tenant. It is made
// from the tenant's index key, as that of Targets: a note outlives every subject,
// whoever wrote it named nobody, and what was written all the same goes with the
// tenant.
func (k *Keys) Notes() (*Sealer, error) {
	return k.sealer(sealerID{purpose: purposeNote}, func() ([]byte, error) {
		secret := *k.index // A copy: the caller clears what it gets.
		return secret[:], nil
	})
}

// AADTransition binds why a tenant was taken to a state to when it was.
func AADTransition(tenant memd.TenantNo, at time.Time, to int16) []byte {
	return associatedData(aadTransition, int64(tenant), at.UnixMicro(), int64(to))
}

// AADUndoReason binds why an erasure is to be taken back to the erasure.
func AADUndoReason(tenant memd.TenantNo, request uuid.UUID) []byte {
	return append(associatedData(aadUndoReason, int64(tenant)), request[:]...)
}
