package compact_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/compact"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
)

// A state has sealed values, an index and dead rows; nothing else is needed here.
const (
	sqlFill = `INSERT INTO memd.user_state (tenant_no, subject_no, key_digest, updated_at, sealed)
SELECT 1, n, decode(lpad(to_hex(n), 32, '0'), 'hex'), now(), decode(repeat(lpad(to_hex(n), 64, '0'), 20), 'hex') FROM generate_series(1, 2000) AS n`
	sqlEmpty = `DELETE FROM memd.user_state WHERE subject_no % 2 = 0`
	sqlQuiet = `ALTER TABLE memd.user_state SET (autovacuum_enabled = off)`
)

func (b *bench) deleted() {
	b.exec(sqlQuiet)
	b.exec(sqlFill)
	b.exec(sqlEmpty)
}

func TestVacuum_EveryTable(t *testing.T) {
	b := setup(t)
	b.deleted()
	no := b.ask(compact.Vacuum, compact.CauseOperator)
	if again := b.ask(compact.Vacuum, compact.CauseErasure); again != no {
		t.Errorf("asked again while it waits: %d, want %d", again, no)
	}
	if worked := b.round(b.runner()); worked != no {
		t.Fatalf("worked at %d, want %d", worked, no)
	}
	c := b.read(no)
	if c.State != compact.StateDone || c.Failure != "" || c.WALEnd == "" {
		t.Fatalf("%+v", c)
	}
	for _, p := range c.Tables {
		if p.State != compact.TableDone || p.Blocked != 0 || p.Announced != 0 {
			t.Errorf("%+v", p)
		}
		if n := ask[int64](b, `SELECT vacuum_count FROM pg_stat_user_tables WHERE schemaname = 'memd' AND relname = $1`, p.Name); n != 1 {
			t.Errorf("%s was vacuumed %d times", p.Name, n)
		}
	}
	b.exec(`CREATE EXTENSION IF NOT EXISTS pageinspect SCHEMA pg_catalog`)
	const sqlDead = `SELECT count(*) FROM generate_series(0, pg_relation_size('memd.user_state') / 8192 - 1) AS p
		CROSS JOIN heap_page_items(get_raw_page('memd.user_state', p::int)) AS i WHERE i.lp_flags = 3 OR i.t_xmax::text <> '0'`
	if n := ask[int64](b, sqlDead); n != 0 {
		t.Errorf("%d dead rows are left", n)
	}
	if next := b.round(b.runner()); next != 0 {
		t.Errorf("worked at %d when nothing was asked for", next)
	}
}

func TestRewrite_AnnouncesAndMeasures(t *testing.T) {
	b := setup(t)
	b.deleted()
	file := ask[int64](b, `SELECT pg_relation_filenode('memd.user_state')::bigint`)
	no := b.ask(compact.Rewrite, compact.CauseOperator)
	b.round(b.runner())
	c := b.read(no)
	got := table(c, "user_state")
	if c.State != compact.StateDone || got.Announced < 50*time.Millisecond || got.Blocked <= 0 || got.BytesAfter >= got.BytesBefore || got.BytesBefore < 2000*640 {
		t.Errorf("%v: %+v", c.State, got)
	}
	if now := ask[int64](b, `SELECT pg_relation_filenode('memd.user_state')::bigint`); now == file {
		t.Error("it has the same file")
	}
	for _, p := range c.Tables {
		if !p.Content && p.Blocked > 0 {
			t.Errorf("%s has nothing sealed and was locked", p.Name)
		}
	}
	if n := ask[int64](b, `SELECT count(*) FROM memd.user_state`); n != 1000 {
		t.Errorf("%d rows are left of 1000", n)
	}
}

// A VACUUM by a role without the right warns and succeeds.
func TestVacuum_WithoutTheRight_Fails(t *testing.T) {
	b := setup(t)
	b.deleted()
	b.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I OWNER TO %I', current_database(), current_user); END $$`)
	for mode, failure := range map[compact.Mode]compact.Failure{compact.Vacuum: compact.NoRight, compact.Rewrite: compact.NoRight} {
		no := b.ask(mode, compact.CauseOperator)
		b.round(b.runner())
		c := b.read(no)
		if c.State != compact.StateFailed || c.Failure != failure {
			t.Errorf("%v: %v %q, want %q", mode, c.State, c.Failure, failure)
		}
		for _, p := range c.Tables {
			if p.State != compact.TableFailed || p.SQLState == "" {
				t.Errorf("%v: %+v", mode, p)
			}
		}
	}
	tables := b.tables()
	if i := slices.IndexFunc(tables, func(x compact.Table) bool { return x.Permitted }); i >= 0 {
		t.Errorf("%s is said to be permitted", tables[i].Name)
	}
}

func (b *bench) tables() (all []compact.Table) {
	b.t.Helper()
	err := b.app.With(b.t.Context(), func(db pg.DB) (err error) {
		all, err = compact.Tables(b.t.Context(), db)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return all
}

func TestRewrite_ChecksHeadroom(t *testing.T) {
	b := setup(t)
	b.deleted()
	for _, c := range []struct {
		disk compact.Disk
		want compact.Failure
	}{
		{compact.Disk{Bytes: 1 << 30}, compact.NoHeadroom}, // Less than the log alone may take.
		{compact.Disk{}, compact.HeadroomUnknown},
		{compact.Disk{Bytes: math.MaxInt64 / 2}, ""},
	} {
		no := b.ask(compact.Rewrite, compact.CauseOperator)
		b.round(b.runner(func(x *compact.Config) { x.Disk = c.disk }))
		got := table(b.read(no), "user_state")
		if got.Failure != c.want || c.want != "" && got.Blocked != 0 {
			t.Errorf("%+v: %+v, want %q", c.disk, got, c.want)
		}
	}
}

// Whoever keeps a table locked is not queued behind, so that nobody queues behind
// the rewrite.
func TestRewrite_LockedTableIsLeftAlone(t *testing.T) {
	b := setup(t)
	b.deleted()
	defer b.locked("user_state", "ACCESS SHARE")()
	no := b.ask(compact.Rewrite, compact.CauseOperator)
	b.round(b.runner(func(c *compact.Config) { c.LockPatience = 300 * time.Millisecond }))
	c := b.read(no)
	if got := table(c, "user_state"); got.State != compact.TableFailed || got.Failure != compact.Locked {
		t.Errorf("%+v", got)
	}
	if got := table(c, "memories"); got.State != compact.TableDone {
		t.Errorf("a table that nobody had locked: %+v", got)
	}
	if c.State != compact.StateFailed || c.Failure != compact.Locked {
		t.Errorf("%v %q", c.State, c.Failure)
	}
}

// What an older transaction may still see stays, and a rewrite would copy it.
func TestCompaction_HeldBack(t *testing.T) {
	b := setup(t)
	b.deleted()
	conn, err := b.owner.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	impatient := b.runner(func(c *compact.Config) { c.HorizonPatience = 50 * time.Millisecond })
	for _, mode := range []compact.Mode{compact.Vacuum, compact.Rewrite} {
		no := b.ask(mode, compact.CauseOperator)
		b.round(impatient)
		if c := b.read(no); c.State != compact.StateFailed || c.Failure != compact.HeldBack || c.Blocked() != 0 {
			t.Errorf("%v: %v %q, locked for %v", mode, c.State, c.Failure, c.Blocked())
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	no := b.ask(compact.Rewrite, compact.CauseOperator)
	b.round(impatient)
	if c := b.read(no); c.State != compact.StateDone {
		t.Errorf("when it has ended: %v %q", c.State, c.Failure)
	}
}

func TestPause_BreaksOffAndGoesOn(t *testing.T) {
	b := setup(t)
	b.deleted()
	release := b.locked("user_state", "ACCESS SHARE")
	no := b.ask(compact.Rewrite, compact.CauseOperator)
	r := b.runner()
	ended := make(chan error, 1)
	go func() { _, err := r.Round(context.Background()); ended <- err }()
	b.until("the table is its turn", func() bool { return table(b.read(no), "user_state").State == compact.TableRunning })
	b.pause(true)
	if err := <-ended; err != nil {
		t.Errorf("a pause is no error: %v", err)
	}
	release()
	if worked := b.round(r); worked != 0 {
		t.Errorf("worked at %d while paused", worked)
	}
	c := b.read(no)
	if got := table(c, "user_state"); c.State != compact.StateRunning || got.State != compact.TableWaiting {
		t.Errorf("paused: %v, %+v", c.State, got)
	}
	b.pause(false)
	b.round(r)
	c = b.read(no)
	if got := table(c, "user_state"); c.State != compact.StateDone || got.State != compact.TableDone || got.Tries != 2 || c.Tries != 2 {
		t.Errorf("resumed: %v after %d tries, %+v", c.State, c.Tries, got)
	}
}

// The child of TestKilled_IsTakenUpAgain.
const childURL, childMaintain = "COMPACT_TEST_CHILD_URL", "COMPACT_TEST_CHILD_MAINTAIN"

func child(url, maintain string) int {
	ctx := context.Background()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	run := func() error {
		pool, err := pg.Open(ctx, pg.Config{URL: url})
		if err != nil {
			return err
		}
		m, err := compact.Connect(ctx, maintain)
		if err != nil {
			return err
		}
		r, err := compact.NewRunner(compact.Config{
			Pool: pool, Maintain: m, Disk: compact.Disk{DataDir: "/"}, Clock: memd.SystemClock{}, Logger: log, Pause: 10 * time.Millisecond,
			LockTimeout: 30 * time.Second,
		})
		if err != nil {
			return err
		}
		_, err = r.Round(ctx)
		return err
	}
	if err := run(); err != nil {
		log.Error("child", "error", err)
		return 1
	}
	return 0
}

// A process that is killed while a table is being rewritten leaves the table as it
// was; the next one does that table, and none that was done.
func TestKilled_IsTakenUpAgain(t *testing.T) {
	b := setup(t)
	b.deleted()
	// Building this index, as a rewrite does, waits for the test.
	const gate = 4711
	b.exec(`CREATE FUNCTION public.gated(d bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS 'SELECT pg_catalog.pg_advisory_xact_lock_shared(4711); SELECT d'`)
	b.exec(`CREATE INDEX ON memd.user_state (public.gated(key_digest))`)
	conn, err := b.owner.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, gate); err != nil {
		t.Fatal(err)
	}
	no := b.ask(compact.Rewrite, compact.CauseOperator)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childURL+"="+b.URL(node.WorkerRole), childMaintain+"="+b.URL(compact.Role))
	var out strings.Builder
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b.until("the child is in the middle of the table", func() bool {
		return ask[bool](b, `SELECT EXISTS (SELECT FROM pg_stat_progress_cluster WHERE relid = 'memd.user_state'::regclass AND phase = 'rebuilding index')`)
	})
	before := b.read(no)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // It was killed, and says so.
	if n := ask[int64](b, `SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND relation = 'memd.user_state'::regclass AND granted`); n == 0 {
		t.Error("the killed process's rewrite was not under way")
	}
	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_unlock($1)`, gate); err != nil {
		t.Fatal(err)
	}
	r := b.runner()
	b.until("the dead process's lock is free", func() bool { return b.round(r) == no })
	after := b.read(no)
	if after.State != compact.StateDone || after.Tries != 2 {
		t.Fatalf("%v after %d tries; the child said:\n%s", after.State, after.Tries, &out)
	}
	done := 0
	for _, was := range before.Tables {
		is := table(after, was.Name)
		if was.State == compact.TableDone {
			done++
			if is != was {
				t.Errorf("%s was done, and was counted again: %+v, was %+v", was.Name, is, was)
			}
		} else if is.State != compact.TableDone {
			t.Errorf("%s: %+v", is.Name, is)
		}
	}
	if n := ask[int64](b, `SELECT count(*) FROM memd.user_state`); n != 1000 {
		t.Errorf("%d rows are left of 1000", n)
	}
	if got := table(after, "user_state"); done == 0 || got.Tries != 2 || got.Blocked <= 0 {
		t.Errorf("%d tables were done before; %+v", done, got)
	}
}

func TestSchedule_ByTimeAndWindow(t *testing.T) {
	b := setup(t)
	r := func(at time.Time) *compact.Runner {
		return b.runner(func(c *compact.Config) { c.Clock = clock{at} })
	}
	noon := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC) // A Wednesday.
	b.schedule(compact.Schedule{Mode: compact.Vacuum, Every: 30 * time.Minute, Start: 2 * time.Hour, Length: 2 * time.Hour, Days: 1 << time.Thursday})
	if no := b.round(r(noon)); no != 0 {
		t.Errorf("outside of the window: %d", no)
	}
	asked := b.ask(compact.Vacuum, compact.CauseErasure)
	if no := b.round(r(noon)); no != 0 {
		t.Errorf("an erasure's, outside of the window: %d", no)
	}
	inside := noon.Add(14*time.Hour + 30*time.Minute)
	if no := b.round(r(inside)); no != asked {
		t.Errorf("inside: %d, want %d", no, asked)
	}
	b.exec(`UPDATE memd.compactions SET requested_at = $1`, inside) // Whoever asks has the system's clock here.
	if no := b.round(r(inside.Add(30*time.Minute - time.Second))); no != 0 {
		t.Errorf("a second too early: %d", no)
	}
	if no := b.round(r(inside.Add(30 * time.Minute))); no == 0 {
		t.Error("nothing is due after half an hour")
	}
	no := b.ask(compact.Vacuum, compact.CauseOperator)
	if did := b.round(r(noon)); did != no {
		t.Errorf("an operator's, outside of the window: %d, want %d", did, no)
	}
	var invalid *memd.InvalidError
	if err := (compact.Schedule{Mode: compact.Vacuum, Every: time.Second}).Validate(); !errors.As(err, &invalid) {
		t.Errorf("every second: %v", err)
	}
}

type clock struct{ at time.Time }

func (c clock) Now() time.Time { return c.at }

func TestSchedule_Open(t *testing.T) {
	s := compact.Schedule{Mode: compact.Vacuum, Start: 23 * time.Hour, Length: 2 * time.Hour, Days: 1<<time.Friday | 1<<time.Saturday}
	at := func(day, hour, minute int) time.Time { return time.Date(2026, 3, day, hour, minute, 0, 0, time.UTC) }
	for _, c := range []struct {
		now  time.Time
		open bool
		wait time.Duration
	}{
		{at(6, 22, 59), false, time.Minute}, // A Friday.
		{at(6, 23, 0), true, 0},
		{at(7, 0, 59), true, 0},
		{at(7, 1, 0), false, 22 * time.Hour},
		{at(8, 0, 30), true, 0},
		{at(8, 1, 0), false, 5*24*time.Hour + 22*time.Hour},
	} {
		if open, wait := s.Open(c.now); open != c.open || wait != c.wait {
			t.Errorf("%v: %v %v, want %v %v", c.now, open, wait, c.open, c.wait)
		}
	}
}

// No table can be forgotten: memd's tables are all listed, and what looks like
// content is called sealed, or is known not to be.
func TestTables_AreTheCatalogues(t *testing.T) {
	b := setup(t)
	b.exec(`SELECT memd.ensure_event_month(675)`)
	named := map[string]bool{}
	for _, x := range b.tables() {
		named[x.Name] = x.Content
		if !x.Permitted || x.Needs < x.Bytes || x.Estimate <= 0 {
			t.Errorf("%+v", x)
		}
	}
	all := ask[[]string](b, `SELECT array_agg(c.relname::text) FROM pg_class c WHERE c.relnamespace = 'memd'::regnamespace AND c.relkind = 'r'`)
	for _, name := range all {
		if _, ok := named[name]; !ok {
			t.Errorf("%s is not compacted", name)
		}
	}
	for _, name := range []string{"memories", "session_events_675", "session_state", "user_state", "app_state", "artifacts", "artifact_versions", "artifact_chunks", "subjects", "sessions", "erasures", "key_trees"} {
		if !named[name] {
			t.Errorf("%s has content and is not rewritten", name)
		}
	}
	// Digests, refs, and public or sealed records of the installation's own.
	known := []string{
		"approvals.digest", "session_heads.", "principals.secret_hash", "fences.user_ref", "tombstones.ref", "ledger_outbox.", "ledger_state.digest", "receipt_keys.", "receipts.",
		"memory_contributions.", "purge_targets.", "compactions.", "export_links.secret_sha256", "export_parts.sha256",
		"exports.user_ref", "exports.manifest_sha256",
	}
	others := ask[[]string](b, `SELECT coalesce(array_agg(c.relname || '.' || a.attname ORDER BY 1), '{}') FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
		WHERE c.relnamespace = 'memd'::regnamespace AND c.relkind = 'r' AND a.atttypid = 'bytea'::regtype AND a.attnum > 0 AND NOT a.attisdropped`)
	for _, column := range others {
		name, _, _ := strings.Cut(column, ".")
		if !named[name] && !slices.ContainsFunc(known, func(k string) bool { return strings.HasPrefix(column, k) }) {
			t.Errorf("%s is no sealed column and not known to hold nothing of anybody's: is its table to be rewritten?", column)
		}
	}
}

// ANALYZE would copy samples of sealed values into the catalogue.
func TestSealed_AreNotSampled(t *testing.T) {
	b := setup(t)
	b.exec(`SELECT memd.ensure_event_month(675)`)
	sampled := ask[[]string](b, `SELECT coalesce(array_agg(c.relname || '.' || a.attname), '{}') FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
		WHERE c.relnamespace = 'memd'::regnamespace AND c.relkind IN ('r', 'p') AND a.attname LIKE 'sealed%' AND a.atttypid = 'bytea'::regtype AND a.attstattarget <> 0`)
	if len(sampled) > 0 {
		t.Errorf("are sampled: %v", sampled)
	}
	b.deleted()
	b.exec(`ANALYZE memd.user_state`)
	if n := ask[int64](b, `SELECT count(*) FROM pg_stats WHERE schemaname = 'memd' AND tablename = 'user_state' AND attname = 'sealed'`); n != 0 {
		t.Error("sealed values are in the catalogue")
	}
	if n := ask[int64](b, `SELECT count(*) FROM pg_stats WHERE schemaname = 'memd' AND tablename = 'user_state'`); n == 0 {
		t.Error("nothing was analysed at all")
	}
}
