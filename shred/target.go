package shred

import (
	"github.com/google/uuid"

	"forgettable.dev/memd"
)

const (
	purposeTarget   = "memd/target/v1"
	aadTargetSecret = "purge_targets.secret"
)

// Targets returns the Sealer of the secrets that memd shares with the tenant's
// purge targets. It is made from the tenant's index key, which no erasure of a
// subject touches and which goes with the tenant: a target must still be called
// when everything else of the tenant is gone. A secret is nobody's personal data;
// whoever deletes a target revokes it at the other side.
func (k *Keys) Targets() (*Sealer, error) {
	return k.sealer(sealerID{purpose: purposeTarget}, func() ([]byte, error) {
		secret := *k.index // A copy: the caller clears what it gets.
		return secret[:], nil
	})
}

// AADTargetSecret binds the sealed secret of a purge target.
func AADTargetSecret(tenant memd.TenantNo, target uuid.UUID) []byte {
	return append(associatedData(aadTargetSecret, int64(tenant)), target[:]...)
}
