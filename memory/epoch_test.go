package memory_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/memory"
)

// A process that heard nothing of an erasure still has the number that the user
// had before. Its key is gone: that number is out of date, and no key was lost.
func TestService_Add_numberOfAnEarlierLife(t *testing.T) {
	b := setup(t)
	deaf := b.Deaf()
	for n, sessions := range [][2]string{{"s1", "s2"}, {"", ""}} {
		who := user(fmt.Sprint("ada", n))
		if _, err := deaf.Memory.Add(t.Context(), b.tenant, []memory.Row{raw(who, sessions[0], "before")}); err != nil {
			t.Fatal(err)
		}
		tenant := b.tenant
		tenant.Epoch = int64(n) + 2
		forgotten := make(chan error, 1)
		go func() {
			_, err := b.srv.Erasure.ForgetUser(t.Context(), erasure.Caller{Tenant: tenant.No}, who.App, who.UserID, uuid.New())
			forgotten <- err
		}()
		b.waitForEpoch(tenant.Epoch)
		if _, err := deaf.Keyring.Keys(t.Context(), tenant.No, tenant.Epoch); err != nil {
			t.Fatal(err)
		}
		if err := <-forgotten; err != nil {
			t.Fatal(err)
		}
		after := raw(who, sessions[1], "after")
		after.SourceTime = time.Now()
		if _, err := deaf.Memory.Add(t.Context(), tenant, []memory.Row{after}); err != nil {
			t.Errorf("in session %q: %v", sessions[1], err)
		}
		got, err := deaf.Memory.List(t.Context(), tenant, who, memory.Filter{}, 10, "", false)
		if err != nil || len(got.Memories) != 1 || got.Memories[0].Text != "after" {
			t.Errorf("in session %q: %d memories, %v", sessions[1], len(got.Memories), err)
		}
	}
}

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
	b.waitForEpoch(2)
	got, err := deaf.Search(t.Context(), b.tenant, q)
	if err != nil || len(got.Hits) != 1 {
		t.Fatalf("%d hits, %v", len(got.Hits), err)
	}
	// The rotation waited for nobody but this one.
	if err := <-rotated; err != nil {
		t.Error(err)
	}
}

func (b *bundle) waitForEpoch(epoch int64) {
	b.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for b.count(`SELECT count(*) FROM memd.tenant_keys WHERE epoch = $1`, epoch) == 0 {
		<-tick.C
	}
}
