package erasure_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/tenants"
)

// Whatever reads a tenant's state, at the other replica too, from the commit of its
// suspension on: admission, every writer, the sweeps of rows and files, and
// retention, also of a job that was queued before. What waited is done when the
// tenant is back.
func TestSuspended_NothingIsWrittenAndNothingIsDoneOnASchedule(t *testing.T) {
	m := newMonths(t)
	ctx := t.Context()
	m.live(m.tenant, september, "alice")
	m.live(m.tenant, november, "alice")
	expired := m.add(at(said("bob", "b1", "bob"), middleOf[november]))[0]
	m.StopWorker() // It would sweep before the suspension.
	m.exec(`UPDATE memd.memories SET expires_at = '2025-10-01Z' WHERE memory_id = $1`, expired)
	m.exec(`INSERT INTO memd.artifact_versions (tenant_no, subject_no, session_no, version_id, month, created_at, touched_at)
		SELECT tenant_no, subject_no, $1, gen_random_uuid(), 1, '2025-10-01Z', '2025-10-01Z' FROM memd.subjects WHERE kind = 1 LIMIT 1`, int64(memd.OwnScope))
	waiting := func() (rows, files, months int) {
		t.Helper()
		return m.count(`SELECT count(*) FROM memd.memories WHERE expires_at IS NOT NULL`), m.count(`SELECT count(*) FROM memd.artifact_versions WHERE version IS NULL`),
			m.count(`SELECT count(*) FROM memd.erasures WHERE kind = 5`)
	}
	move := func(to tenants.State) {
		t.Helper()
		m.exec(`SELECT memd.move_tenant($1, $2::smallint, NULL, 'sealed', now())`, m.tenant.No, int16(to))
	}
	look := func() {
		t.Helper()
		m.StopWorker()
		m.exec(`DELETE FROM memd_jobs.river_job`) // It looked an hour ago.
		m.exec(`INSERT INTO memd_jobs.river_job (kind, queue, args, max_attempts) VALUES ('memd_retention', 'retention', jsonb_build_object('tenant', $1::bigint), 10)`, m.tenant.No)
		m.StartWorker()
		m.looked()
		m.within(time.Minute, "the tenant's own job is done", func() bool {
			return m.count(`SELECT count(*) FROM memd_jobs.river_job WHERE kind = 'memd_retention' AND state <> 'completed'`) == 0
		})
	}
	move(tenants.StateSuspended)
	rows, files, _ := waiting()
	if rows != 1 || files != 1 {
		t.Fatalf("%d rows and %d files wait", rows, files)
	}

	st, of := sessions.Tenant{No: m.tenant.No, Epoch: m.tenant.Epoch}, artifacts.Tenant{No: m.tenant.No, Epoch: m.tenant.Epoch}
	id := sessions.ID{App: app, UserID: "alice", SessionID: november}
	for name, write := range map[string]func() error{
		"admission": func() error {
			_, err := m.b.Memory.Add(ctx, m.tenant, []memory.Row{at(said("zoe", "z1", "late"), middleOf[november])})
			return err
		},
		"a memory": func() error {
			_, err := m.b.Memory.Add(ctx, m.tenant, []memory.Row{at(said("bob", "b1", "late"), middleOf[november])})
			return err
		},
		"a session": func() error {
			_, err := m.b.Sessions.Create(ctx, st, sessions.ID{App: app, UserID: "bob", SessionID: "late"}, nil, false)
			return err
		},
		"an event": func() error {
			_, err := m.b.Sessions.Append(ctx, st, id, []sessions.Event{{ID: "late", Author: "user", Time: middleOf[november], Content: `"late"`}}, time.Time{}, false)
			return err
		},
		"an event with state": func() error {
			_, err := m.b.Sessions.Append(ctx, st, id, []sessions.Event{{ID: "late", Author: "user", Time: middleOf[november], StateDelta: map[string]string{"k": "1"}}}, time.Time{}, false)
			return err
		},
		"an artifact": func() error {
			_, err := m.b.Artifacts.Save(ctx, of, artifacts.Owner{App: app, UserID: "alice", SessionID: november}, "late", artifacts.File{}, strings.NewReader("late"))
			return err
		},
	} {
		if err := write(); !errors.Is(err, memd.ErrTenantInactive) {
			t.Errorf("%s: %v", name, err)
		}
	}
	look()
	worker := m.DB.Pool(node.WorkerRole)
	err := worker.InTx(ctx, func(tx pgx.Tx) error {
		n, err := memory.SweepExpired(ctx, tx, time.Now(), 10)
		if n != 0 {
			t.Errorf("%d rows are swept", n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := artifacts.Sweep(ctx, worker, time.Now()); n != 0 || err != nil {
		t.Errorf("%d files are swept, %v", n, err)
	}
	if rows, files, months := waiting(); rows != 1 || files != 1 || months != 0 {
		t.Errorf("%d rows and %d files are left, and %d months expire", rows, files, months)
	}

	move(tenants.StateActive)
	look()
	m.within(time.Minute, "what waited is done", func() bool {
		rows, files, months := waiting()
		return rows == 0 && files == 0 && months == 2
	})
}
