package tombstones_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
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

// The races run for raceTime, or for MEMD_ATTACK minutes; MEMD_SEED repeats a
// run's choices, though not its timing.
const (
	raceTime     = 2 * time.Second
	raceWriters  = 24
	raceMany     = 200 // writers of a long run
	raceVictims  = 6
	raceFencers  = 3                // at once, each with victims of its own
	raceFences   = 6                // at least, however slow the machine
	raceStall    = 20 * time.Second // for raceWriters on a busy machine
	raceRows     = 256
	raceDeadline = 60 * time.Second
)

// withoutLocks leaves the guard its look and takes its locks away.
const withoutLocks = `CREATE OR REPLACE FUNCTION memd.try_lock(p_hi integer, p_lo integer) RETURNS boolean LANGUAGE sql AS 'SELECT true'`

// race is one run: writers that never stop, fences among them.
type race struct {
	*bundle
	conns      []*pgx.Conn // the writers', for as many runs as there are
	seed       uint64
	victims    []user
	bystanders []user
	sessions   []atomic.Pointer[user] // of each victim, the one in which it speaks now

	fences, survivors, written, refused atomic.Int64
	slowest                             atomic.Int64 // nanoseconds of a bystander's write

	mu     sync.Mutex
	states map[string]int // what writers were told
}

func attackTime() time.Duration {
	if minutes, err := strconv.ParseFloat(os.Getenv("MEMD_ATTACK"), 64); err == nil && minutes > 0 {
		return time.Duration(minutes * float64(time.Minute))
	}
	return raceTime
}

func attackers() int {
	if attackTime() == raceTime {
		return raceWriters
	}
	return raceMany
}

func newRace(t *testing.T) *race {
	r := &race{bundle: setup(t), seed: rand.Uint64(), states: map[string]int{}}
	if seed, err := strconv.ParseUint(os.Getenv("MEMD_SEED"), 10, 64); err == nil {
		r.seed = seed
	}
	r.sessions = make([]atomic.Pointer[user], raceVictims)
	for i := range raceVictims {
		u := r.user()
		r.victims = append(r.victims, u)
		r.sessions[i].Store(&u)
		r.bystanders = append(r.bystanders, r.user())
	}
	return r
}

// run lets writers write while fencers fence, and says what came of it.
func (r *race) run(d time.Duration, fencer func(ctx context.Context, rng *rand.Rand, who int) error) {
	r.t.Helper()
	for len(r.conns) < attackers() {
		r.conns = append(r.conns, r.connect("memd_app"))
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), d)
	defer cancel()
	var writers, fencers sync.WaitGroup
	stop := make(chan struct{})
	// Writers outlast the fencers, so that each fence has somebody to stop.
	for i, conn := range r.conns {
		rng := rand.New(rand.NewPCG(r.seed, uint64(i)))
		writers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				r.write(conn, rng, i, n)
			}
		})
	}
	for i := range raceFencers {
		rng := rand.New(rand.NewPCG(r.seed, 1000+uint64(i)))
		fencers.Go(func() {
			for began := time.Now(); ctx.Err() == nil || r.fences.Load() < raceFences && time.Since(began) < raceDeadline; {
				who := i + raceFencers*rng.IntN(raceVictims/raceFencers)
				if err := fencer(r.t.Context(), rng, who); err != nil {
					r.t.Errorf("fencing: %v", err)
					return
				}
				r.fences.Add(1)
			}
		})
	}
	fencers.Wait()
	close(stop)
	writers.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.t.Logf("seed %d: %d fences, %d survivors; %d writes, %d refused %v; slowest write of a bystander %v",
		r.seed, r.fences.Load(), r.survivors.Load(), r.written.Load(), r.refused.Load(), r.states, time.Duration(r.slowest.Load()).Round(time.Millisecond))
}

// write writes once, in one of many ways, and judges the answer.
func (r *race) write(conn *pgx.Conn, rng *rand.Rand, writer, n int) {
	ctx := r.t.Context()
	innocent := writer%4 == 0
	began := time.Now()
	var err error
	if innocent {
		err = r.way(ctx, conn, rng, r.bystanders)
		if took := int64(time.Since(began)); err == nil {
			for old := r.slowest.Load(); took > old && !r.slowest.CompareAndSwap(old, took); old = r.slowest.Load() {
			}
		}
	} else {
		all := append([]user{}, r.bystanders...)
		for i := range r.sessions {
			all = append(all, *r.sessions[i].Load())
		}
		err = r.way(ctx, conn, rng, all)
	}
	state := stateOf(err)
	switch {
	case err == nil:
		r.written.Add(1)
		return
	case state == "MD001", state == "MD002", state == "MD005", state == "MD006" && !innocent:
		r.refused.Add(1)
	default:
		r.t.Errorf("writer %d, write %d: %v", writer, n, err)
	}
	if innocent {
		r.t.Errorf("writer %d, who never writes for a victim: %v", writer, err)
	}
	r.mu.Lock()
	r.states[state]++
	r.mu.Unlock()
	if err := run(ctx, conn, "ROLLBACK"); err != nil {
		r.t.Errorf("rolling back: %v", err)
	}
}

func (r *race) way(ctx context.Context, conn *pgx.Conn, rng *rand.Rand, users []user) error {
	pick := func() user { return users[rng.IntN(len(users))] }
	one := func() row {
		u := pick()
		return row{owner: u, contributor: u, session: u.session, sourceTime: "clock_timestamp()"}
	}
	pause := func() string { return fmt.Sprintf("; SELECT pg_sleep(%f);", 0.004*rng.Float64()) }
	switch rng.IntN(9) {
	case 0: // One row.
		return run(ctx, conn, insert(one()))
	case 1: // A batch of many subjects in one statement.
		rows := make([]row, 1+rng.IntN(raceRows))
		for i := range rows {
			rows[i] = one()
		}
		return run(ctx, conn, insert(rows...))
	case 2: // Several statements, with time in between for a fence to come.
		return run(ctx, conn, "BEGIN;"+insert(one())+pause()+insert(one(), one())+pause()+insert(one())+"; COMMIT")
	case 3: // As memd does it: enter, then insert, in one pipeline.
		a, b := one(), one()
		batch := &pgx.Batch{}
		batch.Queue("SELECT memd.enter($1, $2)", r.tenant, []int64{int64(a.owner.no), int64(b.owner.no)})
		batch.Queue(insert(a, b))
		return conn.SendBatch(ctx, batch).Close()
	case 4: // A derived row, in one statement, and in several.
		id, a := uuid.New(), one()
		a.id, a.more = id, 2
		c, d := pick(), pick()
		for d.no == c.no {
			d = pick()
		}
		if rng.IntN(2) == 0 {
			return run(ctx, conn, "WITH m AS ("+insert(a)+") "+further(id, c, d))
		}
		return run(ctx, conn, "BEGIN;"+insert(a)+pause()+further(id, c)+pause()+further(id, d)+"; COMMIT")
	case 5: // A change of whatever row there is that nobody else contributed to.
		return run(ctx, conn, fmt.Sprintf(`UPDATE memd.memories SET sealed_text = '\x01', source_time = clock_timestamp() WHERE (tenant_no, memory_id) =
			(SELECT tenant_no, memory_id FROM memd.memories WHERE tenant_no = %d AND owner_no = %d AND more_contributions = 0 LIMIT 1)`, r.tenant, pick().no))
	case 6: // Savepoints, one of them rolled back.
		return run(ctx, conn, "BEGIN; SAVEPOINT a;"+insert(one())+"; ROLLBACK TO a;"+insert(one())+"; SAVEPOINT b;"+insert(one())+pause()+"RELEASE b; COMMIT")
	case 7: // A block that swallows the refusal and commits the rest.
		return run(ctx, conn, "DO $$ BEGIN "+insert(one())+"; BEGIN "+insert(one())+"; EXCEPTION WHEN OTHERS THEN NULL; END; "+insert(one())+"; END $$")
	default: // A delete, which no fence forbids; not of a survivor, which is to be counted.
		return run(ctx, conn, fmt.Sprintf(`DELETE FROM memd.memories WHERE (tenant_no, memory_id) =
			(SELECT tenant_no, memory_id FROM memd.memories WHERE tenant_no = %d AND owner_no = %d LIMIT 1)`, r.tenant, r.bystanders[rng.IntN(len(r.bystanders))].no))
	}
}

// fenceOnce raises a victim's fence, deletes what is the victim's, waits until
// every transaction of before has ended, and counts again.
func (r *race) fenceOnce(ctx context.Context, rng *rand.Rand, who int) error {
	u, request := r.victims[who], uuid.New()
	rows := fmt.Sprintf(`tenant_no = %d AND (owner_no = %[2]d OR contributor_no = %[2]d OR memory_id IN
		(SELECT c.memory_id FROM memd.memory_contributions c WHERE c.tenant_no = %[1]d AND c.contributor_no = %[2]d))`, u.tenant, u.no)
	err := r.mustVanish(ctx, u, rows, func(ctx context.Context) error {
		open := func(context.Context, pg.DB) error { return nil }
		return tombstones.Raise(ctx, r.worker, u.tenant, u.ref, request, time.Now(), open, noScopes)
	})
	if err != nil {
		return err
	}
	return r.worker.With(ctx, func(db pg.DB) error { return tombstones.Lift(ctx, db, u.tenant, u.ref, request, time.Now()) })
}

// buryOnce does the same with the session in which a victim speaks. The victim
// goes on in another one.
func (r *race) buryOnce(ctx context.Context, rng *rand.Rand, who int) error {
	u := *r.sessions[who].Load()
	rows := fmt.Sprintf(`tenant_no = %d AND ((contributor_no = %[2]d AND contributor_session = %[3]d) OR memory_id IN
		(SELECT c.memory_id FROM memd.memory_contributions c WHERE c.tenant_no = %[1]d AND c.contributor_no = %[2]d AND c.contributor_session = %[3]d))`,
		u.tenant, u.no, u.session)
	err := r.mustVanish(ctx, u, rows, func(ctx context.Context) error {
		return tombstones.BurySession(ctx, r.worker, u.tenant, u.ref, u.sref, uuid.New(), time.Now(), noScopes)
	})
	if err != nil {
		return err
	}
	next := u
	next.sref = newRef()
	return r.root.With(ctx, func(db pg.DB) error {
		if err := db.QueryRow(ctx, `SELECT memd.next_session_nos($1, $2, 1)`, u.tenant, u.no).Scan(&next.session); err != nil {
			return err
		}
		if _, err := db.Exec(ctx, insertSession(next, next.session, next.sref, "clock_timestamp()")); err != nil {
			return err
		}
		r.sessions[who].Store(&next)
		return nil
	})
}

// mustVanish forbids a user's rows and deletes them as an erasure does, while
// one writer of theirs has written and not committed. It waits for every
// transaction that was under way to end, and counts what is there all the same.
func (r *race) mustVanish(ctx context.Context, u user, rows string, forbid func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, raceDeadline)
	defer cancel()
	late, err := r.db.Straggle(ctx, "memd_app", insert(row{owner: u, contributor: u, session: u.session, sourceTime: "clock_timestamp()"}))
	if err != nil {
		return err
	}
	err = late.Outlast(ctx, func() error {
		if err := forbid(ctx); err != nil {
			return err
		}
		return r.worker.With(ctx, func(db pg.DB) error {
			_, err := db.Exec(ctx, `DELETE FROM memd.memories WHERE `+rows)
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("forbidding and deleting: %w", err)
	}
	return r.worker.With(ctx, func(db pg.DB) error {
		var now time.Time
		if err := db.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		if err := r.ended(ctx, now); err != nil {
			return err
		}
		var left int64
		if err := db.QueryRow(ctx, `SELECT count(*) FROM memd.memories WHERE `+rows).Scan(&left); err != nil {
			return err
		}
		r.survivors.Add(left)
		return nil
	})
}

// ended waits until every transaction that began before now has ended.
func (r *race) ended(ctx context.Context, now time.Time) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < raceDeadline; <-tick.C {
		var going bool
		err := r.root.With(ctx, func(db pg.DB) error {
			return db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity
				WHERE datname = current_database() AND usename = 'memd_app' AND xact_start < $1)`, now).Scan(&going)
		})
		if err != nil || !going {
			return err
		}
	}
	return fmt.Errorf("transactions of before the fence do not end: %w", memd.ErrStale)
}

func (r *race) wantNoSurvivors() {
	r.t.Helper()
	if r.survivors.Load() != 0 {
		r.t.Errorf("%d rows survived %d fences", r.survivors.Load(), r.fences.Load())
	}
	if r.fences.Load() < raceFences || r.written.Load() < 50 || r.refused.Load() == 0 {
		r.t.Errorf("no race: %d fences, %d writes, %d refused", r.fences.Load(), r.written.Load(), r.refused.Load())
	}
	if s := time.Duration(r.slowest.Load()); s > raceStall*time.Duration(attackers()/raceWriters) {
		r.t.Errorf("a writer of somebody else's stood still for %v", s)
	}
}

// TestRace_NoWritePastAFence is invariant 3.
func TestRace_NoWritePastAFence(t *testing.T) {
	r := newRace(t)
	r.run(attackTime(), r.fenceOnce)
	r.wantNoSurvivors()
}

func TestRace_NoWritePastASessionTombstone(t *testing.T) {
	r := newRace(t)
	r.run(attackTime(), r.buryOnce)
	r.wantNoSurvivors()
}

// TestRace_Controls: the same race does find survivors when the guard is
// missing, and when it only looks and does not lock.
func TestRace_Controls(t *testing.T) {
	for name, weaken := range map[string]string{
		"without the guard's triggers": `
			ALTER TABLE memd.memories DISABLE TRIGGER guard_insert; ALTER TABLE memd.memories DISABLE TRIGGER guard_update;
			ALTER TABLE memd.memory_contributions DISABLE TRIGGER guard_insert`,
		"with a guard that does not lock": withoutLocks,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRace(t)
			r.must(r.sudo(weaken))
			r.run(raceTime/2, r.fenceOnce)
			if r.survivors.Load() == 0 {
				t.Error("no survivor: the race would not find a hole")
			}
		})
	}
}
