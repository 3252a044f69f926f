package erasure_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/tenants"
)

// The three months of these tests. They lie in the past, because the database lets
// nobody say that it is later than it is.
const (
	september = "september"
	october   = "october"
	november  = "november"
)

var middleOf = map[string]time.Time{
	september: time.Date(2025, 9, 15, 12, 0, 0, 0, time.UTC),
	october:   time.Date(2025, 10, 15, 12, 0, 0, 0, time.UTC),
	november:  time.Date(2025, 11, 15, 12, 0, 0, 0, time.UTC),
}

func monthNamed(name string) memd.Month {
	m, err := memd.MonthOf(middleOf[name])
	if err != nil {
		panic(err)
	}
	return m
}

// calendar is a clock that tests turn.
type calendar struct {
	mu  sync.Mutex
	now time.Time
}

// Now implements memd.Clock.
func (c *calendar) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *calendar) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = t
}

// keeping is the policy of a tenant that keeps so many months of both classes.
func keeping(months int) tenants.Policy {
	p := delayed(0)
	p.Sessions, p.Memories = tenants.Retention{Months: months}, tenants.Retention{Months: months}
	return p
}

// months is a world in which three months have passed.
type months struct {
	*world
	calendar *calendar
}

func newMonths(t *testing.T, options ...memdtest.Option) *months {
	t.Helper()
	m := &months{calendar: &calendar{now: middleOf[september]}}
	m.world = &world{Stack: memdtest.Start(t, append(options, memdtest.WithClock(m.calendar))...), t: t}
	m.a, _ = m.Server()
	m.b, _ = m.Server()
	m.owner, m.app = m.DB.Pool(""), m.DB.Pool(node.AppRole)
	m.looked()
	m.tenant = m.Tenant("acme", keeping(2))
	return m
}

// looked waits until the worker has looked by itself for what is due: the next time
// is an hour away.
func (m *months) looked() {
	m.t.Helper()
	m.within(60*time.Second, "the worker has looked for what is due", func() bool {
		return m.count(`SELECT count(*) FROM memd_jobs.river_job WHERE kind = 'memd_retention' AND state = 'completed' AND args->>'tenant' = '0'`) > 0
	})
}

// words are the marked words of something of a user's in a month.
func words(user, month, what string) string { return fmt.Sprintf("[%s %s %s]", user, month, what) }

// wordsOf are all that live leaves of a user in a month, as a copy shows them.
func wordsOf(user, month string) []string {
	return []string{
		words(user, month, "event"), words(user, month, "file"), words(user, month, "memory"),
		words(user, month, "name"), words(user, month, "outside"), words(user, month, "state"),
	}
}

// live has users talk for a month.
func (m *months) live(t memory.Tenant, month string, users ...string) {
	m.t.Helper()
	m.calendar.set(middleOf[month])
	ctx := m.t.Context()
	for _, u := range users {
		id, of := sessions.ID{App: app, UserID: u, SessionID: month}, sessions.Tenant{No: t.No, Epoch: t.Epoch}
		_, err := m.a.Sessions.Create(ctx, of, id, map[string]string{"user:key": fmt.Sprintf("%q", words(u, "user", "state"))}, false)
		if err == nil {
			_, err = m.a.Sessions.Append(ctx, of, id, []sessions.Event{{
				ID: "e1", Author: "user", Time: middleOf[month], Content: fmt.Sprintf("%q", words(u, month, "event")),
				StateDelta: map[string]string{"key": fmt.Sprintf("%q", words(u, month, "state"))},
			}}, time.Time{}, false)
		}
		if err != nil {
			m.t.Fatalf("conversing: %v", err)
		}
		for name, content := range map[string]string{
			words(u, month, "name"): words(u, month, "file"), artifacts.UserPrefix + words(u, "user", "name"): words(u, "user", "file"),
		} {
			_, err := m.a.Artifacts.Save(ctx, artifacts.Tenant{No: t.No, Epoch: t.Epoch},
				artifacts.Owner{App: app, UserID: u, SessionID: month}, name, artifacts.File{}, strings.NewReader(content))
			if err != nil {
				m.t.Fatalf("saving: %v", err)
			}
		}
		m.addTo(t, at(said(u, month, words(u, month, "memory")), middleOf[month]), at(said(u, "", words(u, month, "outside")), middleOf[month]))
	}
}

// plan is what retention would do about a tenant.
func (m *months) plan(t memory.Tenant) []erasure.Expiry {
	m.t.Helper()
	var plan []erasure.Expiry
	err := m.app.With(m.t.Context(), func(db pg.DB) error {
		tenant, err := tenants.GetByNo(m.t.Context(), db, t.No)
		if err == nil {
			plan, err = erasure.PlanRetention(m.t.Context(), db, erasure.AllStores(), tenant, m.calendar.Now())
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return plan
}

// run begins to expire what is due.
func (m *months) run(t memory.Tenant) []erasure.Expiry {
	m.t.Helper()
	var tenant tenants.Tenant
	err := m.app.With(m.t.Context(), func(db pg.DB) (err error) {
		tenant, err = tenants.GetByNo(m.t.Context(), db, t.No)
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	plan, err := erasure.RunRetention(m.t.Context(), m.app, tenant, uuid.Nil, m.calendar.Now())
	if err != nil {
		m.t.Fatal(err)
	}
	return plan
}

// expired runs retention and waits until all that it began is final.
func (m *months) expired(t memory.Tenant) []erasure.Report {
	m.t.Helper()
	var out []erasure.Report
	for _, e := range m.run(t) {
		if e.Kept == "" {
			m.state(erasure.Job{Tenant: t.No, ID: e.Request}, erasure.StateFinal)
			out = append(out, m.report(t, e.Request))
		}
	}
	return out
}

// planned is a line of a plan in words.
func planned(e erasure.Expiry) string {
	size := ""
	if e.Rows > 0 && e.Bytes > 0 {
		size = " some"
	}
	return strings.TrimSpace(fmt.Sprintf("%v %v%s %s", e.Class, e.Month, size, e.Kept))
}

func lines(plan []erasure.Expiry) []string {
	var out []string
	for _, e := range plan {
		out = append(out, planned(e))
	}
	return out
}

func sorted(lists ...[]string) []string { return slices.Sorted(slices.Values(slices.Concat(lists...))) }

// Three months, two kept: of September nothing opens any more, by anybody, with any
// tree that exists anywhere, in the copy from before; October and November do.
func TestMonth_GoesFromEveryCopyAndItsNeighboursStay(t *testing.T) {
	m := newMonths(t)
	globex := m.Tenant("globex", keeping(12))
	for _, month := range []string{september, october, november} {
		m.live(m.tenant, month, "alice", "bob")
		m.live(globex, month, "gina")
	}
	// Of November, and of September's words.
	late := m.add(at(drawn(memory.KindSummary, shared, "[late summary]", fromSession("alice", september), fromSession("bob", november)), middleOf[november]))
	all := sorted(wordsOf("alice", september), wordsOf("bob", september), wordsOf("alice", october), wordsOf("bob", october),
		wordsOf("alice", november), wordsOf("bob", november), []string{"[late summary]"}, timeless("alice", "bob"))
	old, hers := m.copyOf(m.tenant), m.copyOf(globex)
	found, _ := m.readable(old)
	if diff := cmp.Diff(all, slices.Sorted(maps.Keys(found))); diff != "" {
		t.Fatalf("before (-want +got):\n%s", diff)
	}
	want := []string{
		"session 2025-09 some", "session 2025-10 some in_window", "session 2025-11 some in_window",
		"memory 2025-09 some", "memory 2025-10 some in_window", "memory 2025-11 some in_window",
	}
	if diff := cmp.Diff(want, lines(m.plan(m.tenant))); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	for _, r := range m.expired(m.tenant) {
		if r.Key.Epoch == 0 || r.Key.Version == "" {
			t.Errorf("no key was destroyed: %+v", r.Key)
		}
		for _, s := range r.Stores {
			if s.After != 0 {
				t.Errorf("%s: %d left", s.Store, s.After)
			}
		}
		m.receipted(m.tenant, r)
		for _, c := range r.Checks {
			if want := memd.ResultPass; c.Result != want {
				t.Errorf("check %s of %v: %v %s", c.Name, r.Class, c.Result, c.Reason)
			}
		}
	}
	left := sorted(wordsOf("alice", october), wordsOf("bob", october), wordsOf("alice", november), wordsOf("bob", november), timeless("alice", "bob"))
	found, _ = m.readable(old)
	if diff := cmp.Diff(left, slices.Sorted(maps.Keys(found))); diff != "" {
		t.Errorf("readable in the copy from before (-want +got):\n%s", diff)
	}
	found, _ = m.readable(hers)
	theirs := sorted(wordsOf("gina", september), wordsOf("gina", october), wordsOf("gina", november), timeless("gina"))
	if diff := cmp.Diff(theirs, slices.Sorted(maps.Keys(found))); diff != "" {
		t.Errorf("readable of globex (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[1:3], lines(m.plan(m.tenant))[:2]); diff != "" {
		t.Errorf("plan afterwards (-want +got):\n%s", diff)
	}
	m.shows(m.tenant, "alice", october, november)
	if _, err := m.b.Memory.Get(t.Context(), m.tenant, shared, late[0], false); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("getting a summary of September's words: %v", err)
	}
	enabled := 0
	versions, err := m.identity(kmsemu.Shredder).List(t.Context(), old.key)
	for _, v := range versions {
		if v.State == shred.VersionEnabled {
			enabled++
		}
	}
	if err != nil || enabled != 1 {
		t.Errorf("%d enabled versions of %d, %v", enabled, len(versions), err)
	}
	// Globex has September still; when it has not, the partition goes.
	if n := m.count(`SELECT count(*) FROM pg_class WHERE relname = 'session_events_' || $1::int`, int(monthNamed(september))); n != 1 {
		t.Errorf("%d partitions of September", n)
	}
	m.setRetention("globex", 2)
	m.expired(globex)
	if n := m.count(`SELECT count(*) FROM pg_class WHERE relname = 'session_events_' || $1::int`, int(monthNamed(september))); n != 0 {
		t.Error("nobody has September any more, and its partition is there")
	}
	m.shows(globex, "gina", october, november)
	// What went with it is counted like what went row by row: of each user one event,
	// one entry of state and one head.
	for no, users := range map[memd.TenantNo]int{m.tenant.No: 2, globex.No: 1} {
		if n := m.count(`SELECT (counts->>'deleted')::int FROM memd.erasure_steps JOIN memd.erasures e USING (tenant_no, request_id)
			WHERE tenant_no = $1 AND e.class = 0 AND e.month = $2 AND step = 13`, no, int(monthNamed(september))); n != 3*users {
			t.Errorf("%d things of September's conversations were deleted of tenant %v, and there were %d", n, no, 3*users)
		}
	}
}

// receipted checks that an expiry has both receipts, which say what it was.
func (m *months) receipted(t memory.Tenant, r erasure.Report) {
	m.t.Helper()
	issued := m.receipts(t, r.ID)
	if len(issued) != 2 || !issued[1].Entry.Receipt.Complete() {
		m.t.Fatalf("%d receipts of %v", len(issued), r.Class)
	}
	got, want := issued[1].Entry.Receipt, &receipts.Expired{Class: receipts.RetentionClass(r.Class.String()), Month: "2025-09"}
	if diff := cmp.Diff(want, got.Expired); got.Kind != receipts.Month || diff != "" {
		m.t.Errorf("a receipt of %s (-want +got):\n%s", got.Kind, diff)
	}
	if !got.Proves(receipts.Salt{}, "", "", "") {
		m.t.Error("the receipt does not prove whose month it was")
	}
}

// timeless is what copies show of users besides their months.
func timeless(users ...string) []string {
	var out []string
	for _, u := range users {
		out = append(out, words(u, "user", "state"), words(u, "user", "file"), words(u, "user", "name"),
			"user "+u, "session "+september, "session "+october, "session "+november)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// shows checks that a user finds these months, and no other, on both replicas.
func (m *months) shows(t memory.Tenant, userID string, want ...string) {
	m.t.Helper()
	ctx := m.t.Context()
	var texts []string
	for _, month := range want {
		texts = append(texts, words(userID, month, "memory"), words(userID, month, "outside"))
	}
	slices.Sort(texts)
	if diff := cmp.Diff(texts, m.textsOf(t, user(userID))); diff != "" {
		m.t.Errorf("%s finds (-want +got):\n%s", userID, diff)
	}
	for _, srv := range []*node.Server{m.a, m.b} {
		page, err := srv.Memory.List(ctx, t, user(userID), memory.Filter{}, 100, "", false)
		if err != nil || len(page.Memories) != 2*len(want) {
			m.t.Errorf("%d memories are listed, %v", len(page.Memories), err)
		}
		of := sessions.Tenant{No: t.No, Epoch: t.Epoch}
		listed, err := srv.Sessions.List(ctx, of, app, userID, 100, "")
		if err != nil || len(listed.Sessions) != len(want) {
			m.t.Errorf("%d sessions are listed, %v", len(listed.Sessions), err)
		}
		for _, month := range []string{september, october, november} {
			s, err := srv.Sessions.Get(ctx, of, sessions.ID{App: app, UserID: userID, SessionID: month}, sessions.Query{Events: 10})
			o := artifacts.Owner{App: app, UserID: userID, SessionID: month}
			_, loadErr := srv.Artifacts.Load(ctx, artifacts.Tenant{No: t.No, Epoch: t.Epoch}, o, words(userID, month, "name"), artifacts.Latest, 0, 0)
			_, ownErr := srv.Artifacts.Load(ctx, artifacts.Tenant{No: t.No, Epoch: t.Epoch}, o, artifacts.UserPrefix+words(userID, "user", "name"), artifacts.Latest, 0, 0)
			if slices.Contains(want, month) {
				if err != nil || len(s.Events) != 1 || len(s.State) != 2 || loadErr != nil {
					m.t.Errorf("%s of %s: %d events, state %q, %v; artifact: %v", month, userID, len(s.Events), s.State, err, loadErr)
				}
			} else if !errors.Is(err, memd.ErrNotFound) || !errors.Is(loadErr, memd.ErrNotFound) {
				m.t.Errorf("%s of %s is there: %v, artifact: %v", month, userID, err, loadErr)
			}
			if ownErr != nil {
				m.t.Errorf("the artifact of %s's own: %v", userID, ownErr)
			}
		}
	}
}

// setRetention changes for how long a tenant keeps both classes.
func (m *months) setRetention(name string, months int) {
	m.t.Helper()
	m.change(name, tenants.Change{SessionMonths: &months, MemoryMonths: &months})
}

func (m *months) change(name string, c tenants.Change) {
	m.t.Helper()
	err := m.app.InTx(m.t.Context(), func(tx pgx.Tx) error {
		_, err := tenants.SetPolicy(m.t.Context(), tx, m.calendar.Now(), name, c)
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
}
