package erasure_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/fault"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
)

const (
	purgeKills = 10
	// crowd is how many users the tenant has, in pages of PurgePage.
	crowd = 6 * erasure.PurgePage
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

// worked is how much the tables were worked on until now, when no worker is left.
func (w *sweep) worked() work {
	w.t.Helper()
	w.within(time.Minute, "the workers' connections are closed", func() bool {
		return w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'memd %memd_worker'`) == 0
	})
	return work{
		deleted:    w.count(`SELECT deleted FROM (` + sqlTouched + `) t`),
		journalled: w.count(`SELECT journalled FROM (` + sqlTouched + `) t`),
	}
}

func (a work) since(b work) work {
	return work{deleted: a.deleted - b.deleted, journalled: a.journalled - b.journalled}
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
		added, err := w.a.Memory.Add(w.t.Context(), p.tenant, rows)
		if err != nil {
			w.t.Fatal(err)
		}
		for n := range added {
			p.labels = append(p.labels, strings.ReplaceAll(added[n].ID.String(), "-", ""), rows[n].Text+"'s row")
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
	what := kinds[slices.IndexFunc(kinds, func(b broken) bool { return b.kind == erasure.KindTenant })]
	final := func(j erasure.Job) bool { return w.job(j).State == erasure.StateFinal }
	// run starts a worker, which is killed in the end, and arms the fuse when it has
	// the purge, at one of the next statements if any are given.
	calls := 0
	run := func(j erasure.Job, k int, mode fault.Mode) {
		t.Helper()
		had := w.KMS.Server.Calls("")
		// The dead hold keys for as long as their leases, and jobs until they are missed.
		w.exec(`UPDATE memd.instances SET lease_until = now() WHERE kind = 'worker'`)
		w.exec(`UPDATE memd_jobs.river_job SET attempted_at = attempted_at - interval '1 minute' WHERE state = 'running'`)
		w.fuse.Disarm()
		p.start()
		w.within(time.Minute, "taken up", func() bool {
			return final(j) || w.count(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted
				AND classid::bigint << 32 | objid::bigint = $1`, int64(pg.LockErasure.ForID(j.ID))) > 0
		})
		w.fuse.Arm(k, mode)
		w.within(time.Minute, "killed, or purged", func() bool { _, blown := w.fuse.Blown(); return blown || final(j) })
		p.kill()
		calls += w.KMS.Server.Calls("") - had
	}

	quiet := w.populateCrowd()
	j := w.acceptWhole(&quiet, what)
	before := w.worked()
	run(j, 0, fault.CrashBefore)
	whole := w.fuse.Counts()[fault.Statement]
	once := w.worked().since(before)
	once.calls = calls
	w.check(quiet, what)
	want := w.dump(quiet)

	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d; a purge that nobody disturbs takes %d statements: %+v", seed, whole, once)
	var often work
	killed, victims, steps := 0, 0, map[string]int{}
	for ; killed < purgeKills; victims++ { // One, unless it ends too early.
		victim := w.populateCrowd()
		j := w.acceptWhole(&victim, what)
		before, calls = w.worked(), 0
		for !final(j) {
			k := 1 + random.IntN(2*whole/purgeKills)
			if killed == purgeKills {
				k = 0
			}
			run(j, k, fault.Modes[random.IntN(2)])
			if _, blown := w.fuse.Blown(); !blown {
				break
			}
			killed++
			w.fuse.Disarm()
			steps[strings.Join(w.strings(`SELECT step::text FROM memd.erasure_steps WHERE tenant_no = $1 AND NOT done`, j.Tenant), " ")]++
			w.living(w.other)
		}
		if !final(j) {
			run(j, 0, fault.CrashBefore)
		}
		now := w.worked().since(before)
		often = work{often.deleted + now.deleted, often.journalled + now.journalled, often.calls + calls}
		w.check(victim, what)
		if diff := cmp.Diff(want, w.dump(victim)); diff != "" {
			t.Fatalf("end state (-want +got):\n%s\nlog:\n%s", diff, p.log())
		}
	}
	t.Logf("%d tenants, killed %d times, in steps %v: %+v", victims, killed, steps, often)
	if 2*often.deleted > 3*victims*once.deleted || 2*often.journalled > 3*victims*once.journalled {
		t.Errorf("killed %d times it did %+v, and undisturbed %+v", killed, often, once)
	}
	if most := once.calls*victims*3/2 + killed; often.calls > most {
		t.Errorf("killed %d times it called the key service %d times, undisturbed %d", killed, often.calls, once.calls)
	}
}
