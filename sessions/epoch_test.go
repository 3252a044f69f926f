package sessions_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/sessions"
)

// A process that heard nothing of an erasure still has the number that the user
// had before. Its key is gone: that number is out of date, and no key was lost.
// First somebody else starts the next conversation, then this process.
func TestAppend_numberOfAnEarlierLife(t *testing.T) {
	b := setup(t)
	deaf := b.Deaf()
	s := b.serviceOf(deaf)
	for n, who := range []sessions.ID{id("ada", "s"), id("bob", "s")} {
		if _, err := s.Create(t.Context(), b.tenant, who, nil, false); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Append(t.Context(), b.tenant, who, []sessions.Event{b.event("before", "x")}, time.Time{}, false); err != nil {
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
		who.SessionID = "t"
		creator := s
		if n == 0 {
			creator = b.s
		}
		if _, err := creator.Create(t.Context(), tenant, who, nil, false); err != nil {
			t.Errorf("%s, creating: %v", who.UserID, err)
		}
		if _, err := s.Append(t.Context(), tenant, who, []sessions.Event{b.event("after", "x")}, time.Time{}, false); err != nil {
			t.Errorf("%s, appending: %v", who.UserID, err)
		}
		got, err := s.Get(t.Context(), tenant, who, sessions.Query{Events: 10})
		if err != nil || len(got.Events) != 1 || got.Events[0].ID != "after" {
			t.Errorf("%s: %v, %v", who.UserID, eventIDs(got), err)
		}
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
