package erasure_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/eraser"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/kmsemu"
)

// hanging is a store outside memd that answers when it is let go.
type hanging struct {
	asked atomic.Int64
	free  chan struct{}
}

func (h *hanging) answer(ctx context.Context) (int64, error) {
	h.asked.Add(1)
	select {
	case <-h.free:
		return 0, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Count implements eraser.Eraser.
func (h *hanging) Count(ctx context.Context, _ eraser.Request) (int64, error) { return h.answer(ctx) }

// Erase implements eraser.Eraser.
func (h *hanging) Erase(ctx context.Context, _ eraser.Request) (eraser.Result, error) {
	_, err := h.answer(ctx)
	return eraser.Result{}, err
}

// Verify implements eraser.Eraser.
func (h *hanging) Verify(ctx context.Context, _ eraser.Request) (int64, error) { return h.answer(ctx) }

// hang serves a store that hangs and registers it with a tenant. The parts that it
// returns call it, bounded as c says.
func (w *world) hang(t memory.Tenant, c purge.Config) (*hanging, erasure.Parts) {
	w.t.Helper()
	h := &hanging{free: make(chan struct{})}
	handler, err := eraser.Handler(h, eraser.WithToken(targetToken))
	if err != nil {
		w.t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	w.t.Cleanup(server.Close)
	pool, kms := w.DB.Pool(node.WorkerRole), w.KMS.Client(w.t, kmsemu.Worker)
	keys := func(ctx context.Context, tenant memd.TenantNo) (*shred.Keys, error) {
		return headKeys(ctx, pool, kms, tenant)
	}
	c.AllowPrivate, c.Keys = true, func(ctx context.Context, tenant memd.TenantNo, use func(*shred.Keys) error) error {
		k, err := keys(ctx, tenant)
		if err != nil {
			return err
		}
		return use(k)
	}
	caller, err := purge.NewCaller(c)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(caller.Close)
	err = w.DB.Pool(node.AppRole).With(w.t.Context(), func(db pg.DB) error {
		_, _, err := caller.Create(w.t.Context(), db, purge.New{
			Tenant: t.No, Name: "hanging", Kind: purge.KindConnect, URL: server.URL, Timeout: time.Minute, AllowPrivate: true, Secret: targetToken,
		})
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return h, erasure.Parts{Targets: caller, Keys: keys}
}

// ask asks a replica to forget a user, and does not wait.
func (w *world) ask(srv *node.Server, t memory.Tenant, userID string) erasure.Job {
	w.t.Helper()
	r, err := srv.Erasure.ForgetUser(w.t.Context(), erasure.Caller{Tenant: t.No, Epoch: t.Epoch, Wait: new(time.Duration(0))}, app, userID, uuid.New())
	if err != nil {
		w.t.Fatal(err)
	}
	return r.Job
}

// A tenant whose store outside does not answer waits for it. Nobody else does.
func TestWorker_ASlowTargetHoldsUpItsTenantAlone(t *testing.T) {
	w := newWorld(t)
	other := w.Tenant("other", memdtest.Policy())
	w.addTo(other, said("bob", "s1", "bob"))
	w.StopWorker()
	h, parts := w.hang(w.tenant, purge.Config{})
	slow := make([]erasure.Job, 2*erasure.Concurrency)
	for i := range slow {
		slow[i] = w.ask(w.a, w.tenant, fmt.Sprintf("user%d", i))
	}
	w.workWith(noProvision, parts)
	w.within(time.Minute, "calls hang", func() bool { return h.asked.Load() == purge.DefaultErasuresPerTenant })
	w.state(w.ask(w.a, other, "bob"), erasure.StateDone)
	if n := h.asked.Load(); n != purge.DefaultErasuresPerTenant {
		t.Errorf("%d calls of one tenant's store hang at once", n)
	}
	close(h.free)
	w.within(2*time.Minute, "all are done", func() bool {
		return !slices.ContainsFunc(slow, func(j erasure.Job) bool { return w.job(j).State < erasure.StateDone })
	})
	if n := w.count(`SELECT count(*) FROM memd.erasures WHERE tries > 0`); n != 0 {
		t.Errorf("waiting for a turn was a failure for %d", n)
	}
}

// One request in the hands of two workers: the queue gave it to the second one
// although the first is still at it. The second lets it be, and it is done once.
func TestWorker_OneRequestInTwoHands(t *testing.T) {
	w := newWorld(t)
	w.add(said("user0", "s1", "words"), said("bob", "b1", "bob"))
	w.StopWorker()
	h, parts := w.hang(w.tenant, purge.Config{Erasures: erasure.Concurrency, ErasuresPerTenant: erasure.Concurrency})
	first := w.ask(w.a, w.tenant, "user0")
	for i := 1; i < erasure.Concurrency; i++ {
		w.ask(w.a, w.tenant, fmt.Sprintf("user%d", i))
	}
	one, _ := w.workWith(noProvision, parts)
	w.within(time.Minute, "the first worker has its hands full", func() bool { return h.asked.Load() == erasure.Concurrency })
	two, _ := w.workWith(noProvision, parts)
	w.exec(`UPDATE memd_jobs.river_job SET state = 'available', scheduled_at = now() WHERE (args->>'job')::bigint = $1`, first.No)
	w.within(time.Minute, "the second worker has had it and let it be", func() bool {
		return w.count(`SELECT count(*) FROM memd_jobs.river_job WHERE (args->>'job')::bigint = $1 AND metadata ? 'snoozes'`, first.No) == 1
	})
	if n := h.asked.Load(); n != erasure.Concurrency {
		t.Errorf("%d calls: both were at it", n)
	}
	close(h.free)
	w.state(first, erasure.StateDone)
	w.within(time.Minute, "all are reported", func() bool { return one.done.Load()+two.done.Load() >= erasure.Concurrency })
	if sum := one.done.Load() + two.done.Load(); sum != erasure.Concurrency || one.failed.Load()+two.failed.Load() != 0 {
		t.Errorf("%d done, %d and %d failed", sum, one.failed.Load(), two.failed.Load())
	}
	w.wants(user("user0"))
	w.wants(user("bob"), "bob")
}
