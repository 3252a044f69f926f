package bench

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"runtime/metrics"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/dev"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/sessions"
)

// The sizes of the figures: a user, and a tenant of the second seed's sizing.
const (
	eraseSessions   = 40
	eraseEvents     = 2000
	eraseArtifacts  = 120
	eraseBytes      = 16 << 10
	eraseMemories   = 1000
	purgedUsers     = 1200
	purgedSessions  = 40
	purgedArtifacts = 3 // of each session
	purgeDimension  = 16
	// seedSeconds is what the second seed's sizing takes for the same purge.
	seedSeconds = 375
)

// erasures measures an erasure of a user with all that a user has, and the purge
// of a whole tenant, with a neighbour who searches meanwhile.
func erasures(ctx context.Context, l *lab) ([]Figure, error) {
	one, err := l.eraseOne(ctx)
	if err != nil {
		return nil, err
	}
	purge, err := l.purgeTenant(ctx)
	return append(one, purge...), err
}

func (l *lab) eraseOne(ctx context.Context) ([]Figure, error) {
	t, err := l.tenant(ctx, "erased", purgeDimension)
	if err != nil {
		return nil, err
	}
	var took []float64
	for range l.c.Runs {
		user := l.newUser()
		if err := l.converse(ctx, t, user, eraseSessions, eraseEvents/eraseSessions, eraseArtifacts/eraseSessions, eraseBytes); err != nil {
			return nil, err
		}
		if err := l.fill(ctx, t, user, eraseMemories); err != nil {
			return nil, err
		}
		s, err := t.forget(ctx, user, eraseMemories)
		if err != nil {
			return nil, err
		}
		took = append(took, s)
	}
	return []Figure{bounded(fmt.Sprintf("forget a user of %d sessions, %d events, %d artifacts and %d memories, verified",
		eraseSessions, eraseEvents, eraseArtifacts, eraseMemories), "s", median(took), 2)}, nil
}

// converse gives a user sessions with events and artifacts.
func (l *lab) converse(ctx context.Context, t *tenant, user memd.Scope, count, events, files, size int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	content := bytes.Repeat([]byte("artifact"), size/8)
	for i := range count {
		group.Go(func() error {
			id := sessions.ID{App: user.App, UserID: user.UserID, SessionID: fmt.Sprintf("s%d", i)}
			st := sessions.Tenant{No: t.No, Epoch: t.Epoch}
			if _, err := l.d.Server.Sessions.Create(ctx, st, id, nil, false); err != nil {
				return err
			}
			batch := make([]sessions.Event, events)
			for n := range batch {
				batch[n] = sessions.Event{ID: fmt.Sprintf("e%d", n), Author: "user", Time: time.Now(), Content: `"` + text + `"`}
			}
			for part := range slices.Chunk(batch, 50) {
				if _, err := l.d.Server.Sessions.Append(ctx, st, id, part, time.Time{}, false); err != nil {
					return err
				}
			}
			owner := artifacts.Owner{App: user.App, UserID: user.UserID, SessionID: id.SessionID}
			for n := range files {
				_, err := l.d.Server.Artifacts.Save(ctx, artifacts.Tenant{No: t.No, Epoch: t.Epoch}, owner,
					fmt.Sprintf("file-%d", n), artifacts.File{}, bytes.NewReader(content))
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// sqlClone repeats one user's rows for many more, past the guard: storing them
// through the API would take an hour, and what is measured is their deletion.
const sqlClone = `DO $do$
DECLARE
  c record;
BEGIN
  SET LOCAL session_replication_role = replica;
  INSERT INTO subjects SELECT (jsonb_populate_record(s, jsonb_build_object(
    'subject_no', s.subject_no + u, 'user_ref', '\x' || encode(sha256(s.user_ref || int4send(u)), 'hex')))).*
  FROM subjects s CROSS JOIN generate_series(1, %[2]d) u WHERE s.tenant_no = %[1]d AND s.kind = 1;
  FOR c IN SELECT DISTINCT t.relname FROM pg_class t
    JOIN pg_attribute a ON a.attrelid = t.oid AND a.attname = 'subject_no'
    JOIN pg_attribute b ON b.attrelid = t.oid AND b.attname = 'tenant_no'
    WHERE t.relnamespace = 'memd'::regnamespace AND t.relkind IN ('r', 'p') AND NOT t.relispartition
      AND t.relname NOT IN ('subjects', 'erasure_subjects') LOOP
    EXECUTE format('INSERT INTO %%I SELECT (jsonb_populate_record(r, jsonb_build_object(''subject_no'', r.subject_no + u))).*
      FROM %%I r CROSS JOIN generate_series(1, %[2]d) u WHERE r.tenant_no = %[1]d', c.relname, c.relname);
  END LOOP;
END $do$`

// plant makes a tenant with the users, sessions and artifacts of the figures, takes
// it to where it can be purged, and returns the way to the tables.
func (l *lab) plant(ctx context.Context, name string) (*tenant, *pgx.Conn, error) {
	t, err := l.tenant(ctx, name, purgeDimension)
	if err != nil {
		return nil, nil, err
	}
	if err := l.converse(ctx, t, l.newUser(), purgedSessions, 1, purgedArtifacts, 64); err != nil {
		return nil, nil, err
	}
	owner, err := pgx.Connect(ctx, l.d.Cluster.URL(dev.Database, ""))
	if err != nil {
		return nil, nil, err
	}
	for _, sql := range []string{
		`SET search_path = memd, public`,
		fmt.Sprintf(sqlClone, t.No, purgedUsers-1), `ANALYZE`, `CHECKPOINT`,
		fmt.Sprintf(`UPDATE tenants SET state = 5 WHERE tenant_no = %d`, t.No),
	} {
		if _, err := owner.Exec(ctx, sql); err != nil {
			return nil, nil, err
		}
	}
	var files int64
	err = owner.QueryRow(ctx, `SELECT count(*) FROM artifacts WHERE tenant_no = $1`, t.No).Scan(&files)
	if err != nil || files != purgedUsers*purgedSessions*purgedArtifacts {
		return nil, nil, fmt.Errorf("%d artifacts were planted: %w", files, err)
	}
	return t, owner, nil
}

func (l *lab) purgeTenant(ctx context.Context) ([]Figure, error) {
	_, owner, err := l.plant(ctx, "purged")
	if err != nil {
		return nil, err
	}
	defer func() { _ = owner.Close(ctx) }() // The lab ends with its cluster.
	neighbour, err := l.tenant(ctx, "neighbour", purgeDimension)
	if err != nil {
		return nil, err
	}
	user := l.newUser()
	if err := l.fill(ctx, neighbour, user, eraseMemories); err != nil {
		return nil, err
	}
	return l.purgeBeside(ctx, neighbour, user)
}

// approve has somebody else look at the dry run of a tenant's purge and approve it.
func (l *lab) approve(ctx context.Context, name string) error {
	var key auth.Key
	err := l.d.Server.Pool.With(ctx, func(db pg.DB) (err error) {
		key, _, err = auth.Create(ctx, db, time.Now(), auth.NewKey{Name: "approver", Roles: auth.Approver})
		return err
	})
	if err != nil {
		return err
	}
	shown, err := l.d.Server.Erasure.DryRunTenant(ctx, name)
	if err == nil {
		_, err = l.d.Server.Erasure.ApproveDeletion(ctx, erasure.Caller{KeyID: key.ID}, name, name, shown.Digest)
	}
	return err
}

// purgeBeside purges while the neighbour searches, who searches as long before
// and after it: what else the machine does is in both.
func (l *lab) purgeBeside(ctx context.Context, neighbour *tenant, user memd.Scope) ([]Figure, error) {
	quiet, err := neighbour.searching(ctx, l, user, time.After(10*time.Second))
	if err != nil {
		return nil, err
	}
	before := liveHeap()
	done := make(chan time.Time)
	var took, deleting float64
	var peak uint64
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(done)
		began := time.Now()
		wait := 5 * time.Minute
		if err := l.approve(ctx, "purged"); err != nil {
			return err
		}
		r, err := l.d.Server.Erasure.DeleteTenant(running, erasure.Caller{Wait: &wait}, "purged", "purged", uuid.New())
		took = time.Since(began).Seconds()
		if err == nil && r.State < erasure.StateDone {
			err = fmt.Errorf("the purge is %v: %s", r.State, r.Failure)
		}
		for _, s := range r.Steps {
			if s.Step == erasure.StepUsers {
				deleting = s.Finished.Sub(s.Started).Seconds()
			}
		}
		return err
	})
	var beside []float64
	group.Go(func() (err error) {
		beside, err = neighbour.searching(running, l, user, done)
		return err
	})
	group.Go(func() error {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return nil
			case <-tick.C:
				peak = max(peak, liveHeap())
			}
		}
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	after, err := neighbour.searching(ctx, l, user, time.After(10*time.Second))
	if err != nil {
		return nil, err
	}
	quiet = append(quiet, after...)
	f := bounded(fmt.Sprintf("purge a tenant: %d users, %d sessions, %d artifacts", purgedUsers,
		purgedUsers*purgedSessions, purgedUsers*purgedSessions*purgedArtifacts), "s", took, 20)
	f.Note = fmt.Sprintf("%d s by the second seed's sizing; %.1f s of it are the subjects', rests included, the others are counting and verifying",
		seedSeconds, deleting)
	grown := float64(max(peak, before)-before) / (1 << 20)
	moved := quantile(beside, 0.95) / quantile(quiet, 0.95)
	p95 := bounded("search p95 of another tenant during the purge, of that before and after", "times", moved, 1.2)
	p95.Note = fmt.Sprintf("%.2f ms before and after, %.2f ms during", quantile(quiet, 0.95), quantile(beside, 0.95))
	return []Figure{f, bounded("live heap that the whole process grows by meanwhile", "MiB", grown, 64), p95}, nil
}

// liveHeap collects garbage and returns what it found in use, in bytes. What has
// been allocated since the last time says more about the measurements before this
// one, whose rows are in memory still and let the collector rest.
func liveHeap() uint64 {
	runtime.GC()
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// searching searches at a steady pace, as an agent does, until it is stopped,
// and returns milliseconds.
func (t *tenant) searching(ctx context.Context, l *lab, user memd.Scope, stop <-chan time.Time) ([]float64, error) {
	var out []float64
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		began := time.Now()
		if err := t.search(ctx, user, l.vector(purgeDimension)); err != nil {
			return nil, err
		}
		out = append(out, float64(time.Since(began))/1e6)
		select {
		case <-stop:
			return out, nil
		case <-tick.C:
		}
	}
}
