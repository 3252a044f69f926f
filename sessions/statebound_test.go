package sessions_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/sessions"
)

// TestState_OfOneOwnerIsBounded: a session, a user and an app can each be filled
// with state, and no further; the session that has all three is read all the
// same, however well its values would compress.
func TestState_OfOneOwnerIsBounded(t *testing.T) {
	b := setup(t)
	b.create(id("ada", "s1"), nil)
	value := `"` + strings.Repeat("x", memd.MaxStateOfOwner/16-300) + `"`
	n := 0
	put := func(delta map[string]string) error {
		n++
		e := b.event(fmt.Sprint(n), "x")
		e.StateDelta = delta
		_, err := b.s.Append(t.Context(), b.tenant, id("ada", "s1"), []sessions.Event{e}, time.Time{}, false)
		return err
	}
	for _, prefix := range []string{"", "user:", "app:"} {
		for i := range 16 {
			b.must(put(map[string]string{fmt.Sprint(prefix, i): value}))
		}
		wantErr(t, put(map[string]string{prefix + "more": value}), memd.ErrStateFull)
		if err := put(map[string]string{prefix + "0": `0`, prefix + "more": value[1:len(value)-1] + `"`}); err == nil {
			t.Error("what is no JSON was stored")
		}
		b.must(put(map[string]string{prefix + "0": `0`, prefix + "more": value})) // in its place
	}
	s, err := b.s.Get(t.Context(), b.tenant, id("ada", "s1"), sessions.Query{Events: 1})
	if err != nil || len(s.State) != 3*17 || len(s.Events) != 1 || s.EventCount != 3*17 {
		t.Errorf("%d entries, %d of %d events, %v", len(s.State), len(s.Events), s.EventCount, err)
	}
}

func TestState_KeysOfOneOwnerAreBounded(t *testing.T) {
	b := setup(t)
	b.create(id("ada", "s1"), nil)
	delta := map[string]string{}
	for i := range memd.MaxStateKeys + 1 {
		delta[fmt.Sprint("user:", i)] = `1`
		if len(delta) == memd.MaxStateChanges || i >= memd.MaxStateKeys-1 {
			e := b.event(fmt.Sprint(i), "x")
			e.StateDelta = delta
			_, err := b.s.Append(t.Context(), b.tenant, id("ada", "s1"), []sessions.Event{e}, time.Time{}, false)
			if i < memd.MaxStateKeys {
				b.must(err)
			} else {
				wantErr(t, err, memd.ErrStateFull)
			}
			delta = map[string]string{}
		}
	}
	if s := b.get(id("ada", "s1")); len(s.State) != memd.MaxStateKeys {
		t.Errorf("%d entries", len(s.State))
	}
}

// TestState_BoundHoldsForWritersAtOnce: somebody who has written the last entry that
// there is room for, and not committed, is waited for by whoever writes another one of
// the same owner, in whatever session, and that one is refused.
func TestState_BoundHoldsForWritersAtOnce(t *testing.T) {
	for prefix, kind := range map[string]int{"user:": 2, "app:": 3} {
		t.Run(prefix, func(t *testing.T) {
			b := setup(t)
			b.create(id("ada", "s1"), nil)
			value := `"` + strings.Repeat("x", memd.MaxStateOfOwner/16-300) + `"`
			put := func(key string) error {
				e := b.event(key, "x")
				e.StateDelta = map[string]string{prefix + key: value}
				_, err := b.s.Append(t.Context(), b.tenant, id("ada", "s1"), []sessions.Event{e}, time.Time{}, false)
				return err
			}
			for i := range 15 {
				b.must(put(fmt.Sprint(i)))
			}
			of := b.admit(id("ada", "s2"))
			sql := fmt.Sprintf(`SELECT memd.create_session(%d, %d, %d, (SELECT subject_no FROM memd.subjects WHERE kind = 2 LIMIT 1), true, now(),
				'{%d}', ARRAY[decode(repeat('ab', 16), 'hex')], ARRAY[decode(repeat('ab', %d), 'hex')])`,
				b.tenant.No, of.Subject, of.Session, kind, len(value))
			other, err := b.DB.Straggle(t.Context(), "", sql)
			b.must(err)
			var refused error
			b.must(other.Outlast(t.Context(), func() error { refused = put("more"); return nil }))
			wantErr(t, refused, memd.ErrStateFull)
		})
	}
}
