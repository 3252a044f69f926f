package sessions_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"forgettable.dev/memd"
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

// writes are the statements by which anything of a session could be written.
func writes(b *bundle, of memd.Contribution, n int) map[string]string {
	month := b.count(`SELECT month FROM memd.session_heads LIMIT 1`)
	app := b.count(`SELECT app_no FROM memd.app_state LIMIT 1`)
	t, s, x := b.tenant.No, of.Subject, of.Session
	digests := 0
	next := func() string { digests++; return fmt.Sprintf(`'\x%032x'`, 100*n+digests) }
	digest, another, third, fourth := next(), next(), next(), next()
	return map[string]string{
		"head": fmt.Sprintf(`INSERT INTO memd.session_heads (tenant_no, subject_no, session_no, app, month, created_at, updated_at)
			VALUES (%d, %d, %d, 'app', %d, now(), now()) ON CONFLICT (tenant_no, subject_no, session_no) DO UPDATE SET updated_at = now()`, t, s, x, month),
		"event":                     fmt.Sprintf(`INSERT INTO memd.session_events VALUES (%d, %d, %d, %d, %d, %s, now(), now(), '\x00')`, t, s, x, month, 1000+n, digest),
		"session state":             fmt.Sprintf(`INSERT INTO memd.session_state VALUES (%d, %d, %d, %d, %s, now(), now(), '\x00')`, t, s, x, month, digest),
		"change of session state":   fmt.Sprintf(`UPDATE memd.session_state SET sealed = '\x01' WHERE tenant_no = %d AND subject_no = %d AND session_no = %d`, t, s, x),
		"user state":                fmt.Sprintf(`INSERT INTO memd.user_state VALUES (%d, %d, %s, now(), now(), '\x00')`, t, s, digest),
		"change of user state":      fmt.Sprintf(`UPDATE memd.user_state SET sealed = '\x01' WHERE tenant_no = %d AND subject_no = %d`, t, s),
		"app state":                 fmt.Sprintf(`INSERT INTO memd.app_state VALUES (%d, %d, %s, %d, now(), now(), '\x00')`, t, app, digest, s),
		"app state of another name": fmt.Sprintf(`UPDATE memd.app_state SET contributor_no = NULL WHERE tenant_no = %d AND contributor_no = %d`, t, s),
		"append": fmt.Sprintf(`SELECT memd.append_events(%d, %d, %d, NULL, true, NULL, now(), ARRAY[%s::bytea], ARRAY[now()], ARRAY['\x00'::bytea], '{}', '{}', '{}', '{}', '{}')`,
			t, s, x, another),
		"append one": fmt.Sprintf(`SELECT memd.append_event(%d, (SELECT user_ref FROM memd.live_subjects WHERE subject_no = %[2]d), %[2]d, %[3]d, NULL, now(), %[4]s, now(), '\x00')`, t, s, x, fourth),
		"append with state": fmt.Sprintf(`SELECT memd.append_events(%d, %d, %d, %d, false, NULL, now(), ARRAY[%s::bytea], ARRAY[now()], ARRAY['\x00'::bytea],
			'{1,1,1}', '{1,2,3}', ARRAY[%[5]s, %[5]s, %[5]s]::bytea[], ARRAY[now(), now(), now()], ARRAY['\x00', '\x00', '\x00']::bytea[])`, t, s, x, app, third),
		"create": fmt.Sprintf(`SELECT memd.create_session(%d, %d, %d, 'app', %d, NULL, true, now(), '{}', '{}', '{}')`, t, s, x, month),
	}
}

// TestGuard_NoWritePastAFence tries every statement, for a user who is fenced
// and for a session whose content was deleted. The same for a neighbour goes
// through.
func TestGuard_NoWritePastAFence(t *testing.T) {
	b := full(t)
	ada, bob := b.number(id("ada", "s1")), b.number(id("bob", "s1"))
	dead := b.number(id("bob", "s2"))
	ada2 := b.number(id("ada", "s2"))
	b.fence("ada")
	b.buryContent(id("bob", "s2"))
	h := b.hand(t)
	for name, sql := range writes(b, ada, 1) {
		if got := h.state(sql); got != "MD001" {
			t.Errorf("fenced, %s: %q, want MD001", name, got)
		}
	}
	for name, sql := range writes(b, dead, 2) {
		want := "MD002"
		switch name {
		case "user state", "change of user state", "app state", "app state of another name":
			want = "" // the user's and the app's, not the session's
		}
		if got := h.state(sql); got != want {
			t.Errorf("deleted, %s: %q, want %q", name, got, want)
		}
	}
	for name, sql := range writes(b, bob, 3) {
		want := ""
		if name == "create" {
			want = "23505"
		}
		if got := h.state(sql); got != want {
			t.Errorf("a neighbour, %s: %q, want %q", name, got, want)
		}
	}
	// In one statement with a neighbour's rows, and in another isolation level.
	both := fmt.Sprintf(`INSERT INTO memd.session_events SELECT %d, u.s, u.x, month, 5000, '\x%032x', now(), now(), '\x00'
		FROM (VALUES (%d::bigint, %d::bigint), (%d, %d)) AS u (s, x), (SELECT month FROM memd.session_heads LIMIT 1) m`,
		b.tenant.No, 9, bob.Subject, bob.Session, ada2.Subject, ada2.Session)
	if got := h.state(both); got != "MD001" {
		t.Errorf("beside a neighbour's: %q", got)
	}
	if got := h.state(`BEGIN ISOLATION LEVEL REPEATABLE READ; ` + writes(b, bob, 4)["event"]); got != "MD007" {
		t.Errorf("repeatable read: %q", got)
	}
	h.state(`ROLLBACK`)
}

// TestGuard_NoWayAround: no right on a partition, none to delete or to move rows,
// none to make partitions without end.
func TestGuard_NoWayAround(t *testing.T) {
	b := full(t)
	month := b.count(`SELECT month FROM memd.session_heads LIMIT 1`)
	h := b.hand(t)
	for sql, want := range map[string]string{
		fmt.Sprintf(`INSERT INTO memd.session_events_%d VALUES (1, 1, 1, %d, 1, '\x%032x', now(), now(), '\x00')`, month, month, 1): "42501",
		fmt.Sprintf(`SELECT * FROM memd.session_events_%d`, month):                                                                  "42501",
		`DELETE FROM memd.session_events`:                                        "42501",
		`UPDATE memd.session_events SET sealed = '\x00'`:                         "42501",
		`UPDATE memd.session_heads SET month = 1`:                                "42501",
		`UPDATE memd.user_state SET subject_no = 1`:                              "42501",
		`SELECT memd.put_state(1, 1, 1, 1, 1, 1, now(), '{}', '{}', '{}', '{}')`: "42501",
		`SELECT memd.guard_content('{}', '{}', '{}', '{}')`:                      "42501",
		`SELECT memd.ensure_event_month(1)`:                                      "22023",
		fmt.Sprintf(`SELECT memd.ensure_event_month(%d)`, month+121):             "22023",
		fmt.Sprintf(`SELECT memd.ensure_event_month(%d)`, month):                 "",
		`DROP TABLE memd.session_events`:                                         "42501",
		`ALTER TABLE memd.session_events DISABLE TRIGGER guard_insert`:           "42501",
		`SET ROLE memd_worker`:                                                   "42501",
	} {
		if got := h.state(sql); got != want {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
}
