package erasure_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/fault"
	"forgettable.dev/memd/memory"
)

const (
	purgeKills = 10
	// crowd is how many users the tenant has, in pages of PurgePage.
	crowd = 12 * erasure.PurgePage
)

// work is what a purge has done, whether or not it was committed: rows written in
// the stores and in journals, and calls of the key service.
type work struct{ deleted, journalled, calls int }

// sqlTouched counts rows as the backends report them, rolled back ones too, by what
// their tables are for.
const sqlTouched = `
SELECT coalesce(sum(n_tup_del), 0)::bigint AS deleted,
  coalesce(sum(n_tup_ins + n_tup_upd) FILTER (WHERE relname IN ('erasures', 'erasure_steps', 'erasure_subjects')), 0)::bigint AS journalled
FROM pg_stat_user_tables WHERE schemaname = 'memd'
  AND relname NOT IN ('instances', 'instance_epochs', 'ledger_outbox')`

// done is the work of all workers so far, when none is left.
func (w *sweep) done() work {
	w.t.Helper()
	w.within(time.Minute, "the workers' connections are closed", func() bool {
		return w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'memd %memd_worker'`) == 0
	})
	return work{
		deleted:    w.count(`SELECT deleted FROM (` + sqlTouched + `) t`),
		journalled: w.count(`SELECT journalled FROM (` + sqlTouched + `) t`),
		calls:      w.KMS.Server.Calls(""),
	}
}

func (a work) since(b work) work {
	return work{a.deleted - b.deleted, a.journalled - b.journalled, a.calls - b.calls}
}

// populateCrowd is populate, and a crowd.
func (w *sweep) populateCrowd() people {
	w.t.Helper()
	p := w.populate()
	k := w.Keys(w.a, p.tenant)
	for i := 0; i < crowd; {
		var rows []memory.Row
		for ; i < crowd && len(rows) < 50; i++ {
			name := fmt.Sprintf("user %d", i)
			rows = append(rows, said(name, "s1", name))
			ref := k.UserRef(app, name)
			session := k.SessionRef(ref, "s1")
			p.labels = append(p.labels, fmt.Sprintf("%x", ref[:]), name, fmt.Sprintf("%x", session[:]), name+"'s s1")
		}
		if _, err := w.a.Memory.Add(w.t.Context(), p.tenant, rows); err != nil {
			w.t.Fatal(err)
		}
	}
	return p
}

// An approved purge whose worker is killed ten times ends as one that nobody
// disturbs, and has not done much more: what was in flight at each kill is done
// again, and each worker that takes over opens the tenant's tree.
func TestDeleteTenant_KilledTenTimes(t *testing.T) {
	w := newSweep(t)
	p := w.process(w.wire.URL)
	w.fuse.OnBlow(p.signal)
	final := func(j erasure.Job) bool { return w.job(j).State == erasure.StateFinal }

	what := kinds[len(kinds)-1]
	for _, k := range kinds {
		if k.kind == erasure.KindTenant {
			what = k
		}
	}
	quiet := w.populateCrowd()
	j := w.acceptWhole(&quiet, what)
	before := w.done()
	w.fuse.Arm(0, fault.CrashBefore)
	p.start()
	w.within(time.Minute, "begun", func() bool { return w.job(j).State > erasure.StateAccepted })
	begun := w.fuse.Counts()[fault.Statement]
	w.within(time.Minute, "purged", func() bool { return final(j) })
	whole := w.fuse.Counts()[fault.Statement]
	p.kill()
	w.check(quiet, what)
	want, once := w.dump(quiet), w.done().since(before)

	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d; an undisturbed purge takes %d statements, after the %d of a worker that begins: %+v", seed, whole-begun, begun, once)
	victim := w.populateCrowd()
	j = w.acceptWhole(&victim, what)
	before = w.done()
	steps := map[string]int{}
	for range purgeKills {
		// Ten of them get half the way at most, so that each is a kill of a purge.
		w.fuse.Arm(begun+1+random.IntN(max(1, (whole-begun)/(2*purgeKills))), fault.Modes[random.IntN(2)])
		p.start()
		w.within(time.Minute, "killed", func() bool { _, blown := w.fuse.Blown(); return blown })
		p.kill()
		w.fuse.Disarm()
		if w.job(j).State >= erasure.StateDone {
			t.Fatalf("it was done before it was killed %d times", purgeKills)
		}
		at := w.strings(`SELECT step::text FROM memd.erasure_steps WHERE tenant_no = $1 AND NOT done ORDER BY started_at DESC LIMIT 1`, j.Tenant)
		steps[strings.Join(at, "")]++
		w.living(w.other)
	}
	p.start()
	w.within(time.Minute, "purged by the eleventh", func() bool { return final(j) })
	p.kill()
	w.check(victim, what)
	if diff := cmp.Diff(want, w.dump(victim)); diff != "" {
		t.Errorf("end state (-want +got):\n%s\nlog:\n%s", diff, p.log())
	}
	often := w.done().since(before)
	t.Logf("killed in steps %v: %+v", steps, often)
	if 2*often.deleted > 3*once.deleted || 2*often.journalled > 3*once.journalled {
		t.Errorf("killed %d times it did %+v, and undisturbed %+v", purgeKills, often, once)
	}
	if most := once.calls*3/2 + purgeKills; often.calls > most {
		t.Errorf("killed %d times it called the key service %d times, undisturbed %d", purgeKills, often.calls, once.calls)
	}
}
