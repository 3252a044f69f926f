package erasure_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/memory"
)

// What was accepted holds on every replica although no worker is there: the
// user is fenced, and a session takes no more words.
func TestForget_HoldsFromItsAcceptance(t *testing.T) {
	w := newWorld(t)
	again := said("alice", "s1", "her words")
	again.EventID = "e1"
	w.add(again, said("bob", "s1", "his words"), said("bob", "s2", "his other words"))
	w.StopWorker()
	ctx := t.Context()
	c := erasure.Caller{Tenant: w.tenant.No, Epoch: w.tenant.Epoch}
	w.a.Erasure.Wait = time.Millisecond
	alice, err := w.a.Erasure.ForgetUser(ctx, c, app, "alice", uuid.New())
	if err != nil || alice.State == erasure.StateDone {
		t.Fatalf("without a worker: %v, %v", alice.State, err)
	}
	bob, err := w.a.Erasure.ForgetSession(ctx, c, app, "bob", "s1", uuid.New())
	if err != nil || bob.State == erasure.StateDone {
		t.Fatalf("without a worker: %v, %v", bob.State, err)
	}
	for name, s := range map[string]*memory.Service{"this replica": w.a.Memory, "the other": w.b.Memory} {
		got, err := s.Search(ctx, w.tenant, memory.Query{Scope: user("alice"), Vector: vector(), TopK: 5})
		if err != nil || !got.Fenced || len(got.Hits) > 0 {
			t.Errorf("%s: fenced %v with %d hits, %v", name, got.Fenced, len(got.Hits), err)
		}
		if _, err := s.Add(ctx, w.tenant, []memory.Row{said("alice", "s9", "more")}); !errors.Is(err, memd.ErrFenced) {
			t.Errorf("%s: adding to a user who is being forgotten: %v", name, err)
		}
		// Nothing would be written, and it must not be told that it is there.
		if got, err := s.Add(ctx, w.tenant, []memory.Row{again}); !errors.Is(err, memd.ErrFenced) {
			t.Errorf("%s: adding again what a user had who is being forgotten: %v, %v", name, got, err)
		}
		if _, err := s.Add(ctx, w.tenant, []memory.Row{said("bob", "s1", "more")}); !errors.Is(err, memd.ErrSessionForgotten) {
			t.Errorf("%s: adding to a session that is being forgotten: %v", name, err)
		}
		if _, err := s.Add(ctx, w.tenant, []memory.Row{said("bob", "s2", "more")}); err != nil {
			t.Errorf("%s: adding to another session: %v", name, err)
		}
	}
	w.StartWorker()
	w.a.Erasure.Wait = 0
	for _, id := range []uuid.UUID{alice.ID, bob.ID} {
		w.within(20*time.Second, "the worker that came late", func() bool { return w.job(erasure.Job{Tenant: w.tenant.No, ID: id}).State == erasure.StateDone })
	}
}

// A call that waits for an erasure does not hold up the end of its process.
func TestForgetUser_AnswersWhenTheProcessEnds(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "her words"))
	w.StopWorker()
	closing := make(chan struct{})
	w.a.Erasure.Closing = closing
	time.AfterFunc(100*time.Millisecond, func() { close(closing) })
	began := time.Now()
	r, err := w.a.Erasure.ForgetUser(t.Context(), erasure.Caller{Tenant: w.tenant.No, Epoch: w.tenant.Epoch}, app, "alice", uuid.New())
	if took := time.Since(began); err != nil || r.State != erasure.StateAccepted || took > 30*time.Second {
		t.Errorf("state %v after %v, %v", r.State, took, err)
	}
}

// Requests for one user take turns. That is neither a failure nor slow.
func TestForgetUser_RequestsTakeTurns(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "her words"))
	began := time.Now()
	var group sync.WaitGroup
	for range 6 {
		group.Go(func() { w.ForgetUser(w.a, w.tenant, app, "alice") })
	}
	group.Wait()
	if took := time.Since(began); took > 60*time.Second {
		t.Errorf("six requests for one user took %v", took)
	}
	if strings.Contains(w.Logs.String(), "will be tried again") {
		t.Errorf("waiting for a turn was taken for a failure:\n%s", w.Logs)
	}
}
