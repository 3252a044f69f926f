package shred_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

func TestProvision(t *testing.T) {
	w := newWorld(t)

	t.Run("many at once make one tree", func(t *testing.T) {
		w := w.in(t)
		tenant := memd.TenantNo(w.tenants.Add(1))
		var g sync.WaitGroup
		for range 8 {
			g.Go(func() {
				if err := shred.Provision(t.Context(), w.provisionConfig(), tenant); err != nil {
					t.Error(err)
				}
			})
		}
		g.Wait()
		if trees := w.firstTrees(tenant); len(trees) != 1 {
			t.Errorf("the ledgers hold %d first trees", len(trees))
		}
		w.checkLine(tenant, []shred.Path{leaf(t, 1)}, nil)
		key, version, _ := w.stored(tenant, 1)
		if !strings.HasSuffix(key, "/"+shred.KeyID(w.installation, tenant)) || !strings.HasPrefix(version, key) {
			t.Errorf("key is %s, version %s", key, version)
		}
	})

	t.Run("adopts the tree of an attempt that reached one ledger only", func(t *testing.T) {
		w := w.in(t)
		for only := range w.ledgers {
			tenant := memd.TenantNo(w.tenants.Add(1))
			_, version, err := w.worker.CreateKey(t.Context(), shred.KeyID(w.installation, tenant), w.provisionConfig().DestroyDelay)
			if err != nil {
				t.Fatal(err)
			}
			tree, err := shred.NewTree(tenant, new(constReader))
			if err != nil {
				t.Fatal(err)
			}
			sealed, err := shred.SealTree(t.Context(), w.worker, version, tree)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.ledgers[only].Put(t.Context(), shred.LedgerName(tenant, 1), sealed); err != nil {
				t.Fatal(err)
			}
			if err := shred.Provision(t.Context(), w.provisionConfig(), tenant); err != nil {
				t.Fatal(err)
			}
			if _, _, stored := w.stored(tenant, 1); string(stored) != string(sealed) {
				t.Errorf("tree of ledger %d was not adopted", only)
			}
			w.checkLine(tenant, []shred.Path{leaf(t, 1)}, nil)
		}
	})

	t.Run("refuses ledgers with a later epoch, and another tenant's tree", func(t *testing.T) {
		w := w.in(t)
		other := w.tenant()
		_, _, sealed := w.stored(other, 1)
		for _, epoch := range []int64{2, 1} {
			tenant := memd.TenantNo(w.tenants.Add(1))
			if err := w.ledgers[1].Put(t.Context(), shred.LedgerName(tenant, epoch), sealed); err != nil {
				t.Fatal(err)
			}
			if err := shred.Provision(t.Context(), w.provisionConfig(), tenant); !errors.Is(err, memd.ErrCorrupt) {
				t.Errorf("Provision gives %v", err)
			}
		}
	})

	t.Run("leaves a tenant alone that was rotated since", func(t *testing.T) {
		w := w.in(t)
		tenant := w.tenant()
		w.puncture(tenant, subject(t, 7))
		w.rotate(w.rotator(), tenant)
		if err := shred.Provision(t.Context(), w.provisionConfig(), tenant); err != nil {
			t.Fatal(err)
		}
		w.checkLine(tenant, []shred.Path{leaf(t, 8)}, []shred.Path{leaf(t, 7)})
	})
}
