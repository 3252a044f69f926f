package memory_test

import (
	"testing"
	"time"

	"forgettable.dev/memd/memory"
)

// A search that sees a newer epoch asks for its keys at once, although nobody
// has told this process of it: the keyring here hears nothing, because its
// server does not run.
func TestService_Search_newEpochUnheardOf(t *testing.T) {
	b := setup(t)
	b.addOne(raw(user("ada"), "s1", "x"))
	deaf := b.Deaf().Memory
	q := memory.Query{Scope: user("ada"), Vector: []float32{1, 0, 0, 0}, TopK: 5}
	if _, err := deaf.Search(t.Context(), b.tenant, q); err != nil {
		t.Fatal(err)
	}
	rotated := make(chan error, 1)
	go func() {
		_, err := b.Worker.Rotator.ForceRotate(t.Context(), b.tenant.No)
		rotated <- err
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for b.count(`SELECT count(*) FROM memd.tenant_keys WHERE epoch = 2`) == 0 {
		<-tick.C
	}
	got, err := deaf.Search(t.Context(), b.tenant, q)
	if err != nil || len(got.Hits) != 1 {
		t.Fatalf("%d hits, %v", len(got.Hits), err)
	}
	// The rotation waited for nobody but this one.
	if err := <-rotated; err != nil {
		t.Error(err)
	}
}
