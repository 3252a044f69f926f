package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred/kmsemu"
)

const (
	purgeKills = 10
	// killWithin is less than a tenth of what the purge takes, so that it is killed
	// ten times before it ends.
	killWithin = 1200 * time.Millisecond
)

// sqlDeleted counts rows that were deleted, rolled back ones too.
const sqlDeleted = `SELECT coalesce(sum(n_tup_del), 0)::bigint FROM pg_stat_user_tables
WHERE schemaname = 'memd' AND relname NOT IN ('instances', 'instance_epochs', 'ledger_outbox')`

// sqlHas counts what there is to delete.
const sqlHas = `SELECT sum(n)::bigint FROM (
  SELECT count(*) AS n FROM session_heads WHERE tenant_no = $1
  UNION ALL SELECT count(*) FROM session_events WHERE tenant_no = $1 UNION ALL SELECT count(*) FROM session_state WHERE tenant_no = $1
  UNION ALL SELECT count(*) FROM artifacts WHERE tenant_no = $1 UNION ALL SELECT count(*) FROM artifact_versions WHERE tenant_no = $1
  UNION ALL SELECT count(*) FROM artifact_chunks WHERE tenant_no = $1) x`

const sqlWorkers = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'memd %memd_worker'`

// kills measures the purge of a tenant whose worker, a process of its own, is killed
// ten times, at moments picked at random after it has taken the purge up.
func kills(ctx context.Context, l *lab) ([]Figure, error) {
	t, owner, err := l.plant(ctx, "killed")
	if err != nil {
		return nil, err
	}
	l.d.StopWorker()
	defer func() { _ = owner.Close(ctx) }() // The lab ends with its cluster.
	if err := l.approve(ctx, "killed"); err != nil {
		return nil, err
	}
	no := time.Duration(0)
	id := uuid.New()
	if _, err := l.d.Server.Erasure.DeleteTenant(ctx, erasure.Caller{Wait: &no}, "killed", "killed", id); err != nil {
		return nil, err
	}
	v := &victim{l: l, owner: owner, tenant: t.No, id: id}
	before, err := v.count(ctx, sqlDeleted)
	if err != nil {
		return nil, err
	}
	had, err := v.count(ctx, sqlHas, t.No)
	if err != nil {
		return nil, err
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	fmt.Fprintf(l.c.Log, "kills with seed %d\n", seed)
	began, killed := time.Now(), 0
	for over := false; !over; {
		limit := time.Hour
		if killed < purgeKills {
			limit = time.Duration(random.Int64N(int64(killWithin)))
		}
		if over, err = v.run(ctx, limit); err != nil {
			return nil, err
		}
		if !over {
			killed++
		}
	}
	took := time.Since(began).Seconds()
	after, err := v.count(ctx, sqlDeleted)
	if err != nil {
		return nil, err
	}
	work := bounded(fmt.Sprintf("rows deleted by the purge of %d users, %d sessions and %d artifacts whose worker is killed %d times, of those there were",
		purgedUsers, purgedUsers*purgedSessions, purgedUsers*purgedSessions*purgedArtifacts, killed), "times", float64(after-before)/float64(had), 1.5)
	work.Note = fmt.Sprintf("%.1f s with all starts; seed %d", took, seed)
	if killed < purgeKills {
		work.Met = false
	}
	return []Figure{work}, nil
}

// victim is a purge that is killed again and again.
type victim struct {
	l      *lab
	owner  *pgx.Conn
	tenant memd.TenantNo
	id     uuid.UUID
}

func (v *victim) count(ctx context.Context, sql string, args ...any) (n int64, err error) {
	return n, v.owner.QueryRow(ctx, sql, args...).Scan(&n)
}

// until asks again and again until a count is so, which it reports, or the time is
// over.
func (v *victim) until(ctx context.Context, limit time.Duration, ok func(n int64) bool, sql string, args ...any) (bool, error) {
	over := time.NewTimer(limit)
	defer over.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		n, err := v.count(ctx, sql, args...)
		if err != nil || ok(n) {
			return err == nil, err
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-over.C:
			return false, nil
		case <-tick.C:
		}
	}
}

// run has a worker of its own take the purge up, kills it after a while, and reports
// whether the purge was done before.
func (v *victim) run(ctx context.Context, limit time.Duration) (over bool, err error) {
	// The dead hold keys for as long as their leases, and jobs until they are missed.
	for _, sql := range []string{
		`UPDATE instances SET lease_until = now() WHERE kind = 'worker'`,
		`UPDATE memd_jobs.river_job SET attempted_at = attempted_at - interval '1 minute' WHERE state = 'running'`,
	} {
		if _, err := v.owner.Exec(ctx, sql); err != nil {
			return false, err
		}
	}
	ours, err := v.count(ctx, sqlWorkers) // Idle connections of the worker that rests.
	if err != nil {
		return false, err
	}
	d := v.l.d
	cmd, err := v.l.c.Worker(ctx, "MEMD_DATABASE_URL="+d.Cluster.URL("memd", "memd_worker"), "MEMD_LEDGER="+d.Ledger, "MEMD_KMS=emulator:"+d.KMSAddress,
		"MEMD_KMS_TOKEN="+d.KMS.Tokens()[kmsemu.Worker], "MEMD_SHREDDER_KMS_TOKEN="+d.KMS.Tokens()[kmsemu.Shredder])
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("starting a worker: %w", err)
	}
	defer func() {
		if e := end(cmd); err == nil {
			err = e
		}
		if err == nil {
			_, err = v.until(ctx, time.Minute, func(n int64) bool { return n <= ours }, sqlWorkers)
		}
	}()
	one := func(n int64) bool { return n > 0 }
	_, err = v.until(ctx, time.Minute, one, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid::bigint << 32 | objid::bigint = $1`,
		int64(pg.LockErasure.ForID(v.id)))
	if err != nil {
		return false, err
	}
	return v.until(ctx, limit, one, `SELECT count(*) FROM erasures WHERE tenant_no = $1 AND request_id = $2 AND state >= 3`, v.tenant, v.id)
}

// end kills a process and waits for its death.
func end(cmd *exec.Cmd) error {
	if err := cmd.Process.Kill(); err != nil {
		return fmt.Errorf("killing a worker: %w", err)
	}
	_ = cmd.Wait() // It was killed: that is the point.
	return nil
}
