package sessions_test

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/sessions"
)

// TestAppend_TheSameEventsFromEverywhere: 16 writers on two processes append
// the same 20 events, in batches of their own, all at once. Each is stored once,
// and everybody is told where.
func TestAppend_TheSameEventsFromEverywhere(t *testing.T) {
	b := setup(t)
	other, _ := b.Server()
	services := []*sessions.Service{b.s, b.serviceOf(other)}
	b.create(id("ada", "s1"), nil)
	const writers, events = 16, 20
	var all []sessions.Event
	for i := range events {
		e := b.event(fmt.Sprint("e", i), "x")
		e.StateDelta = map[string]string{"last": strconv.Itoa(i), fmt.Sprint("user:", i): "true"}
		all = append(all, e)
	}
	seqs := make([]map[string]int64, writers)
	var stored atomic.Int64
	start := make(chan struct{})
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			<-start
			seqs[w] = map[string]int64{}
			for from := 0; from < events; from += 1 + w%4 {
				a, err := services[w%2].Append(t.Context(), b.tenant, id("ada", "s1"), all[from:min(events, from+1+w%4)], time.Time{}, false)
				if err != nil {
					t.Error(err)
					return
				}
				for _, p := range a.Events {
					seqs[w][p.EventID] = p.Seq
					if p.Status == sessions.StatusStored {
						stored.Add(1)
					}
				}
			}
		})
	}
	close(start)
	group.Wait()
	s := b.get(id("ada", "s1"))
	want := map[string]int64{}
	for i, e := range s.Events {
		want[e.ID] = e.Seq
		if i > 0 && e.Seq <= s.Events[i-1].Seq {
			t.Errorf("place %d follows %d", e.Seq, s.Events[i-1].Seq)
		}
	}
	for w := range seqs {
		if diff := cmp.Diff(want, seqs[w]); diff != "" {
			t.Errorf("writer %d was told (-is +told):\n%s", w, diff)
		}
	}
	if len(s.Events) != events || s.EventCount != events || stored.Load() != events {
		t.Errorf("%d events, counted %d, stored %d, want %d", len(s.Events), s.EventCount, stored.Load(), events)
	}
	if want := strconv.Itoa(indexOf(all, s.Events[events-1].ID)); s.State["last"] != want {
		t.Errorf("the state is of event %s, the last is %s: a repeated event changed it again", s.State["last"], want)
	}
}

func indexOf(all []sessions.Event, id string) int {
	for i := range all {
		if all[i].ID == id {
			return i
		}
	}
	return -1
}

// TestAppend_TwoWhoCount: writers on two processes add one to a number in the
// state, each from what it has read. Nothing is lost.
func TestAppend_TwoWhoCount(t *testing.T) {
	b := setup(t)
	other, _ := b.Server()
	b.create(id("ada", "s1"), map[string]string{"n": "0"})
	const each = 25
	var refused atomic.Int64
	var group sync.WaitGroup
	for w, s := range []*sessions.Service{b.s, b.serviceOf(other)} {
		group.Go(func() {
			for i := 0; i < each; {
				read, err := s.Get(t.Context(), b.tenant, id("ada", "s1"), sessions.Query{})
				if err != nil {
					t.Error(err)
					return
				}
				n, err := strconv.Atoi(read.State["n"])
				if err != nil {
					t.Error(err)
					return
				}
				e := b.event(fmt.Sprint(w, "-", i), "one more")
				e.StateDelta = map[string]string{"n": strconv.Itoa(n + 1)}
				_, err = s.Append(t.Context(), b.tenant, id("ada", "s1"), []sessions.Event{e}, read.UpdatedAt, false)
				switch {
				case err == nil:
					i++
				case errors.Is(err, memd.ErrSessionChanged):
					refused.Add(1)
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	if s := b.get(id("ada", "s1")); s.State["n"] != strconv.Itoa(2*each) || s.EventCount != 2*each {
		t.Errorf("counted to %s with %d events, want %d", s.State["n"], s.EventCount, 2*each)
	}
	if refused.Load() == 0 {
		t.Error("nobody was refused: the two never met")
	}
	t.Logf("%d refused", refused.Load())
}

// TestAppend_WhoseAnswerWasLost repeats it with what it saw before, and may go
// on from the answer; but not past what somebody else wrote meanwhile.
func TestAppend_WhoseAnswerWasLost(t *testing.T) {
	b := setup(t)
	created := b.create(id("ada", "s1"), nil)
	add := func(seen time.Time, events ...sessions.Event) (sessions.Appended, error) {
		return b.s.Append(t.Context(), b.tenant, id("ada", "s1"), events, seen, false)
	}
	first, err := add(created.UpdatedAt, b.event("a", "x"))
	b.must(err)
	again, err := add(created.UpdatedAt, b.event("a", "other words"))
	b.must(err)
	if again.UpdatedAt != first.UpdatedAt || again.Events[0].Seq != first.Events[0].Seq || again.Events[0].Status != sessions.StatusRepeated {
		t.Errorf("repeated: %+v, first: %+v", again, first)
	}
	if _, err = add(created.UpdatedAt, b.event("a", "x"), b.event("b", "x")); !errors.Is(err, memd.ErrSessionChanged) {
		t.Errorf("a new event beside the repeated one: %v", err)
	}
	_, err = add(again.UpdatedAt, b.event("b", "x"))
	b.must(err)
	again, err = add(created.UpdatedAt, b.event("a", "x"))
	b.must(err)
	_, err = add(again.UpdatedAt, b.event("c", "x"))
	wantErr(t, err, memd.ErrSessionChanged)
	if got := fmt.Sprint(eventIDs(b.get(id("ada", "s1")))); got != "[a b]" {
		t.Errorf("events %s", got)
	}
}

func TestAppend_PartialEventsAreNotStored(t *testing.T) {
	b := setup(t)
	created := b.create(id("ada", "s1"), nil)
	piece := b.event("p", "half a sen")
	piece.Partial = true
	a := b.append(id("ada", "s1"), piece, b.event("a", "half a sentence"), piece)
	want := []sessions.Status{sessions.StatusPartial, sessions.StatusStored, sessions.StatusPartial}
	for i, p := range a.Events {
		if p.Status != want[i] {
			t.Errorf("event %d: %+v", i, p)
		}
	}
	none, err := b.s.Append(t.Context(), b.tenant, id("ada", "s1"), []sessions.Event{piece}, created.UpdatedAt, false)
	b.must(err)
	if none.UpdatedAt != created.UpdatedAt {
		t.Errorf("an update that was none: %v", none.UpdatedAt)
	}
	if got := fmt.Sprint(eventIDs(b.get(id("ada", "s1")))); got != "[a]" {
		t.Errorf("events %s", got)
	}
}

func TestAppend_RefusesWhatIsWrong(t *testing.T) {
	b := setup(t)
	b.create(id("ada", "s1"), nil)
	big := make([]byte, memd.MaxEventBytes)
	for i := range big {
		big[i] = '1'
	}
	for field, e := range map[string]sessions.Event{
		"events[0].author":      {ID: "a"},
		"events[0].content":     {ID: "a", Author: "user", Content: "no JSON"},
		"events[0].actions":     {ID: "a", Author: "user", Actions: `{"stateDelta": {"temp:x": 1}}`},
		"events[0].extra":       {ID: "a", Author: "user", Extra: `[]`},
		"events[0].state_delta": {ID: "a", Author: "user", StateDelta: map[string]string{"k": "bare"}},
		"events[0].timestamp":   {ID: "a", Author: "user", Time: b.clock.Now().Add(time.Hour)},
	} {
		_, err := b.s.Append(t.Context(), b.tenant, id("ada", "s1"), []sessions.Event{e}, time.Time{}, false)
		var bad *memd.InvalidError
		if !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("want %s refused, got %v", field, err)
		}
	}
	_, err := b.s.Append(t.Context(), b.tenant, id("ada", "s1"), []sessions.Event{{ID: "a", Author: "user", Content: string(big)}}, time.Time{}, false)
	wantErr(t, err, memd.ErrInvalid)
	twice := b.event("a", "x")
	_, err = b.s.Append(t.Context(), b.tenant, id("ada", "s1"), []sessions.Event{twice, twice}, time.Time{}, false)
	wantErr(t, err, memd.ErrInvalid)
	if n := b.count(`SELECT count(*) FROM memd.session_events`); n != 0 {
		t.Errorf("%d events were stored", n)
	}
	for _, nobody := range []sessions.ID{id("ada", "s2"), id("bob", "s1"), {App: "other", UserID: "ada", SessionID: "s1"}} {
		_, err := b.s.Append(t.Context(), b.tenant, nobody, []sessions.Event{b.event("a", "x")}, time.Time{}, false)
		wantErr(t, err, memd.ErrNotFound)
		_, err = b.s.Get(t.Context(), b.tenant, nobody, sessions.Query{})
		wantErr(t, err, memd.ErrNotFound)
	}
}
