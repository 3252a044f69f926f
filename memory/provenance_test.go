package memory_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/memory"
)

// A summary of a summary of two users' rows knows every session that it came
// from (invariant 2).
func TestService_Add_flatClosure(t *testing.T) {
	b := setup(t)
	rows := b.add(raw(user("ada"), "s1", "one"), raw(user("ada"), "s2", "two"), raw(user("bob"), "s9", "three"))
	first := b.addOne(summary(user("ada"), of(rows[0]), of(rows[1])))
	second := b.addOne(summary(user("bob"), of(rows[2]), memory.Source{MemoryID: first.ID}))
	third := b.addOne(summary(shared(), of(second)))

	want := []memd.Contribution{b.number(user("ada"), "s1"), b.number(user("ada"), "s2"), b.number(user("bob"), "s9")}
	slices.SortFunc(want, memd.Contribution.Compare)
	for _, a := range []memory.Added{second, third} {
		if diff := cmp.Diff(want, b.closure(a.ID)); diff != "" {
			t.Errorf("closure (-want +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff(want[:2], b.closure(first.ID)); diff != "" {
		t.Errorf("closure of the first (-want +got):\n%s", diff)
	}
	m := b.get(shared(), third.ID)
	slices.Sort(m.SessionIDs)
	if diff := cmp.Diff([]string{"s1", "s2", "s9"}, m.SessionIDs); diff != "" || m.Contributions != 3 {
		t.Errorf("sessions of the third (-want +got):\n%s%d contributions", diff, m.Contributions)
	}
}

// A closure is never truncated: 1,024 contributions are stored, 1,025 refused.
func TestService_Add_closureLimit(t *testing.T) {
	b := setup(t)
	var parts []memory.Source
	for n := 0; n < memd.MaxContributions; n += memd.MaxSources {
		var sessions []memory.Source
		for i := range memd.MaxSources {
			sessions = append(sessions, memory.Source{UserID: "ada", SessionID: fmt.Sprint("s", n+i)})
		}
		parts = append(parts, of(b.addOne(summary(user("ada"), sessions...))))
	}
	whole := b.addOne(summary(user("ada"), parts...))
	if n := len(b.closure(whole.ID)); n != memd.MaxContributions {
		t.Fatalf("closure has %d contributions", n)
	}
	if m := b.get(user("ada"), whole.ID); m.Contributions != memd.MaxContributions || len(m.SessionIDs) != memory.MaxSessionIDs {
		t.Errorf("memory names %d of %d contributions", len(m.SessionIDs), m.Contributions)
	}
	if hits := b.search(b.m, memory.Query{Scope: user("ada"), Vector: unit(1)}).Hits; len(hits) != 5 {
		t.Errorf("%d hits", len(hits))
	}
	_, err := b.m.Add(t.Context(), b.tenant, []memory.Row{summary(user("bob"), of(whole))})
	wantErr(t, err, memd.ErrTooManyContributions) // bob's own scope is the 1,025th
	_, err = b.m.Update(t.Context(), b.tenant, user("ada"), whole.ID, memory.Change{Expected: 1, Text: new("more")})
	wantErr(t, err, memd.ErrTooManyContributions)
	if n := b.count(`SELECT count(*) FROM memd.memories`); n != 5 {
		t.Errorf("%d rows, want 5", n)
	}
}

func TestService_Add_monthIsTheEarliest(t *testing.T) {
	b := setup(t)
	march, may, june := day(2025, time.March, 31), day(2025, time.May, 1), day(2025, time.June, 1)
	at := func(r memory.Row, when time.Time) memory.Row { r.SourceTime = when; return r }
	month := func(when time.Time) memd.Month { m, _ := memd.MonthOf(when); return m }
	rows := b.add(at(raw(user("ada"), "s1", "old"), march), at(raw(user("ada"), "s2", "new"), may))

	for _, tc := range []struct {
		name string
		row  memory.Row
		want time.Time
	}{
		{"its sources' earliest", at(summary(user("ada"), of(rows[1]), of(rows[0])), june), march},
		{"its own when that is earliest", at(summary(user("ada"), of(rows[1])), march), march},
		{"a session's earliest", at(summary(user("bob"), memory.Source{UserID: "ada", SessionID: "s1"}), june), march},
		{"without a source time", summary(user("ada"), of(rows[1])), may},
		{"a session never seen", at(summary(user("ada"), memory.Source{UserID: "ada", SessionID: "s3"}), june), june},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := b.month(b.addOne(tc.row).ID); got != month(tc.want) {
				t.Errorf("month = %v, want %v", got, month(tc.want))
			}
		})
	}
	t.Run("an update moves it earlier only", func(t *testing.T) {
		a := b.addOne(at(raw(user("cy"), "s1", "x"), may))
		for i, step := range []struct {
			c    memory.Change
			want time.Time
		}{
			{memory.Change{Text: new("later"), SourceTime: &june}, may},
			{memory.Change{Text: new("drawn"), SourceTime: &june, Sources: []memory.Source{of(rows[0])}}, march},
			{memory.Change{Text: new("plain")}, march},
		} {
			step.c.Expected = int64(i + 1)
			b.update(user("cy"), a.ID, step.c)
			if got := b.month(a.ID); got != month(step.want) {
				t.Errorf("step %d: month = %v, want %v", i, got, month(step.want))
			}
			if m := b.get(user("cy"), a.ID); m.Text != *step.c.Text {
				t.Errorf("step %d: text = %q", i, m.Text)
			}
		}
	})
}

// A row in a user's scope that was drawn only from others has the user's own
// scope among its contributions: it must not outlive the user in a backup.
func TestService_Add_ownerContributes(t *testing.T) {
	b := setup(t)
	src := b.addOne(raw(user("bob"), "s1", "bob's"))
	a := b.addOne(summary(user("ada"), of(src)))
	want := []memd.Contribution{{Subject: b.number(user("ada"), "").Subject, Session: memd.OwnScope}, b.number(user("bob"), "s1")}
	slices.SortFunc(want, memd.Contribution.Compare)
	if diff := cmp.Diff(want, b.closure(a.ID)); diff != "" {
		t.Errorf("closure (-want +got):\n%s", diff)
	}
}

func TestService_Add_sharedScope(t *testing.T) {
	b := setup(t)
	row := func(f func(r *memory.Row)) memory.Row {
		r := memory.Row{Scope: shared(), Kind: memory.KindFact, Text: "x", Vector: unit(0)}
		f(&r)
		return r
	}
	src := b.addOne(raw(user("ada"), "s1", "x"))
	number := func(scope memd.Scope, session string) []memd.Contribution {
		return []memd.Contribution{b.number(scope, session)}
	}
	for _, tc := range []struct {
		name string
		row  memory.Row
		want func() []memd.Contribution
	}{
		{"a contributor with a session", row(func(r *memory.Row) { r.Contributor = &memory.Contributor{UserID: "ada", SessionID: "s2"} }),
			func() []memd.Contribution { return number(user("ada"), "s2") }},
		{"a contributor outside any session", row(func(r *memory.Row) { r.Contributor = &memory.Contributor{UserID: "bob"} }),
			func() []memd.Contribution { return number(user("bob"), "") }},
		{"impersonal", row(func(r *memory.Row) { r.Impersonal = true }),
			func() []memd.Contribution { return number(shared(), "") }},
		{"sources", row(func(r *memory.Row) { r.Sources = []memory.Source{of(src)} }),
			func() []memd.Contribution { return number(user("ada"), "s1") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := b.addOne(tc.row)
			if diff := cmp.Diff(tc.want(), b.closure(a.ID)); diff != "" {
				t.Errorf("closure (-want +got):\n%s", diff)
			}
		})
	}
	for name, r := range map[string]memory.Row{
		"nobody":                    row(func(*memory.Row) {}),
		"impersonal with sources":   row(func(r *memory.Row) { r.Impersonal, r.Sources = true, []memory.Source{of(src)} }),
		"impersonal by somebody":    row(func(r *memory.Row) { r.Impersonal, r.Contributor = true, &memory.Contributor{UserID: "ada"} }),
		"a session of nobody":       row(func(r *memory.Row) { r.Impersonal, r.SessionID = true, "s1" }),
		"raw with sources":          {Scope: user("ada"), Kind: memory.KindRaw, Text: "x", Vector: unit(0), Sources: []memory.Source{of(src)}},
		"derived from nothing":      {Scope: user("ada"), Kind: memory.KindFact, Text: "x", Vector: unit(0)},
		"a contributor among users": {Scope: user("ada"), Kind: memory.KindRaw, Text: "x", Vector: unit(0), Contributor: &memory.Contributor{UserID: "bob"}},
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			_, err := b.m.Add(t.Context(), b.tenant, []memory.Row{r})
			wantErr(t, err, memd.ErrInvalid)
		})
	}
}

func TestService_Add_sourceGone(t *testing.T) {
	b := setup(t)
	other := b.Tenant("globex", memdtest.Policy())
	foreign, err := b.m.Add(t.Context(), other, []memory.Row{raw(user("ada"), "s1", "x")})
	if err != nil {
		t.Fatal(err)
	}
	expiring := raw(user("ada"), "s1", "x")
	expiring.ExpiresAt = b.clock.Now().Add(time.Minute)
	rows := b.add(expiring, raw(user("ada"), "s1", "deleted"), raw(user("ada"), "s1", "changed"), raw(user("eve"), "s1", "forgotten"),
		raw(user("ada"), "s7", "of a session"), raw(user("ada"), "s1", "good"),
		raw(memd.Scope{App: "another-app", UserID: "ada"}, "s1", "of another app"))
	b.clock.advance(2 * time.Minute)
	if _, err := b.m.Delete(t.Context(), b.tenant, user("ada"), rows[1].ID, false); err != nil {
		t.Fatal(err)
	}
	b.update(user("ada"), rows[2].ID, memory.Change{Expected: 1, Text: new("other")})
	b.ForgetUser(b.srv, b.tenant, "app", "eve")
	b.ForgetSession(b.srv, b.tenant, "app", "ada", "s7")

	for name, s := range map[string]memory.Source{
		"another tenant's": of(foreign[0]), "expired": of(rows[0]), "deleted": of(rows[1]), "changed since": of(rows[2]),
		"of another app":          of(rows[6]),
		"forgotten with its user": of(rows[3]), "forgotten with its session": of(rows[4]), "never there": {MemoryID: uuid.New()},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.m.Add(t.Context(), b.tenant, []memory.Row{summary(user("bob"), of(rows[5]), s)})
			wantErr(t, err, memd.ErrSourceGone)
			good := b.addOne(raw(user("bob"), "s1", "x"))
			_, err = b.m.Update(t.Context(), b.tenant, user("bob"), good.ID, memory.Change{Expected: 1, Text: new("y"), Sources: []memory.Source{s}})
			wantErr(t, err, memd.ErrSourceGone)
		})
	}
	if n := b.count(`SELECT count(*) FROM memd.memories WHERE kind <> 1`); n != 0 {
		t.Errorf("%d derived rows were written", n)
	}
}

// Whoever derives from a row while it is being deleted either gets in before
// the delete or is refused: never a row whose source was gone when it came.
func TestService_Add_sourceDeletedMeanwhile(t *testing.T) {
	b := setup(t)
	src := b.addOne(raw(user("ada"), "s1", "x"))
	conn, err := pgx.Connect(t.Context(), b.DB.URL("memd_app"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `DELETE FROM memd.memories WHERE memory_id = $1`, src.ID); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := b.m.Add(t.Context(), b.tenant, []memory.Row{summary(user("bob"), of(src))})
		ended <- err
	}()
	b.waitFor(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`, 1)
	select {
	case err := <-ended:
		t.Fatalf("Add ended beside an open delete of its source: %v", err)
	default:
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantErr(t, <-ended, memd.ErrSourceGone)
}

// waitFor waits until a count is what the test waits for.
func (b *bundle) waitFor(sql string, want int64) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx(), 20*time.Second)
	defer cancel()
	for b.count(sql) != want {
		if ctx.Err() != nil {
			b.t.Fatalf("never came: %s = %d", sql, want)
		}
	}
}
