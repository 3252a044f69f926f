package shred_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/shred/kmsemu"
)

// TestRotator_EveryFaultOfTheKMS has a rotation meet each fault that a key service
// has, from its beginning and in its middle, for as long as it is tried, and a
// tenant be set up under it. It ends with an error, or is what it says: nothing is
// claimed that does not hold, and nobody's key is lost. When the fault is over the
// next one ends well.
func TestRotator_EveryFaultOfTheKMS(t *testing.T) {
	w := newWorld(t)
	impatient := func(id kmsemu.Identity) shred.KMS {
		c, err := gcpkms.Open(t.Context(), gcpkms.Config{
			URL: "emulator:" + w.address, Token: w.emulator.Tokens()[id],
			AttemptTimeout: 30 * time.Millisecond, MaxElapsed: 50 * time.Millisecond, InitialBackoff: time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	claimed, worker := 0, impatient(kmsemu.Worker)
	hasty := w.rotator(func(c *shred.RotatorConfig) {
		c.Worker, c.Shredder, c.ConfirmWait = worker, impatient(kmsemu.Shredder), 50*time.Millisecond
		c.OnFinish = func(memd.TenantNo, int64) { claimed++ }
	})
	tenant, last := w.tenant(), int64(0)
	for name, fault := range map[string]kmsemu.Fault{
		"unavailable":                 {Code: codes.Unavailable},
		"deadline exceeded":           {Code: codes.DeadlineExceeded},
		"resource exhausted":          {Code: codes.ResourceExhausted},
		"permission denied":           {Code: codes.PermissionDenied},
		"slow":                        {Delay: time.Minute},
		"answer lost":                 {LoseAnswer: true},
		"corrupted checksum":          {CorruptChecksum: true},
		"wrong version in the answer": {WrongVersionName: true},
		"stale disable":               {Method: "Decrypt", Stale: true},
	} {
		failed := false
		for _, skip := range []int{0, 4} {
			t.Run(fmt.Sprintf("%s after %d calls", name, skip), func(t *testing.T) {
				w := w.in(t)
				last += 2
				w.puncture(tenant, subject(t, last))
				before, fault := w.head(tenant), fault
				fault.Skip, claimed = skip, 0
				remove := w.emulator.Inject(fault)
				_, err := hasty.Rotate(t.Context(), tenant)
				remove()
				failed = failed || err != nil
				if errors.Is(err, memd.ErrShredded) {
					t.Errorf("a fault is taken for a destroyed key: %v", err)
				}
				if err != nil && claimed > 0 {
					t.Errorf("it is claimed to be done: %v", err)
				}
				if after := w.head(tenant); after > before+1 {
					t.Errorf("the head went from epoch %d to %d", before, after)
				}
				w.rotate(w.rotator(), tenant)
				w.checkLine(tenant, []shred.Path{leaf(t, 1), leaf(t, last-1), leaf(t, last+1)}, []shred.Path{subject(t, last)})
			})
		}
		t.Run(name+" while a tenant is set up", func(t *testing.T) {
			w := w.in(t)
			made := memd.TenantNo(w.tenants.Add(1))
			config := w.provisionConfig()
			config.KMS = worker
			remove := w.emulator.Inject(fault)
			_ = shred.Provision(t.Context(), config, made)
			remove()
			if err := shred.Provision(t.Context(), w.provisionConfig(), made); err != nil {
				t.Fatal(err)
			}
			w.checkLine(made, []shred.Path{leaf(t, 1)}, nil)
		})
		if !failed {
			t.Errorf("%s: no rotation failed of it, which proves nothing", name)
		}
	}
}
