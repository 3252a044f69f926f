package shred_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

func TestRotator_Rotate(t *testing.T) {
	w := newWorld(t)

	t.Run("does nothing when nothing is pending", func(t *testing.T) {
		w := w.in(t)
		tenant := w.tenant()
		done := w.rotate(w.rotator(), tenant)
		_, version, _ := w.stored(tenant, 1)
		if done.Epoch != 1 || done.NewVersion != version || done.OldVersion != "" || done.State != shred.RotationFinished {
			t.Errorf("rotation of an untouched tenant is %+v", done)
		}
		if w.head(tenant) != 1 {
			t.Error("the epoch was raised")
		}
	})

	t.Run("shreds the punctured and keeps the neighbour", func(t *testing.T) {
		w := w.in(t)
		tenant := w.tenant()
		w.puncture(tenant, subject(t, 7))
		done := w.rotate(w.rotator(), tenant)
		w.checkLine(tenant, []shred.Path{leaf(t, 6), leaf(t, 8)}, []shred.Path{subject(t, 7), leaf(t, 7)})

		_, before, _ := w.stored(tenant, 1)
		_, after, _ := w.stored(tenant, 2)
		if done.Epoch != 2 || done.OldVersion != before || done.NewVersion != after || done.Punctured != 1 ||
			done.TreeBefore == done.TreeAfter || done.State != shred.RotationFinished {
			t.Errorf("rotation is %+v", done)
		}
		if wait := done.DestroyDue.Sub(done.DestroyedAt); wait < 23*time.Hour || wait > 25*time.Hour {
			t.Errorf("destruction is due %v after it was asked for, want the delay of 24h", wait)
		}
		again := w.rotate(w.rotator(), tenant)
		if diff := cmp.Diff(done, again); diff != "" {
			t.Errorf("a second Rotate differs (-first +second):\n%s", diff)
		}
	})

	t.Run("applies a batch in one epoch and keeps the chain of digests", func(t *testing.T) {
		w := w.in(t)
		tenant := w.tenant()
		for n := int64(1); n <= 20; n++ {
			w.puncture(tenant, subject(t, 2*n))
		}
		first := w.rotate(w.rotator(), tenant)
		w.puncture(tenant, subject(t, 2), subject(t, 51)) // one of them again
		second := w.rotate(w.rotator(), tenant)
		if first.Punctured != 20 || second.Punctured != 1 || second.Epoch != 3 || second.TreeBefore != first.TreeAfter {
			t.Errorf("rotations are %+v and %+v", first, second)
		}
		w.checkLine(tenant, []shred.Path{leaf(t, 1), leaf(t, 49)}, []shred.Path{leaf(t, 2), leaf(t, 40), leaf(t, 51)})
		epoch := w.punctureEpoch(tenant, subject(t, 4), subject(t, 51))
		if epoch != 3 {
			t.Errorf("paths are punctured in epoch %d, want 3", epoch)
		}
		if w.punctureEpoch(tenant, subject(t, 4), subject(t, 1000)) != 0 {
			t.Error("a path that nobody asked for counts as punctured")
		}
	})

	t.Run("tells of each rotation once", func(t *testing.T) {
		w := w.in(t)
		tenant := w.tenant()
		var ended []int64
		r := w.rotator(func(c *shred.RotatorConfig) {
			c.OnFinish = func(_ memd.TenantNo, epoch int64) { ended = append(ended, epoch) }
		})
		w.rotate(r, tenant)
		w.puncture(tenant, subject(t, 7))
		w.rotate(r, tenant)
		w.rotate(r, tenant)
		if diff := cmp.Diff([]int64{2}, ended); diff != "" {
			t.Error(diff)
		}
	})

	t.Run("makes a new epoch when forced", func(t *testing.T) {
		w := w.in(t)
		tenant := w.tenant()
		done, err := w.rotator().ForceRotate(t.Context(), tenant)
		if err != nil || done.Epoch != 2 || done.Punctured != 0 {
			t.Fatalf("ForceRotate gives %+v, %v", done, err)
		}
		w.checkLine(tenant, []shred.Path{leaf(t, 1)}, nil)
	})

	t.Run("refuses a tenant without keys", func(t *testing.T) {
		w := w.in(t)
		if _, err := w.rotator().Rotate(t.Context(), 999_999); !errors.Is(err, memd.ErrNotFound) {
			t.Errorf("Rotate of nobody gives %v", err)
		}
	})

	for _, locked := range []bool{true, false} {
		t.Run(fmt.Sprintf("several rotators at once, locked: %v", locked), func(t *testing.T) {
			w := w.in(t)
			tenant := w.tenant()
			var dead []shred.Path
			for round := int64(1); round <= 8; round++ {
				before := w.head(tenant)
				w.puncture(tenant, subject(t, 2*round))
				dead = append(dead, subject(t, 2*round))
				var g sync.WaitGroup
				for n := range int64(4) {
					r := w.rotator() // each with a gate of its own, like another process
					if !locked {
						r.SetLock(n)
					}
					for range 2 {
						g.Go(func() {
							if _, err := r.Rotate(t.Context(), tenant); err != nil {
								t.Error(err)
							}
						})
					}
				}
				g.Wait()
				if head := w.head(tenant); head != before+1 {
					t.Errorf("one puncture took the head from epoch %d to %d", before, head)
				}
				if !locked {
					// Versions that lost the race may be younger than the head's.
					// They go with the next epoch.
					if _, err := w.rotator().ForceRotate(t.Context(), tenant); err != nil {
						t.Fatal(err)
					}
				}
				w.checkLine(tenant, []shred.Path{leaf(t, 1), leaf(t, 3), leaf(t, 17)}, dead)
			}
		})
	}
}

func TestRotator_Sample(t *testing.T) {
	w := newWorld(t)
	tenant := w.tenant()
	w.puncture(tenant, subject(t, 3))
	failing := errors.New("row does not open")
	var sampled *shred.Keys
	r := w.rotator(func(c *shred.RotatorConfig) {
		c.Sample = func(_ context.Context, of memd.TenantNo, k *shred.Keys) error {
			if of != tenant || k.Epoch() != 2 {
				t.Errorf("sampling tenant %v epoch %d", of, k.Epoch())
			}
			sampled = k
			return failing
		}
	})
	if _, err := r.Rotate(t.Context(), tenant); !errors.Is(err, failing) {
		t.Fatalf("Rotate gives %v", err)
	}
	if _, err := sampled.Subject(number(t, 1, 1)); !errors.Is(err, memd.ErrStale) {
		t.Errorf("keys of the sample live on: %v", err)
	}
	if _, enabled := w.states(tenant); len(enabled) != 2 {
		t.Errorf("usable versions are %v, want both", enabled)
	}
	failing = nil
	w.rotate(r, tenant)
	w.checkLine(tenant, []shred.Path{leaf(t, 2)}, []shred.Path{leaf(t, 3)})
}

// A puncture that takes a neighbour along must be caught while the old version
// can still give the neighbour back.
func TestRotator_WrongPuncture(t *testing.T) {
	w := newWorld(t)
	neighbour := subject(t, 8)
	greedy := func(old *shred.Tree, paths []shred.Path) (*shred.Tree, error) {
		return old.Next(append(paths, neighbour))
	}
	forgetful := func(old *shred.Tree, paths []shred.Path) (*shred.Tree, error) { return old.Next(nil) }

	for _, c := range []struct {
		name   string
		derive func(*shred.Tree, []shred.Path) (*shred.Tree, error)
	}{{"one neighbour too many", greedy}, {"nothing punctured", forgetful}} {
		t.Run(c.name+" is caught before the switch", func(t *testing.T) {
			w := w.in(t)
			tenant := w.tenant()
			w.puncture(tenant, subject(t, 7))
			r := w.rotator()
			r.SetDerive(c.derive, false)
			if _, err := r.Rotate(t.Context(), tenant); !errors.Is(err, memd.ErrCorrupt) {
				t.Fatalf("Rotate gives %v", err)
			}
			if w.head(tenant) != 1 {
				t.Error("the wrong state became the head")
			}
			w.rotate(w.rotator(), tenant)
			w.checkLine(tenant, []shred.Path{leaf(t, 8), leaf(t, 6)}, []shred.Path{leaf(t, 7)})
		})
		t.Run(c.name+" is caught before destroying", func(t *testing.T) {
			w := w.in(t)
			tenant := w.tenant()
			w.puncture(tenant, subject(t, 7))
			r := w.rotator()
			r.SetDerive(c.derive, true)
			if _, err := r.Rotate(t.Context(), tenant); !errors.Is(err, memd.ErrCorrupt) {
				t.Fatalf("Rotate gives %v", err)
			}
			_, version, _ := w.stored(tenant, 1)
			if v, err := w.worker.Get(t.Context(), version); err != nil || v.State != shred.VersionEnabled {
				t.Fatalf("old version is %v, %v: want it enabled", v.State, err)
			}
			done := w.rotate(w.rotator(), tenant)
			if done.Epoch != 3 {
				t.Errorf("mended in epoch %d, want 3", done.Epoch)
			}
			w.checkLine(tenant, []shred.Path{leaf(t, 8), leaf(t, 6)}, []shred.Path{leaf(t, 7)})
		})
	}
}

func TestRotator_ForeignVersions(t *testing.T) {
	w := newWorld(t)

	t.Run("destroys an orphan with a lower number, never one with a higher", func(t *testing.T) {
		w := w.in(t)
		tenant := w.tenant()
		key, _ := w.states(tenant)
		orphan := w.admin.create(key)
		disabled := w.admin.create(key)
		w.admin.set(disabled, kmspb.CryptoKeyVersion_DISABLED)
		w.puncture(tenant, subject(t, 7))
		var higher string
		r := w.rotator(func(c *shred.RotatorConfig) {
			c.Sample = func(context.Context, memd.TenantNo, *shred.Keys) error {
				higher = w.admin.create(key)
				return nil
			}
		})
		w.rotate(r, tenant)
		_, current, _ := w.stored(tenant, 2)
		if _, enabled := w.states(tenant); !cmp.Equal(enabled, []string{current, higher}) {
			t.Errorf("usable versions are %v, want %s and %s, and not %s", enabled, current, higher, orphan)
		}
		w.puncture(tenant, subject(t, 9))
		w.rotate(w.rotator(), tenant)
		w.checkLine(tenant, []shred.Path{leaf(t, 8)}, []shred.Path{leaf(t, 7), leaf(t, 9)})
	})

	t.Run("does not destroy the version of the head because the journal says so", func(t *testing.T) {
		w := w.in(t)
		tenant := w.tenant()
		_, version, _ := w.stored(tenant, 1)
		w.sql(`INSERT INTO memd.rotations (tenant_no, epoch, state, old_version, new_version, started_at, updated_at)
			VALUES ($1, 1, $2, $3, $3, now(), now())`, tenant, shred.RotationProved, version)
		w.rotate(w.rotator(), tenant)
		w.checkLine(tenant, []shred.Path{leaf(t, 7)}, nil)

		w.puncture(tenant, subject(t, 7))
		w.rotate(w.rotator(), tenant)
		_, version, _ = w.stored(tenant, 2)
		w.sql(`UPDATE memd.rotations SET state = $2, old_version = $3 WHERE tenant_no = $1 AND epoch = 2`,
			tenant, shred.RotationProved, version)
		w.rotate(w.rotator(), tenant)
		w.checkLine(tenant, []shred.Path{leaf(t, 8)}, []shred.Path{leaf(t, 7)})

		// Of an epoch that the database no longer has, as after a rollback.
		w.sql(`INSERT INTO memd.rotations (tenant_no, epoch, state, old_version, new_version, started_at, updated_at)
			VALUES ($1, 3, $2, $3, $3, now(), now())`, tenant, shred.RotationSwitched, version)
		w.rotate(w.rotator(), tenant)
		w.checkLine(tenant, []shred.Path{leaf(t, 8)}, []shred.Path{leaf(t, 7)})
	})

	t.Run("goes back to the predecessor when the head's version was destroyed", func(t *testing.T) {
		w := w.in(t)
		tenant := w.tenant()
		w.puncture(tenant, subject(t, 7))
		r := w.rotator(func(c *shred.RotatorConfig) {
			c.Sample = func(context.Context, memd.TenantNo, *shred.Keys) error { return errors.New("stop here") }
		})
		if _, err := r.Rotate(t.Context(), tenant); err == nil {
			t.Fatal("Rotate went on past its sample")
		}
		_, version, _ := w.stored(tenant, 2)
		w.admin.destroy(version)
		w.puncture(tenant, subject(t, 9))
		done := w.rotate(w.rotator(), tenant)
		if done.Epoch != 3 {
			t.Errorf("mended in epoch %d, want 3", done.Epoch)
		}
		w.checkLine(tenant, []shred.Path{leaf(t, 8)}, []shred.Path{leaf(t, 7), leaf(t, 9)})
	})

	t.Run("derives a lost head again from a predecessor that an operator restored", func(t *testing.T) {
		w := w.in(t)
		tenant := w.tenant()
		w.puncture(tenant, subject(t, 7))
		done := w.rotate(w.rotator(), tenant)
		w.admin.destroy(done.NewVersion)
		w.puncture(tenant, subject(t, 9))
		if _, err := w.rotator().Rotate(t.Context(), tenant); !errors.Is(err, memd.ErrCorrupt) || errors.Is(err, memd.ErrShredded) {
			t.Fatalf("Rotate without any state that opens gives %v", err)
		}
		w.admin.restore(done.OldVersion)
		w.admin.set(done.OldVersion, kmspb.CryptoKeyVersion_ENABLED)
		w.rotate(w.rotator(), tenant)
		w.checkLine(tenant, []shred.Path{leaf(t, 8)}, []shred.Path{leaf(t, 7), leaf(t, 9)})
	})

	t.Run("takes a head that is disabled for an outage", func(t *testing.T) {
		w := w.in(t)
		tenant := w.tenant()
		_, version, _ := w.stored(tenant, 1)
		w.admin.set(version, kmspb.CryptoKeyVersion_DISABLED)
		w.puncture(tenant, subject(t, 7))
		_, err := w.rotator().Rotate(t.Context(), tenant)
		if !errors.Is(err, memd.ErrKeyUnavailable) || errors.Is(err, memd.ErrShredded) {
			t.Fatalf("Rotate gives %v", err)
		}
		w.admin.set(version, kmspb.CryptoKeyVersion_ENABLED)
		w.rotate(w.rotator(), tenant)
		w.checkLine(tenant, []shred.Path{leaf(t, 8)}, []shred.Path{leaf(t, 7)})
	})

	t.Run("refuses when a ledger is ahead of the database", func(t *testing.T) {
		w := w.in(t)
		tenant := w.tenant()
		_, _, sealed := w.stored(tenant, 1)
		if err := w.ledgers[1].Put(t.Context(), shred.LedgerName(tenant, 2), sealed); err != nil {
			t.Fatal(err)
		}
		w.puncture(tenant, subject(t, 7))
		if _, err := w.rotator().Rotate(t.Context(), tenant); !errors.Is(err, memd.ErrCorrupt) {
			t.Fatalf("Rotate gives %v", err)
		}
		if w.head(tenant) != 1 {
			t.Error("the epoch was raised")
		}
	})
}

func (w *world) punctureEpoch(tenant memd.TenantNo, paths ...shred.Path) (epoch int64) {
	w.t.Helper()
	err := w.workerPool.With(w.t.Context(), func(db pg.DB) (err error) {
		epoch, err = shred.PunctureEpoch(w.t.Context(), db, tenant, paths)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return epoch
}
