package tombstones_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tombstones"
)

const sqlKnown = `
SELECT (SELECT count(*) FROM memd.subjects WHERE user_ref = $1) + (SELECT count(*) FROM memd.sessions x JOIN memd.subjects s USING (tenant_no, subject_no)
  WHERE s.user_ref = $1)`

// admissions races fences of new users with their admission, and that of their
// sessions, and returns how many of them came in behind a fence.
func (r *race) admissions(d time.Duration) (late, fences int64) {
	const parallel, rivals = 4, 3
	ctx, cancel := context.WithTimeout(r.t.Context(), d)
	defer cancel()
	var lost, rounds, next atomic.Int64
	next.Store(1<<40 | 1_000_000)
	var all sync.WaitGroup
	for i := range parallel {
		conns := make([]*pgx.Conn, rivals)
		for j := range conns {
			conns[j] = r.connect("memd_app")
		}
		rng := rand.New(rand.NewPCG(r.seed, 5000+uint64(i)))
		all.Go(func() {
			for ctx.Err() == nil && !r.t.Failed() {
				n, err := r.admissionRound(r.t.Context(), conns, rng, &next)
				if err != nil {
					r.t.Error(err)
				}
				lost.Add(n)
				rounds.Add(1)
			}
		})
	}
	all.Wait()
	r.t.Logf("seed %d: %d fences of users just coming in, %d admissions behind one", r.seed, rounds.Load(), lost.Load())
	return lost.Load(), rounds.Load()
}

// admissionRound is one fence. In every other round an admission has written
// before it comes, and commits when it has to.
func (r *race) admissionRound(ctx context.Context, conns []*pgx.Conn, rng *rand.Rand, next *atomic.Int64) (int64, error) {
	u := user{tenant: r.tenant, ref: newRef(), no: memd.Number(next.Add(1))}
	early := insertSubject(u)
	if u.no%2 == 0 {
		early = ""
	}
	first, err := r.db.Straggle(ctx, "memd_app", early)
	if err != nil {
		return 0, err
	}
	var rivals sync.WaitGroup
	for _, conn := range conns {
		mine := rand.New(rand.NewPCG(rng.Uint64(), 0))
		rivals.Go(func() {
			me := u
			for refused := false; !refused; {
				pause := fmt.Sprintf("; SELECT pg_sleep(%f);", 0.003*mine.Float64())
				if err := conn.QueryRow(ctx, `SELECT coalesce(max(subject_no), 0) FROM memd.subjects WHERE user_ref = $1`, u.ref[:]).Scan(&me.no); err != nil {
					r.t.Error(err)
					return
				}
				sql := insertSession(me, memd.Number(next.Add(1)), newRef(), "clock_timestamp()")
				if me.no == 0 {
					me.no = memd.Number(next.Add(1))
					sql = insertSubject(me)
				}
				err := run(ctx, conn, "BEGIN;"+sql+pause+"COMMIT")
				if err != nil {
					if err := run(ctx, conn, "ROLLBACK"); err != nil {
						r.t.Error(err)
					}
				}
				switch state := stateOf(err); {
				case state == "MD001":
					refused = true
				case err != nil && state != "23505": // A rival was quicker.
					r.t.Errorf("admitting: %v", err)
					return
				}
			}
		})
	}
	defer rivals.Wait()
	timer := time.NewTimer(time.Duration(rng.IntN(8)) * time.Millisecond)
	<-timer.C
	var before, after int64
	var now time.Time
	err = first.Outlast(ctx, func() error {
		open := func(context.Context, pg.DB) error { return nil }
		if err := tombstones.Raise(ctx, r.worker, u.tenant, u.ref, uuid.New(), time.Now(), open, noScopes); err != nil {
			return err
		}
		return r.root.With(ctx, func(db pg.DB) error {
			if err := db.QueryRow(ctx, sqlKnown, u.ref[:]).Scan(&before); err != nil {
				return err
			}
			return db.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now)
		})
	})
	if err != nil {
		return 0, err
	}
	rivals.Wait() // Each goes on until it is refused.
	if err := r.ended(ctx, now); err != nil {
		return 0, err
	}
	err = r.root.With(ctx, func(db pg.DB) error { return db.QueryRow(ctx, sqlKnown, u.ref[:]).Scan(&after) })
	return after - before, err
}

// TestRace_NoAdmissionPastAFence: nobody enters the directory, by themselves
// or by a session, behind their fence.
func TestRace_NoAdmissionPastAFence(t *testing.T) {
	r := newRace(t)
	late, fences := r.admissions(min(attackTime(), time.Minute))
	if late != 0 || fences < raceFences {
		t.Errorf("%d admissions behind %d fences", late, fences)
	}

	t.Run("the control finds some", func(t *testing.T) {
		c := newRace(t)
		c.must(c.sudo(withoutLocks))
		if late, _ := c.admissions(raceTime / 2); late > 0 {
			return
		}
		t.Error("no late admission: the race would not find a hole")
	})
}
