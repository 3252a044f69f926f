package sessions_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/sessions"
)

// hand writes SQL as the application's role: nothing of memd's own stands
// between it and the database.
type hand struct {
	t    *testing.T
	conn *pgx.Conn
}

func (b *bundle) hand(t *testing.T) *hand {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), b.DB.URL("memd_app"))
	b.must(err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return &hand{t, conn}
}

// state runs SQL and returns the SQLSTATE, or "".
func (h *hand) state(sql string) string {
	h.t.Helper()
	_, err := h.conn.Exec(h.t.Context(), sql)
	var e *pgconn.PgError
	if err != nil && !errors.As(err, &e) {
		h.t.Fatal(err)
	}
	if e == nil {
		return ""
	}
	return e.Code
}

// writes are the calls by which a session is written, and what each writes.
func writes(b *bundle, of memd.Contribution, n int) map[string]string {
	app := b.count(`SELECT app_no FROM memd.app_state LIMIT 1`)
	digests := 0
	next := func() string { digests++; return fmt.Sprintf(`'\x%032x'::bytea`, 100*n+digests) }
	return map[string]string{
		"append one":  appendOne(of, next()),
		"append many": appendMany(b, of, next(), next()),
		"append with state": fmt.Sprintf(`SELECT memd.append_events(%d, %d, %d, %d, false, NULL, now(), ARRAY[%s], ARRAY[now()], ARRAY['\x00'::bytea],
			'{1,1,1}', '{1,2,3}', ARRAY[%[5]s, %[5]s, %[5]s], ARRAY['\x00', '\x00', '\x00']::bytea[])`, b.tenant.No, of.Subject, of.Session, app, next()),
		"create": createByHand(b, of),
	}
}

// appendOne, appendMany and createByHand are calls by hand. appendOne writes
// nothing, and does not fail, where the guard refuses.
func appendOne(of memd.Contribution, digest string) string {
	return fmt.Sprintf(`SELECT memd.append_event(h.tenant_no, h.user_ref, h.session_ref, h.subject_no, h.session_no, NULL, clock_timestamp(), %s, now(), '\x00')
		FROM memd.session_heads h WHERE (h.subject_no, h.session_no) = (%d, %d)`, digest, of.Subject, of.Session)
}

func appendMany(b *bundle, of memd.Contribution, digests ...string) string {
	n := len(digests)
	return fmt.Sprintf(`SELECT memd.append_events(%d, %d, %d, NULL, true, NULL, now(), ARRAY[%s], array_fill(now(), ARRAY[%d]), array_fill('\x00'::bytea, ARRAY[%[5]d]), '{}', '{}', '{}', '{}')`,
		b.tenant.No, of.Subject, of.Session, strings.Join(digests, ", "), n)
}

func createByHand(b *bundle, of memd.Contribution) string {
	return fmt.Sprintf(`SELECT memd.create_session(%d, %d, %d, NULL, true, now(), '{}', '{}', '{}')`, b.tenant.No, of.Subject, of.Session)
}

// TestGuard_NoWritePastAFence tries every call, for a user who is fenced and for
// a session whose content was deleted. The same for a neighbour goes through.
func TestGuard_NoWritePastAFence(t *testing.T) {
	b := full(t)
	ada, bob := b.number(id("ada", "s1")), b.number(id("bob", "s1"))
	dead := b.number(id("bob", "s2"))
	b.fence("ada")
	b.buryContent(id("bob", "s2"))
	h := b.hand(t)
	for name, tc := range map[string]struct {
		of   memd.Contribution
		want string
		row  int64
	}{
		"fenced": {ada, "MD001", 0}, "deleted": {dead, "MD002", 0}, "a neighbour": {bob, "", 1},
	} {
		for call, sql := range writes(b, tc.of, int(tc.of.Subject)) {
			before, want := b.everything(), tc.want
			switch {
			case call == "append one":
				want = "" // it leaves saying why to append_events
			case call == "create" && want == "":
				want = "23505"
			}
			if got := h.state(sql); got != want {
				t.Errorf("%s, %s: %q, want %q", name, call, got, want)
			}
			if wrote := b.everything() != before; wrote != (tc.want == "" && call != "create") {
				t.Errorf("%s, %s: wrote %v", name, call, wrote)
			}
		}
	}
	for call, want := range map[string]string{"append one": "", "append many": "MD007", "create": "MD007"} {
		before := b.everything()
		if got := h.state(`BEGIN ISOLATION LEVEL REPEATABLE READ; ` + writes(b, bob, 9)[call] + `; COMMIT`); got != want || b.everything() != before {
			t.Errorf("repeatable read, %s: %q", call, got)
		}
		h.state(`ROLLBACK`)
	}
}

// everything is a digest of all content of sessions.
func (b *bundle) everything() string {
	b.t.Helper()
	var sum string
	b.must(b.root.With(b.ctx(), func(db pg.DB) error {
		return db.QueryRow(b.ctx(), `SELECT md5(concat(
			(SELECT string_agg(x::text, ';' ORDER BY x) FROM memd.session_heads x), (SELECT string_agg(x::text, ';' ORDER BY x) FROM memd.session_events x),
			(SELECT string_agg(x::text, ';' ORDER BY x) FROM memd.session_state x), (SELECT string_agg(x::text, ';' ORDER BY x) FROM memd.user_state x),
			(SELECT string_agg(x::text, ';' ORDER BY x) FROM memd.app_state x)))`).Scan(&sum)
	}))
	return sum
}

// TestGuard_NoWayAround: no right to write but by the functions, none on a
// partition, none to make partitions without end.
func TestGuard_NoWayAround(t *testing.T) {
	b := full(t)
	month := b.count(`SELECT month FROM memd.session_heads LIMIT 1`)
	h := b.hand(t)
	for sql, want := range map[string]string{
		`INSERT INTO memd.session_heads SELECT * FROM memd.session_heads`:        "42501",
		`INSERT INTO memd.session_events SELECT * FROM memd.session_events`:      "42501",
		`INSERT INTO memd.session_state SELECT * FROM memd.session_state`:        "42501",
		`INSERT INTO memd.user_state SELECT * FROM memd.user_state`:              "42501",
		`INSERT INTO memd.app_state SELECT * FROM memd.app_state`:                "42501",
		`UPDATE memd.session_heads SET updated_at = now()`:                       "42501",
		`UPDATE memd.session_events SET sealed = '\x00'`:                         "42501",
		`UPDATE memd.session_state SET sealed = '\x00'`:                          "42501",
		`UPDATE memd.user_state SET sealed = '\x00'`:                             "42501",
		`UPDATE memd.app_state SET contributor_no = NULL`:                        "42501",
		`DELETE FROM memd.session_events`:                                        "42501",
		`TRUNCATE memd.session_events`:                                           "42501",
		`SELECT FROM memd.session_heads FOR UPDATE`:                              "42501",
		fmt.Sprintf(`INSERT INTO memd.session_events_%d DEFAULT VALUES`, month):  "42501",
		fmt.Sprintf(`SELECT * FROM memd.session_events_%d`, month):               "42501",
		`SELECT memd.put_state(1, 1, 1, 1, 1, 1, now(), '{}', '{}', '{}', '{}')`: "42501",
		`SELECT memd.enter_content(1, 1, 1, 1, now())`:                           "42501",
		`SELECT memd.guard_content('{}', '{}', '{}', '{}', true)`:                "42501",
		`SELECT memd.ensure_event_month(1)`:                                      "22023",
		fmt.Sprintf(`SELECT memd.ensure_event_month(%d)`, month+121):             "22023",
		fmt.Sprintf(`SELECT memd.ensure_event_month(%d)`, month):                 "",
		`DROP TABLE memd.session_events`:                                         "42501",
		`SET ROLE memd_worker`:                                                   "42501",
	} {
		if got := h.state(sql); got != want {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
}

// TestGuard_WhatTheServiceWouldNotSay: calls by hand with what the service never
// sends. ada was erased and is back, so words of hers need a time from after that.
func TestGuard_WhatTheServiceWouldNotSay(t *testing.T) {
	b := full(t)
	gone := b.number(id("ada", "s1"))
	lift := b.fence("ada")
	b.deleteAll(memd.Contribution{Subject: gone.Subject})
	b.sudo(`UPDATE memd.subjects SET retired_at = now() WHERE subject_no = $1`, gone.Subject)
	lift()
	b.clock.advance(time.Second)
	b.create(id("ada", "s3"), nil)
	b.create(sessions.ID{App: "other", UserID: "eve", SessionID: "s1"}, map[string]string{"app:k": `1`})
	ada, bob, bobs := b.number(id("ada", "s3")), b.number(id("bob", "s1")), b.admit(id("bob", "unmade"))
	app := b.count(`SELECT subject_no FROM memd.subjects WHERE kind = 2 AND app = 'app'`)
	other := b.count(`SELECT subject_no FROM memd.subjects WHERE kind = 2 AND app = 'other'`)
	h := b.hand(t)
	late := func(app any, times, events, kinds string) string {
		const digest = `'\x0123456789abcdef0123456789abcdef'::bytea`
		return fmt.Sprintf(`SELECT memd.append_events(%d, %d, %d, %v, false, NULL, now(), ARRAY[%s, '\xff0123456789abcdef0123456789abcd'], %s,
			ARRAY['\x00', '\x00']::bytea[], '%s', '%s', ARRAY[%[5]s, %[5]s], ARRAY['\x00', '\x00']::bytea[])`,
			b.tenant.No, ada.Subject, ada.Session, app, digest, times, events, kinds)
	}
	create := func(of memd.Contribution, app any, at string) string {
		return fmt.Sprintf(`SELECT memd.create_session(%d, %d, %d, %v, false, %s, '{3}', ARRAY['\x0123456789abcdef0123456789abcdef'::bytea], ARRAY['\x00'::bytea])`,
			b.tenant.No, of.Subject, of.Session, app, at)
	}
	const now, old = `now() + interval '1 minute'`, `now() - interval '1 hour'`
	for name, tc := range map[string]struct{ sql, want string }{
		"an event from before among new ones": {late("NULL", `ARRAY[`+now+`, `+old+`]`, "{1,1}", "{1,2}"), "MD005"},
		"an event without a time":             {late("NULL", `ARRAY[`+now+`, NULL]`, "{1,1}", "{1,2}"), "MD012"},
		"fewer times than events":             {late("NULL", `ARRAY[`+now+`]`, "{1,2}", "{1,2}"), "22023"},
		"times that begin elsewhere":          {late("NULL", `('[5:6]={"' || `+now+` || '","' || `+now+` || '"}')::timestamptz[]`, "{1,2}", "{1,2}"), ""},
		"state of an event that is not there": {late("NULL", `ARRAY[`+now+`, `+now+`]`, "{0,7}", "{1,2}"), ""},
		"state of somebody else for the app":  {late(int64(bob.Subject), `ARRAY[`+now+`, `+now+`]`, "{1,1}", "{1,3}"), "MD006"},
		"state of another app":                {late(other, `ARRAY[`+now+`, `+now+`]`, "{1,1}", "{1,3}"), "MD006"},
		"one event from before":               {strings.Replace(appendOne(ada, `'\x0123456789abcdef0123456789abcdee'`), "now()", old, 1), ""},
		"a session of the own scope":          {create(memd.Contribution{Subject: bob.Subject, Session: memd.OwnScope}, app, "now()"), "MD006"},
		"a session of an app":                 {create(memd.Contribution{Subject: memd.Number(app), Session: memd.OwnScope}, app, "now()"), "MD006"},
		"a session that nobody admitted":      {create(memd.Contribution{Subject: bob.Subject, Session: bobs.Session + 1}, app, "now()"), "MD006"},
		"a session of another app":            {create(bobs, other, "now()"), "MD006"},
		"a session from before":               {create(ada, app, old), "MD005"},
		"one behind somebody else's lock": {fmt.Sprintf(`SELECT memd.append_event(h.tenant_no, '\x%064x', h.session_ref, h.subject_no, h.session_no,
			NULL, clock_timestamp(), '\x01', now(), '\x00') FROM memd.session_heads h WHERE h.subject_no = %d`, 1, bob.Subject), ""},
		"one behind another session's tombstone": {fmt.Sprintf(`SELECT memd.append_event(h.tenant_no, h.user_ref, '\x%064x', h.subject_no, h.session_no,
			NULL, clock_timestamp(), '\x01', now(), '\x00') FROM memd.session_heads h WHERE h.subject_no = %d`, 1, bob.Subject), ""},
	} {
		before := b.everything()
		h.state(`BEGIN`)
		if got := h.state(tc.sql); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
		h.state(`COMMIT`)
		if stale := b.count(`SELECT (SELECT count(*) FROM memd.session_events WHERE subject_no = $1 AND source_time IS NULL)
			+ (SELECT count(*) FROM memd.session_state WHERE subject_no = $1 AND source_time IS NULL)
			+ (SELECT count(*) FROM memd.user_state WHERE subject_no = $1 AND source_time IS NULL)`, ada.Subject); stale != 0 {
			t.Errorf("%s: %d rows that do not say when", name, stale)
		}
		if (tc.want != "" || strings.HasPrefix(name, "one")) && b.everything() != before {
			t.Errorf("%s: something was written", name)
		}
	}
	if got := h.state(create(bobs, app, "now()")); got != "" {
		t.Errorf("what the service says: %q", got)
	}
	if n := b.count(`SELECT count(*) FROM memd.session_heads h JOIN memd.sessions x USING (tenant_no, subject_no, session_no)
		JOIN memd.subjects s USING (tenant_no, subject_no) WHERE (h.user_ref, h.session_ref, h.app) = (s.user_ref, x.session_ref, s.app)`); n != 5 {
		t.Errorf("%d heads are those of the directory, want 5", n)
	}
}

// TestGuard_NobodysWordsGetAnotherName: a value of the app's that is kept stays
// its writer's, whoever is said to write it again.
func TestGuard_NobodysWordsGetAnotherName(t *testing.T) {
	b := full(t)
	bob := b.number(id("bob", "s1"))
	h := b.hand(t)
	got := h.state(fmt.Sprintf(`SELECT memd.append_events(%d, %d, %d, a.app_no, true, NULL, now(), ARRAY['\x0123456789abcdef0123456789abcdef'::bytea],
		ARRAY[now()], ARRAY['\x00'::bytea], '{1}', '{3}', ARRAY[a.key_digest], ARRAY[a.sealed]) FROM memd.app_state a WHERE a.contributor_no <> %[2]d`,
		b.tenant.No, bob.Subject, bob.Session))
	if n := b.count(`SELECT count(*) FROM memd.app_state WHERE contributor_no = $1`, b.number(id("ada", "s1")).Subject); got != "" || n != 1 {
		t.Errorf("%q, and ada has %d entries of the app's, want 1", got, n)
	}
}
