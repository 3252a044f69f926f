package sessions_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/sessions"
)

// adk is a session service as ADK's in-memory one: what prefixes mean, in a few
// maps.
type adk struct {
	app, user, session map[string]map[string]string
	events             map[string][]string
}

func (m *adk) apply(id sessions.ID, delta map[string]string) {
	for key, value := range delta {
		into, at := m.session, fmt.Sprint(id)
		switch {
		case strings.HasPrefix(key, "app:"):
			into, at = m.app, id.App
		case strings.HasPrefix(key, "user:"):
			into, at = m.user, id.App+"/"+id.UserID
		case strings.HasPrefix(key, "temp:"):
			continue
		}
		if into[at] == nil {
			into[at] = map[string]string{}
		}
		into[at][key] = value
	}
}

func (m *adk) merged(id sessions.ID) map[string]string {
	out := map[string]string{}
	for _, part := range []map[string]string{m.session[fmt.Sprint(id)], m.app[id.App], m.user[id.App+"/"+id.UserID]} {
		for k, v := range part {
			out[k] = v
		}
	}
	return out
}

// TestState_IsThatOfADK makes random sessions and events of two apps and
// compares every session with the model, again and again. MEMD_SEED repeats it.
func TestState_IsThatOfADK(t *testing.T) {
	b := setup(t)
	seed := rand.Uint64()
	if n, err := strconv.ParseUint(os.Getenv("MEMD_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	m := &adk{map[string]map[string]string{}, map[string]map[string]string{}, map[string]map[string]string{}, map[string][]string{}}
	keys := []string{"k", "k2", "app:k", "app:", "user:k", "user:k2", "temp:k", "App:k", "user", "", "app:user:k", "temp", "ключ"}
	delta := func() map[string]string {
		out := map[string]string{}
		for range rng.IntN(5) {
			out[keys[rng.IntN(len(keys))]] = []string{`null`, `{"a": [1.50]}`, `"x"`, strconv.Itoa(rng.IntN(1000))}[rng.IntN(4)]
		}
		return out
	}
	var all []sessions.ID
	told := map[string]sessions.Event{} // by session and id
	for step := range 150 {
		switch {
		case len(all) == 0 || rng.IntN(8) == 0:
			s := sessions.ID{App: []string{"app", "other"}[rng.IntN(2)], UserID: []string{"ada", "bob"}[rng.IntN(2)], SessionID: fmt.Sprint("s", len(all))}
			state := delta()
			b.create(s, state)
			m.apply(s, state)
			all = append(all, s)
		default:
			s := all[rng.IntN(len(all))]
			var batch []sessions.Event
			for i := range 1 + rng.IntN(4) {
				e := b.event(fmt.Sprint(step, "-", i), "x")
				e.StateDelta = delta()
				if old := m.events[fmt.Sprint(s)]; i == 0 && len(old) > 0 && rng.IntN(3) == 0 {
					e.ID = old[rng.IntN(len(old))] // again, with other state
				}
				e.Partial = rng.IntN(6) == 0
				batch = append(batch, e)
			}
			b.append(s, batch...)
			for _, e := range batch {
				key := fmt.Sprint(s, e.ID)
				if _, repeated := told[key]; repeated || e.Partial {
					continue
				}
				told[key] = e
				m.apply(s, e.StateDelta)
				m.events[fmt.Sprint(s)] = append(m.events[fmt.Sprint(s)], e.ID)
			}
		}
		if step%10 != 9 {
			continue
		}
		for _, s := range all {
			got := b.get(s)
			if diff := cmp.Diff(m.merged(s), got.State); diff != "" {
				t.Fatalf("step %d, state of %v (-ADK +memd):\n%s", step, s, diff)
			}
			if diff := cmp.Diff(m.events[fmt.Sprint(s)], eventIDs(got)); diff != "" {
				t.Fatalf("step %d, events of %v (-ADK +memd):\n%s", step, s, diff)
			}
			for _, e := range got.Events {
				for key := range e.StateDelta {
					if strings.HasPrefix(key, "temp:") {
						t.Fatalf("a stored event has %q", key)
					}
				}
			}
		}
	}
}

// TestState_OfTheAppGoesWithWhoWroteItLast, and nobody's words stay.
func TestState_OfTheAppGoesWithWhoWroteItLast(t *testing.T) {
	b := setup(t)
	b.create(id("ada", "s1"), map[string]string{"app:ada": `1`, "app:both": `1`, "user:k": `1`})
	b.create(id("bob", "s1"), map[string]string{"app:both": `2`})
	_, err := b.s.Create(t.Context(), b.tenant, id("ada", "s2"), map[string]string{"app:nobody": `3`}, true)
	b.must(err)
	b.append(id("ada", "s1"), sessions.Event{ID: "e", Author: "user", Time: b.clock.Now(), StateDelta: map[string]string{"app:late": `1`}})
	want := map[string]string{"app:ada": `1`, "app:both": `2`, "app:nobody": `3`, "app:late": `1`}
	if diff := cmp.Diff(want, b.get(id("bob", "s1")).State); diff != "" {
		t.Errorf("before (-want +got):\n%s", diff)
	}
	ada := memd.Contribution{Subject: b.number(id("ada", "s1")).Subject}
	b.fence("ada")
	want = map[string]string{"app:both": `2`, "app:nobody": `3`}
	if diff := cmp.Diff(want, b.get(id("bob", "s1")).State); diff != "" {
		t.Errorf("behind the fence (-want +got):\n%s", diff)
	}
	// Bob may replace what ada wrote: nothing of ada's is left of it.
	b.append(id("bob", "s1"), sessions.Event{ID: "f", Author: "user", Time: b.clock.Now(), StateDelta: map[string]string{"app:late": `9`}})
	b.deleteAll(ada)
	want["app:late"] = `9`
	if diff := cmp.Diff(want, b.get(id("bob", "s1")).State); diff != "" {
		t.Errorf("afterwards (-want +got):\n%s", diff)
	}
	if n := b.count(`SELECT count(*) FROM memd.app_state`); n != 3 {
		t.Errorf("%d rows of app state, want 3", n)
	}
}

// TestGet_AsksTheKeyServiceAtMostOnce for a session of 50 events: once in a
// process that has just started, and not at all afterwards.
func TestGet_AsksTheKeyServiceAtMostOnce(t *testing.T) {
	b := setup(t)
	b.create(id("ada", "s1"), map[string]string{"k": `1`, "user:k": `1`, "app:k": `1`})
	var events []sessions.Event
	for i := range 50 {
		events = append(events, b.event(fmt.Sprint("e", i), strings.Repeat("x", 4096)))
	}
	b.append(id("ada", "s1"), events...)
	b.clock.advance(time.Minute)
	srv, _ := b.Server()
	cold := b.serviceOf(srv)
	for i, most := range []int{1, 0, 0} {
		before := b.kmsCalls()
		s, err := cold.Get(t.Context(), b.tenant, id("ada", "s1"), sessions.Query{Events: 50})
		b.must(err)
		if n := b.kmsCalls() - before; n > most || len(s.Events) != 50 {
			t.Errorf("read %d: %d calls of the key service for %d events, want at most %d", i, n, len(s.Events), most)
		}
		if i == 0 && b.kmsCalls() == before {
			t.Error("a cold process asked nobody: the counter does not count")
		}
	}
}
