package tombstones_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tombstones"
)

func (b *bundle) read(u user) tombstones.Fence {
	b.t.Helper()
	var f tombstones.Fence
	b.must(b.worker.With(b.t.Context(), func(db pg.DB) (err error) {
		f, err = tombstones.Read(b.t.Context(), db, u.tenant, u.ref)
		return err
	}))
	f.ErasedBefore = f.ErasedBefore.UTC()
	return f
}

func (b *bundle) wantFence(u user, want tombstones.Fence) {
	b.t.Helper()
	if diff := cmp.Diff(want, b.read(u)); diff != "" {
		b.t.Errorf("fence (-want +got):\n%s", diff)
	}
}

func TestFence_Life(t *testing.T) {
	b := setup(t)
	u := b.user()
	at := func(minute int) time.Time { return time.Date(2026, 5, 1, 12, minute, 0, 0, time.UTC) }
	b.wantFence(u, tombstones.Fence{})
	first, second := uuid.New(), uuid.New()

	b.must(b.raise(u, first, at(10), noScopes))
	b.wantFence(u, tombstones.Fence{State: tombstones.StateFenced, ErasedBefore: at(10), RequestID: first})
	b.must(b.raise(u, first, at(20), noScopes)) // Again changes nothing.
	b.wantFence(u, tombstones.Fence{State: tombstones.StateFenced, ErasedBefore: at(10), RequestID: first})
	if err := b.raise(u, second, at(30), noScopes); !errors.Is(err, memd.ErrStale) {
		t.Errorf("another request's fence: %v", err)
	}
	b.lift(u, second, at(30)) // It is not this request's to lift.
	b.wantFence(u, tombstones.Fence{State: tombstones.StateFenced, ErasedBefore: at(10), RequestID: first})

	b.lift(u, first, at(30))
	b.wantFence(u, tombstones.Fence{State: tombstones.StateLifted, ErasedBefore: at(30), RequestID: first})
	b.lift(u, first, at(40)) // It is not up.
	b.wantFence(u, tombstones.Fence{State: tombstones.StateLifted, ErasedBefore: at(30), RequestID: first})

	// A clock that went back moves nothing back.
	b.must(b.raise(u, second, at(5), noScopes))
	b.wantFence(u, tombstones.Fence{State: tombstones.StateFenced, ErasedBefore: at(30), RequestID: second})
	b.lift(u, second, at(6))
	b.wantFence(u, tombstones.Fence{State: tombstones.StateLifted, ErasedBefore: at(30), RequestID: second})
}

// TestFence_KeyedByRefAndTenant: the same ref in another tenant is somebody else.
func TestFence_KeyedByRefAndTenant(t *testing.T) {
	b := setup(t)
	u := b.user()
	twin := user{tenant: b.newTenant("globex", 2), ref: u.ref}
	b.admit(&twin)
	b.fence(u)
	b.refused("MD001", insert(row{owner: u}))
	b.allowed(insert(row{owner: twin}))
}

func TestFence_Hides(t *testing.T) {
	b := setup(t)
	u, v := b.user(), b.user()
	request := uuid.New()
	hides := func(context.Context, pg.DB) ([]tombstones.Hide, error) {
		// It is asked when nothing can come any more.
		b.wantState(u, tombstones.StateFencing)
		return []tombstones.Hide{{Owner: v.no, Contributor: u.no}, {Owner: u.no, Contributor: u.no}}, nil
	}
	b.must(b.raise(u, request, time.Now(), hides))
	b.must(b.raise(u, request, time.Now(), func(context.Context, pg.DB) ([]tombstones.Hide, error) {
		return []tombstones.Hide{{Owner: v.no, Contributor: u.no}}, nil
	}))
	b.lift(u, request, time.Now())
	if n := b.count(`SELECT count(*) FROM memd.hides`); n != 2 {
		t.Errorf("%d hides, want the two, for good", n)
	}

	// An error of scopes leaves the fence where nothing is written.
	w := b.user()
	broken := errors.New("broken")
	err := b.raise(w, uuid.New(), time.Now(), func(context.Context, pg.DB) ([]tombstones.Hide, error) { return nil, broken })
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	b.wantState(w, tombstones.StateFencing)
	b.refused("MD001", insert(row{owner: w}))
}

func (b *bundle) wantState(u user, want tombstones.State) {
	b.t.Helper()
	if got := b.read(u).State; got != want {
		b.t.Errorf("the fence is %v, want %v", got, want)
	}
}

// TestFence_WaitsForWriters: a writer under way holds the fence up until it
// ends, everybody new is refused meanwhile, and its row is there to be deleted.
func TestFence_WaitsForWriters(t *testing.T) {
	b := setup(t)
	for name, end := range map[string]string{"which commits": "COMMIT", "which gives up": "ROLLBACK", "whose connection breaks": ""} {
		t.Run(name, func(t *testing.T) {
			b.t = t
			u := b.user()
			writer := b.connect("memd_app")
			b.must(run(t.Context(), writer, "BEGIN;"+insert(row{owner: u})))
			raised := make(chan error, 1)
			request := uuid.New()
			go func() { raised <- b.raise(u, request, time.Now(), noScopes) }()
			b.eventually("the fence is up", func() bool { return b.read(u).State == tombstones.StateFencing })
			b.eventually("the fence waits", func() bool {
				return b.count(`SELECT count(*) FROM pg_stat_activity WHERE usename = 'memd_worker' AND wait_event = 'advisory'`) > 0
			})
			began := time.Now()
			b.refused("MD001", insert(row{owner: u}))
			b.refused("MD001", fmt.Sprintf(`SELECT memd.enter(%d, '{%d}')`, b.tenant, u.no))
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("new writers queued for %v behind the drain", took)
			}
			// Its own next statement is refused too: it gets no further.
			second := b.connect("memd_app")
			b.must(run(t.Context(), second, "BEGIN;"+insert(row{owner: b.user()})))
			if err := run(t.Context(), second, insert(row{owner: u})); stateOf(err) != "MD001" {
				t.Errorf("a transaction of before the fence goes on: %v", err)
			}
			select {
			case err := <-raised:
				t.Fatalf("raised over a writer's head: %v", err)
			default:
			}
			if end == "" {
				b.must(writer.PgConn().Conn().Close())
			} else {
				b.must(run(t.Context(), writer, end))
			}
			if err := <-raised; err != nil {
				t.Fatal(err)
			}
			b.wantState(u, tombstones.StateFenced)
			want := 0
			if end == "COMMIT" {
				want = 1
			}
			if n := b.rowsOf(u); n != want {
				t.Errorf("%d rows, want %d", n, want)
			}
		})
	}
	b.t = t
}

// TestFence_GivesUpAndStaysUp: the wait is bounded by its caller and by
// DrainLimit, and what is refused stays refused.
func TestFence_GivesUpAndStaysUp(t *testing.T) {
	b := setup(t)
	u := b.user()
	b.must(run(t.Context(), b.app, "BEGIN;"+insert(row{owner: u})))
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	request := uuid.New()
	open := func(context.Context, pg.DB) error { return nil }
	err := tombstones.Raise(ctx, b.worker, u.tenant, u.ref, request, time.Now(), open, noScopes)
	if !errors.Is(err, context.DeadlineExceeded) && !memd.Transient(err) {
		t.Errorf("gave up with %v", err)
	}
	b.wantState(u, tombstones.StateFencing)
	other := b.connect("memd_app")
	if err := run(t.Context(), other, insert(row{owner: u})); stateOf(err) != "MD001" {
		t.Errorf("got %v", err)
	}
	b.must(run(t.Context(), b.app, "COMMIT"))
	b.must(b.raise(u, request, time.Now(), noScopes))
	b.wantState(u, tombstones.StateFenced)
	// The server ends a transaction of memd_app that idles, so that no writer
	// can outlast the limit.
	var idle, statement string
	b.must(other.QueryRow(t.Context(), `SHOW idle_in_transaction_session_timeout`).Scan(&idle))
	b.must(other.QueryRow(t.Context(), `SHOW statement_timeout`).Scan(&statement))
	if idle != "10s" || statement != "30s" {
		t.Errorf("memd_app may idle for %s and run for %s", idle, statement)
	}
}

// TestBurySession_LetsOtherSessionsWrite: while one session's writers drain,
// the user's other sessions go on, a turn of the lock at a time.
func TestBurySession_LetsOtherSessionsWrite(t *testing.T) {
	b := setup(t)
	u := b.user()
	other, _ := b.newSession(u, "NULL")
	writer := b.connect("memd_app")
	b.must(run(t.Context(), writer, "BEGIN;"+insert(row{owner: u, session: u.session})))
	buried := make(chan error, 1)
	go func() {
		buried <- tombstones.BurySession(t.Context(), b.worker, u.tenant, u.ref, u.sref, uuid.New(), time.Now(), noScopes)
	}()
	b.eventually("the drain waits", func() bool {
		return b.count(`SELECT count(*) FROM pg_stat_activity WHERE usename = 'memd_worker' AND wait_event = 'advisory'`) > 0
	})
	var slowest time.Duration
	for range 20 {
		began := time.Now()
		b.allowed(insert(row{owner: u, session: other}))
		b.refused("MD002", insert(row{owner: u, session: u.session}))
		slowest = max(slowest, time.Since(began))
	}
	t.Logf("slowest write of another session during the drain: %v", slowest)
	if slowest > 20*time.Second {
		t.Errorf("another session's write stood still for %v", slowest)
	}
	b.must(run(t.Context(), writer, "COMMIT"))
	if err := <-buried; err != nil {
		t.Fatal(err)
	}
	b.must(tombstones.BurySession(t.Context(), b.worker, u.tenant, u.ref, u.sref, uuid.New(), time.Now(), noScopes))
}

// TestFence_TheReturningUser starts empty: another number, other sessions, and
// nothing from before.
func TestFence_TheReturningUser(t *testing.T) {
	b := setup(t)
	u := b.user()
	lost, lostRef := b.newSession(u, "NULL")
	request := b.fence(u)
	b.must(b.worker.With(t.Context(), func(db pg.DB) error {
		return tombstones.Bury(t.Context(), db, u.tenant, []memd.Ref{u.sref, lostRef}, request, time.Now())
	}))
	b.retire(u)
	b.refused("MD001", insertSubjectSince(user{tenant: u.tenant, ref: u.ref, no: u.no + 50}, "now()"))
	b.lift(u, request, time.Now())

	back := user{tenant: u.tenant, ref: u.ref}
	b.must(b.app.QueryRow(t.Context(), `SELECT memd.next_subject_no($1)`, u.tenant).Scan(&back.no))
	b.must(run(t.Context(), b.app, insertSubjectSince(back, "clock_timestamp()")))
	if back.no <= u.no {
		t.Errorf("returned as %v, was %v", back.no, u.no)
	}
	b.refused("23505", insertSubjectSince(user{tenant: u.tenant, ref: u.ref, no: back.no + 50}, "clock_timestamp()")) // One life at a time.
	for _, ref := range []memd.Ref{u.sref, lostRef} {
		b.refused("MD002", insertSession(back, b.nextSession(back), ref, "clock_timestamp()"))
	}
	b.refused("MD006", insert(row{owner: u, sourceTime: "clock_timestamp()"}))
	b.refused("MD006", insert(row{owner: back, contributor: u, sourceTime: "clock_timestamp()"}))
	b.refused("MD002", insert(row{owner: back, contributor: u, session: lost, sourceTime: "clock_timestamp()"}))
	b.refused("MD012", insert(row{owner: back}))
	b.refused("MD005", insert(row{owner: back, sourceTime: "now() - interval '1 minute'"}))
	b.allowed(insert(row{owner: back, sourceTime: "clock_timestamp()"}))
	b.refused("MD012", insertSession(back, b.nextSession(back), newRef(), "NULL"))
	back.session, _ = b.newSession(back, "clock_timestamp()")
	b.allowed(insert(row{owner: back, session: back.session, sourceTime: "clock_timestamp()"}))
}
