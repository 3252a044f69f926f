package sessions_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/sessions"
)

const (
	raceWriters = 12
	raceRounds  = 8
	raceControl = 2 // rounds of the control
)

// withoutLocks leaves the guard its look and takes its locks away.
const withoutLocks = `CREATE OR REPLACE FUNCTION memd.try_lock(p_hi integer, p_lo integer) RETURNS boolean LANGUAGE sql AS 'SELECT true'`

// race has writers append for a user, by the API and by hand, while the user is
// fenced, emptied and counted again and again, and returns how many rows were
// there all the same. At each fence one writer has written and not committed.
func (b *bundle) race(t *testing.T, hands []*hand, rounds int) (survivors, written, refused int64) {
	ctx, stop := context.WithCancel(t.Context())
	var round, ok, no atomic.Int64
	var writers sync.WaitGroup
	for w, h := range hands {
		writers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				at := id("ada", fmt.Sprint("s", round.Load()))
				e := b.event(fmt.Sprint(w, "-", n), "x")
				if n%2 == 0 { // an event without state has a way of its own
					e.StateDelta = map[string]string{"k": `1`, "user:k": `1`, "app:k": `1`}
				}
				var err error
				switch w % 3 {
				case 0:
					_, err = b.s.Append(t.Context(), b.tenant, at, []sessions.Event{e}, time.Time{}, false)
				case 1:
					_, err = b.s.Create(t.Context(), b.tenant, id("ada", fmt.Sprint("n", w, "-", round.Load(), "-", n)), e.StateDelta, false)
				default: // by hand, for whoever is in the directory
					err = b.inserted(h, appendAnywhere(100*n+w))
				}
				switch {
				case err == nil:
					ok.Add(1)
				case errors.Is(err, memd.ErrFenced), errors.Is(err, memd.ErrErasedBefore), errors.Is(err, memd.ErrNotFound),
					errors.Is(err, memd.ErrStale), errors.Is(err, memd.ErrSessionForgotten):
					no.Add(1)
				default:
					t.Errorf("writer %d: %v", w, err)
					return
				}
			}
		})
	}
	for range rounds {
		at := id("ada", fmt.Sprint("s", round.Add(1)))
		if _, err := b.s.Create(t.Context(), b.tenant, at, nil, false); err != nil {
			t.Errorf("a round's session: %v", err)
			break
		}
		begun := ok.Load()
		for ok.Load() < begun+raceWriters && ctx.Err() == nil { // the writers have met the session
			b.must(b.srv.Pool.With(t.Context(), func(db pg.DB) error { _, err := db.Exec(t.Context(), `SELECT pg_sleep(0.002)`); return err }))
		}
		subject := memd.Contribution{Subject: b.number(at).Subject}
		// A session and not an event: deleting waits for whoever has a head.
		late, err := b.DB.Straggle(t.Context(), node.AppRole, createByHand(b, b.admit(id("ada", fmt.Sprint("late", round.Load())))))
		b.must(err)
		var lift func()
		b.must(late.Outlast(t.Context(), func() error {
			lift = b.fence("ada")
			b.deleteAll(subject)
			return nil
		}))
		b.ended(t)
		survivors += b.counts(subject).Total()
		b.sudo(`UPDATE memd.subjects SET retired_at = now() WHERE subject_no = $1`, subject.Subject)
		lift()
	}
	stop()
	writers.Wait()
	return survivors, ok.Load(), no.Load()
}

// appendAnywhere is an append by hand to any session of somebody who is in the
// directory.
func appendAnywhere(n int) string {
	return fmt.Sprintf(`SELECT memd.append_event(h.tenant_no, h.user_ref, h.session_ref, h.subject_no, h.session_no, NULL, clock_timestamp(), '\x%032x', now(), '\x00')
		FROM memd.session_heads h JOIN memd.live_subjects l USING (tenant_no, subject_no) LIMIT 1`, n)
}

// hands opens the writers' connections.
func (b *bundle) hands(t *testing.T) (out []*hand) {
	t.Helper()
	for range raceWriters {
		out = append(out, b.hand(t))
	}
	return out
}

// inserted runs SQL by hand and turns what the guard says into memd's errors.
func (b *bundle) inserted(h *hand, sql string) error {
	_, err := h.conn.Exec(h.t.Context(), sql)
	if err != nil && strings.Contains(err.Error(), "23505") {
		return nil
	}
	return pg.Classify(err)
}

// ended waits until every transaction of the application that was under way has
// ended.
func (b *bundle) ended(t *testing.T) {
	t.Helper()
	var now time.Time
	worker := b.root
	b.must(worker.With(t.Context(), func(db pg.DB) error { return db.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&now) }))
	for going := true; going; {
		b.must(worker.With(t.Context(), func(db pg.DB) error {
			return db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
				WHERE datname = current_database() AND usename = $2 AND xact_start < $1)`, now, node.AppRole).Scan(&going)
		}))
	}
}

// TestRace_NoContentPastAFence is invariant 3 for sessions.
func TestRace_NoContentPastAFence(t *testing.T) {
	b := setup(t)
	survivors, written, refused := b.race(t, b.hands(t), raceRounds)
	t.Logf("%d rows written, %d refused, %d survivors of %d fences", written, refused, survivors, raceRounds)
	if survivors != 0 {
		t.Errorf("%d rows survived", survivors)
	}
	if refused == 0 || written < raceWriters {
		t.Error("no race")
	}
}

// TestRace_Control: the same race finds survivors where the locks are missing.
func TestRace_Control(t *testing.T) {
	b := setup(t)
	b.sudo(withoutLocks)
	survivors, _, _ := b.race(t, b.hands(t), raceControl)
	t.Logf("%d survivors", survivors)
	if survivors < raceControl {
		t.Error("a fence without a survivor: the race would not find a hole")
	}
}

// TestRace_EachWriterHoldsTheFenceUp: what one of the functions has written, and
// not committed, is there when the fence stands, and can be deleted. Without its
// lock, none of the others' missing, the fence would not have waited for it.
func TestRace_EachWriterHoldsTheFenceUp(t *testing.T) {
	for function, lock := range map[string]string{
		"append_event":   `memd.try_lock(memd.lock_hi(p_ref), memd.lock_lo(p_ref))`,
		"append_events":  `PERFORM memd.enter_content(p_tenant, p_subject, p_session, p_app, source);`,
		"create_session": `PERFORM memd.enter_content(p_tenant, p_subject, p_session, p_app, p_now);`,
	} {
		for _, locked := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, locked %v", function, locked), func(t *testing.T) {
				b := setup(t)
				b.create(id("ada", "s1"), nil)
				of := b.number(id("ada", "s1"))
				sql := map[string]string{
					"append_event": appendOne(of, `'\x01'`), "append_events": appendMany(b, of, `'\x01'::bytea`),
					"create_session": createByHand(b, b.admit(id("ada", "s2"))),
				}[function]
				if !locked {
					b.without(function, lock)
				}
				late, err := b.DB.Straggle(t.Context(), node.AppRole, sql)
				b.must(err)
				before := b.everything()
				var seen bool
				b.must(late.Outlast(t.Context(), func() error {
					b.fence("ada")
					seen = b.everything() != before
					return nil
				}))
				if seen != locked {
					t.Errorf("what was written before the fence stood is there: %v, want %v", seen, locked)
				}
				if b.everything() == before {
					t.Error("nothing was written")
				}
			})
		}
	}
}

// without takes the lock out of one function.
func (b *bundle) without(function, lock string) {
	b.t.Helper()
	b.must(b.root.With(b.ctx(), func(db pg.DB) error {
		var source string
		if err := db.QueryRow(b.ctx(), `SELECT pg_get_functiondef(p.oid) FROM pg_proc p WHERE p.proname = $1`, function).Scan(&source); err != nil {
			return err
		}
		open := strings.Replace(source, lock, map[bool]string{true: "", false: "true"}[strings.HasSuffix(lock, ";")], 1)
		if open == source {
			b.t.Fatalf("%s has no such lock", function)
		}
		_, err := db.Exec(b.ctx(), open)
		return err
	}))
}
