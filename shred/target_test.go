package shred_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

func TestKeys_Targets(t *testing.T) {
	one, two := uuid.New(), uuid.New()
	seal := func(k *shred.Keys, id uuid.UUID) []byte {
		t.Helper()
		s, err := k.Targets()
		if err != nil {
			t.Fatal(err)
		}
		sealed, err := s.Seal([]byte("token"), shred.AADTargetSecret(k.Tenant(), id))
		if err != nil {
			t.Fatal(err)
		}
		return sealed
	}
	open := func(k *shred.Keys, id uuid.UUID, sealed []byte) error {
		s, err := k.Targets()
		if err != nil {
			return err
		}
		_, err = s.Open(sealed, shred.AADTargetSecret(k.Tenant(), id))
		return err
	}
	keys := func(tenant memd.TenantNo) (*shred.Keys, *shred.Tree) {
		tree, err := shred.NewTree(tenant, zeroes{})
		if err != nil {
			t.Fatal(err)
		}
		return shred.NewKeys(tree), tree
	}
	k, _ := keys(1)
	sealed := seal(k, one)
	if err := open(k, one, sealed); err != nil {
		t.Error(err)
	}
	other, _ := keys(2)
	for name, err := range map[string]error{
		"of another target": open(k, two, sealed), "of another tenant": open(other, one, sealed),
	} {
		if !errors.Is(err, memd.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	k.Drop()
	if err := open(k, one, sealed); !errors.Is(err, memd.ErrStale) {
		t.Errorf("after Drop: %v", err)
	}
}

// zeroes gives two trees the same keys, so that only the associated data tells
// their tenants apart.
type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }
