package canary_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"forgettable.dev/memd"
	"forgettable.dev/memd/canary"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const app = "chat"

// scene is a memd whose worker has stopped: the test erases by hand, step by
// step, so that it can leave one out. What it does not delete through SQL, it
// does through the rotator, as the worker does.
type scene struct {
	*memdtest.Stack
	t       *testing.T
	srv     *node.Server
	tenant  memory.Tenant
	db      *pg.Pool // a superuser
	rotator *shred.Rotator
	kms     shred.KMS
	keyring *shred.Keyring
	ledgers []ledger.Ledger
}

func setup(t *testing.T) *scene {
	t.Helper()
	s := &scene{Stack: memdtest.Start(t), t: t}
	s.srv, _ = s.Server()
	s.tenant = s.Tenant("acme", memdtest.Policy())
	s.StopWorker()
	s.db = s.DB.Pool("")
	s.kms = s.KMS.Client(t, kmsemu.Worker)
	l, err := ledger.Open(t.Context(), s.Ledger)
	if err != nil {
		t.Fatal(err)
	}
	s.ledgers = []ledger.Ledger{l}
	if c, ok := l.(interface{ Close() error }); ok {
		t.Cleanup(func() { _ = c.Close() })
	}
	log := slog.New(slog.NewJSONHandler(s.Logs, nil))
	s.rotator, err = shred.NewRotator(shred.RotatorConfig{
		Pool: s.DB.Pool(node.WorkerRole), Worker: s.kms, Shredder: s.KMS.Client(t, kmsemu.Shredder), Ledgers: s.ledgers,
		Clock: memd.SystemClock{}, Logger: log, InstanceWait: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.keyring = s.holder(log)
	return s
}

// holder is a process that holds keys, as the worker's is.
func (s *scene) holder(log *slog.Logger) *shred.Keyring {
	s.t.Helper()
	pool := s.DB.Pool(node.WorkerRole)
	instance, err := shred.Register(s.t.Context(), shred.InstanceConfig{Pool: pool, Kind: "worker", Logger: log})
	if err != nil {
		s.t.Fatal(err)
	}
	keyring, err := shred.NewKeyring(shred.KeyringConfig{Pool: pool, KMS: s.kms, Instance: instance, Logger: log})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	loops.Go(func() { _ = instance.Run(ctx) })
	loops.Go(func() { _ = keyring.Run(ctx) })
	s.t.Cleanup(func() {
		cancel()
		loops.Wait()
		keyring.Close()
		if err := instance.Close(context.Background()); err != nil {
			s.t.Error(err)
		}
	})
	return keyring
}

// verifier is one with every right, but for what adjust takes away.
func (s *scene) verifier(adjust ...func(*canary.Config)) *canary.Verifier {
	s.t.Helper()
	c := canary.Config{
		Pool: s.DB.Pool(node.WorkerRole), Keys: s.keyring, KMS: s.kms, Ledgers: s.ledgers, Pages: s.db,
		Logger: slog.New(slog.NewJSONHandler(s.Logs, nil)),
	}
	for _, f := range adjust {
		f(&c)
	}
	v, err := canary.New(c)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

func user(id string) memd.Scope { return memd.Scope{App: app, UserID: id} }

// unit is a vector of the test policy's four components.
func unit(v ...float32) []float32 { return append(v, make([]float32, 4-len(v))...) }

func said(id, session, text string) memory.Row {
	return memory.Row{Scope: user(id), SessionID: session, Kind: memory.KindRaw, Text: text}
}

func (s *scene) add(rows ...memory.Row) []uuid.UUID {
	s.t.Helper()
	for i := range rows {
		if rows[i].Vector == nil {
			rows[i].Vector = unit(0, 1)
		}
	}
	added, err := s.srv.Memory.Add(s.t.Context(), s.tenant, rows)
	if err != nil {
		s.t.Fatalf("adding: %v", err)
	}
	ids := make([]uuid.UUID, len(added))
	for i, a := range added {
		ids[i] = a.ID
	}
	return ids
}

// texts are those that a user's scope has.
func (s *scene) texts(id string) []string {
	s.t.Helper()
	page, err := s.srv.Memory.List(s.t.Context(), s.tenant, user(id), memory.Filter{}, memd.MaxPageSize, "", false)
	if err != nil {
		s.t.Fatalf("listing: %v", err)
	}
	var out []string
	for _, m := range page.Memories {
		out = append(out, m.Text)
	}
	slices.Sort(out)
	return out
}

func (s *scene) exec(sql string, args ...any) {
	s.t.Helper()
	err := s.db.With(s.t.Context(), func(db pg.DB) error {
		_, err := db.Exec(s.t.Context(), sql, args...)
		return err
	})
	if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

func ask[T any](s *scene, sql string, args ...any) T {
	s.t.Helper()
	var out T
	err := s.db.With(s.t.Context(), func(db pg.DB) error { return db.QueryRow(s.t.Context(), sql, args...).Scan(&out) })
	if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return out
}

// erasure is one that the test carries out by hand.
type erasure struct {
	s       *scene
	request uuid.UUID
	ref     memd.Ref
	e       memd.Examination
	v       *canary.Verifier
	p       memd.Probes
}

// accept files a request to forget a user, which fences them, and draws.
func (s *scene) accept(id string, adjust ...func(*canary.Config)) *erasure {
	s.t.Helper()
	x := &erasure{s: s, request: uuid.New(), ref: s.Keys(s.srv, s.tenant).UserRef(app, id), v: s.verifier(adjust...)}
	x.e = memd.Examination{Tenant: s.tenant.No, Job: ask[memd.Number](s, `SELECT memd.next_job_no($1)`, s.tenant.No)}
	s.exec(`INSERT INTO memd.erasures (tenant_no, request_id, job_no, kind, app, user_ref, accepted_at, due_at)
		VALUES ($1, $2, $3, 1, $4, $5, now(), now() + interval '30 days')`, s.tenant.No, x.request, x.e.Job, app, x.ref[:])
	for _, n := range s.numbers(x.ref) {
		x.e.Target = append(x.e.Target, memd.Contribution{Subject: n})
	}
	x.draw()
	return x
}

func (s *scene) numbers(ref memd.Ref) []memd.Number {
	s.t.Helper()
	var out []memd.Number
	err := s.db.With(s.t.Context(), func(db pg.DB) error {
		rows, err := db.Query(s.t.Context(), `SELECT subject_no FROM memd.subjects WHERE user_ref = $1 ORDER BY 1`, ref[:])
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, pgx.RowTo[memd.Number])
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (x *erasure) draw() {
	x.s.t.Helper()
	var err error
	if x.p, err = x.v.Draw(x.s.t.Context(), x.e); err != nil {
		x.s.t.Fatalf("drawing: %v", err)
	}
}

// deletes is every statement of an erasure of a user, by what it empties.
var deletes = map[string]string{
	"memories": `DELETE FROM memd.memories m USING memd.subjects s WHERE s.tenant_no = m.tenant_no AND s.user_ref = $1 AND (m.owner_no = s.subject_no
		OR m.contributor_no = s.subject_no OR EXISTS (SELECT FROM memd.memory_contributions c WHERE c.tenant_no = m.tenant_no
		AND c.memory_id = m.memory_id AND c.contributor_no = s.subject_no))`,
	"sessions":       `UPDATE memd.sessions x SET state = 2, sealed_id = '' FROM memd.subjects s WHERE s.subject_no = x.subject_no AND s.user_ref = $1`,
	"subjects":       `UPDATE memd.subjects SET retired_at = now() WHERE user_ref = $1`,
	"session_heads":  `DELETE FROM memd.session_heads x USING memd.subjects s WHERE s.subject_no = x.subject_no AND s.user_ref = $1`,
	"session_events": `DELETE FROM memd.session_events x USING memd.subjects s WHERE s.subject_no = x.subject_no AND s.user_ref = $1`,
	"session_state":  `DELETE FROM memd.session_state x USING memd.subjects s WHERE s.subject_no = x.subject_no AND s.user_ref = $1`,
	"user_state":     `DELETE FROM memd.user_state x USING memd.subjects s WHERE s.subject_no = x.subject_no AND s.user_ref = $1`,
	"app_state":      `DELETE FROM memd.app_state x USING memd.subjects s WHERE s.subject_no = x.contributor_no AND s.user_ref = $1`,
	"1_chunks":       `DELETE FROM memd.artifact_chunks x USING memd.subjects s WHERE s.subject_no = x.subject_no AND s.user_ref = $1`,
	"2_versions":     `DELETE FROM memd.artifact_versions x USING memd.subjects s WHERE s.subject_no = x.subject_no AND s.user_ref = $1`,
	"3_artifacts":    `DELETE FROM memd.artifacts x USING memd.subjects s WHERE s.subject_no = x.subject_no AND s.user_ref = $1`,
}

// delete empties everything but what is named.
func (x *erasure) delete(but ...string) {
	x.s.t.Helper()
	for _, what := range slices.Sorted(maps.Keys(deletes)) {
		if !slices.Contains(but, what) {
			x.s.exec(deletes[what], x.ref[:])
		}
	}
}

func (x *erasure) puncture() {
	x.s.t.Helper()
	var paths []shred.Path
	for _, t := range x.e.Target {
		paths = append(paths, shred.SubjectPath(t.Subject))
	}
	err := x.s.db.With(x.s.t.Context(), func(db pg.DB) error {
		return shred.RequestPuncture(x.s.t.Context(), db, x.e.Tenant, paths, x.request, time.Now())
	})
	if err != nil {
		x.s.t.Fatal(err)
	}
}

func (x *erasure) rotate() {
	x.s.t.Helper()
	if _, err := x.s.rotator.Rotate(x.s.t.Context(), x.e.Tenant); err != nil {
		x.s.t.Fatalf("rotating: %v", err)
	}
}

func (x *erasure) lift() {
	x.s.t.Helper()
	x.s.exec(`UPDATE memd.fences SET state = 3, lifted_at = now() WHERE user_ref = $1`, x.ref[:])
}

// whole does everything that an erasure does before its fence is lifted.
func (x *erasure) whole() {
	x.s.t.Helper()
	x.delete()
	x.puncture()
	x.rotate()
}

// checks are the answers of one look, by name.
type checks map[string]memd.Check

func (x *erasure) verify() checks {
	x.s.t.Helper()
	found, err := x.v.Verify(x.s.t.Context(), x.e, x.p)
	if err != nil {
		x.s.t.Fatalf("verifying: %v", err)
	}
	out := checks{}
	for _, c := range found {
		if _, ok := out[c.Name]; ok {
			x.s.t.Errorf("%s is checked twice", c.Name)
		}
		out[c.Name] = c
		if c.Result == memd.ResultPass && (c.ControlBefore == 0 || c.CountAfter != 0 || c.Reason != "") {
			x.s.t.Errorf("%s passes without having hit before: %+v", c.Name, c)
		}
		if c.Result != memd.ResultPass && c.Reason == "" {
			x.s.t.Errorf("%s is %s for no reason", c.Name, c.Result)
		}
	}
	return out
}

// want demands results, in the form "name result reason".
func (c checks) want(t *testing.T, wants ...string) {
	t.Helper()
	for _, w := range wants {
		name, rest, _ := strings.Cut(w, " ")
		got := strings.TrimSpace(fmt.Sprint(c[name].Result, " ", c[name].Reason))
		if got != rest {
			t.Errorf("%s: %s, want %s (%+v)", name, got, rest, c[name])
		}
	}
}

// failed are the names of the checks that failed.
func (c checks) failed() []string {
	var out []string
	for name, k := range c {
		if k.Result == memd.ResultFail {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// punctureJob asks for what the job remembers to go.
func (x *erasure) punctureJob() {
	x.s.t.Helper()
	err := x.s.db.With(x.s.t.Context(), func(db pg.DB) error {
		return shred.RequestPuncture(x.s.t.Context(), db, x.e.Tenant, []shred.Path{shred.JobPath(x.e.Job)}, x.request, time.Now())
	})
	if err != nil {
		x.s.t.Fatal(err)
	}
}
