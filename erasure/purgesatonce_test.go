package erasure_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/memory"
)

// leaving makes a tenant with users that may be purged.
func (w *world) leaving(name string, users int) memory.Tenant {
	w.t.Helper()
	t := w.Tenant(name, delayed(0))
	for i := range users {
		w.addTo(t, said(fmt.Sprint("user", i), "s1", name))
	}
	w.Approve(w.a, t.No)
	return t
}

// purge asks for a tenant's purge and does not wait.
func (w *world) purge(name string, request uuid.UUID) erasure.Job {
	w.t.Helper()
	r, err := w.a.Erasure.DeleteTenant(w.t.Context(), erasure.Caller{KeyID: uuid.New(), Wait: new(time.Duration(0))}, name, name, request)
	if err != nil {
		w.t.Fatal(err)
	}
	return r.Job
}

// purged wants that nothing of a tenant is left, that each subject was
// journalled, and that its last version was destroyed by one rotation.
func (w *world) purged(t memory.Tenant, j erasure.Job, users int) {
	w.t.Helper()
	for what, c := range map[string]struct {
		sql  string
		want int
	}{
		"rows":              {`SELECT count(*) FROM memd.memories WHERE tenant_no = $1`, 0},
		"purged tenants":    {`SELECT count(*) FROM memd.tenants WHERE tenant_no = $1 AND state = 7`, 1},
		"subjects":          {`SELECT count(*) FROM memd.erasure_subjects WHERE tenant_no = $1`, users},
		"finished erasures": {`SELECT count(*) FROM memd.erasures WHERE tenant_no = $1 AND state >= 3`, 1},
		"steps not done":    {`SELECT count(*) FROM memd.erasure_steps s JOIN memd.erasures USING (tenant_no, request_id) WHERE tenant_no = $1 AND NOT done AND state = 4`, 0},
	} {
		if n := w.count(c.sql, t.No); n != c.want {
			w.t.Errorf("tenant %s: %d %s, want %d", t.No, n, what, c.want)
		}
	}
	if got := w.job(j); got.State < erasure.StateDone {
		w.t.Errorf("tenant %s: state %v", t.No, got.State)
	}
}

// One purge in the hands of three that know nothing of each other: what a lease
// that ran out would come to.
func TestDeleteTenant_InThreeHandsAtOnce(t *testing.T) {
	w := newWorld(t)
	const users = erasure.PurgePage + 3 // Above the page.
	gone := w.leaving("gone", users)
	w.add(said("user0", "s1", "stays"))
	w.StopWorker()
	j := w.purge("gone", uuid.New())
	var group sync.WaitGroup
	for range 3 {
		r := w.runner()
		group.Go(func() {
			if _, err := r.Run(t.Context(), j); err != nil && !memd.Transient(err) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if _, err := w.runner().Run(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	w.purged(gone, j, users)
	w.wants(user("user0"), "stays")
}

// Two tenants purged at once by two workers, each asked for twice: each is done
// once, and nobody else's is touched.
func TestDeleteTenant_TwoTenantsAndTwoWorkersAtOnce(t *testing.T) {
	w := newWorld(t)
	names := []string{"gone", "left"}
	var tenants []memory.Tenant
	for _, name := range names {
		tenants = append(tenants, w.leaving(name, 5))
	}
	w.add(said("user0", "s1", "stays"))
	w.StopWorker()
	var jobs []erasure.Job
	for _, name := range names {
		request := uuid.New()
		jobs = append(jobs, w.purge(name, request))
		if again := w.purge(name, request); again.No != jobs[len(jobs)-1].No {
			t.Errorf("asked again, %s has job %d instead of %d", name, again.No, jobs[len(jobs)-1].No)
		}
	}
	one, _ := w.work(noProvision)
	two, _ := w.work(noProvision)
	for i, j := range jobs {
		w.state(j, erasure.StateDone)
		w.purged(tenants[i], j, 5)
	}
	w.within(30*time.Second, "both are counted", func() bool { return one.done.Load()+two.done.Load() >= 2 })
	if n := one.done.Load() + two.done.Load(); n != 2 || one.failed.Load()+two.failed.Load() != 0 {
		t.Errorf("%d done, %d and %d failed", n, one.failed.Load(), two.failed.Load())
	}
	w.wants(user("user0"), "stays")
}
