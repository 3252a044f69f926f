package tombstones_test

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
	"forgettable.dev/memd/tombstones"
)

// bundle is a database with one active tenant, and each role's way to it. The
// tests write their SQL by hand, as memd_app: nothing of memd's own stands
// between them and the database.
type bundle struct {
	t      *testing.T
	db     *pgtest.DB
	worker *pg.Pool
	root   *pg.Pool // superuser
	app    *pgx.Conn
	tenant memd.TenantNo
}

func setup(t *testing.T) *bundle {
	t.Helper()
	d := pgtest.Database(t)
	b := &bundle{t: t, db: d, worker: d.Pool("memd_worker"), root: d.Pool("")}
	b.app = b.connect("memd_app")
	b.tenant = b.newTenant("acme", 2)
	return b
}

// connect opens a connection of its own, in the simple protocol: statements
// arrive as they are written here.
func (b *bundle) connect(role string) *pgx.Conn {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), b.db.URL(role))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = conn.Close(ctx) // The test may have broken it on purpose.
	})
	return conn
}

func (b *bundle) newTenant(name string, state int) memd.TenantNo {
	b.t.Helper()
	var no memd.TenantNo
	b.scan(&no, fmt.Sprintf(`
		INSERT INTO memd.tenants (name, state, policy, created_at, updated_at)
		VALUES ('%s', 1, '{}', now(), now()) RETURNING tenant_no`, name))
	b.must(b.sudo(fmt.Sprintf(`UPDATE memd.tenants SET state = %d WHERE tenant_no = %d`, state, no)))
	return no
}

// run sends SQL text as it is and returns the first error.
func run(ctx context.Context, conn *pgx.Conn, sql string) error {
	return conn.PgConn().Exec(ctx, sql).Close()
}

func (b *bundle) sudo(sql string) error {
	return b.root.With(b.t.Context(), func(db pg.DB) error {
		_, err := db.Exec(b.t.Context(), sql)
		return err
	})
}

// scan asks as a superuser.
func (b *bundle) scan(dst any, sql string) {
	b.t.Helper()
	b.must(b.root.With(b.t.Context(), func(db pg.DB) error { return db.QueryRow(b.t.Context(), sql).Scan(dst) }))
}

func (b *bundle) count(sql string) int {
	b.t.Helper()
	var n int
	b.scan(&n, sql)
	return n
}

func (b *bundle) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// refused runs SQL as memd_app and wants exactly this SQLSTATE.
func (b *bundle) refused(state, sql string) {
	b.t.Helper()
	err := run(b.t.Context(), b.app, sql)
	if got := stateOf(err); got != state {
		b.t.Errorf("got %q (%v), want %s, of\n%s", got, err, state, sql)
	}
	if err := run(b.t.Context(), b.app, "ROLLBACK"); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) allowed(sql string) {
	b.t.Helper()
	if err := run(b.t.Context(), b.app, sql); err != nil {
		b.t.Errorf("%v, of\n%s", err, sql)
		_ = run(b.t.Context(), b.app, "ROLLBACK")
	}
}

func stateOf(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return pg.SQLState(err)
}

// user is a subject, with one session.
type user struct {
	tenant  memd.TenantNo
	ref     memd.Ref
	no      memd.Number
	session memd.Number
	sref    memd.Ref
}

func newRef() (r memd.Ref) {
	_, _ = rand.Read(r[:]) // Never fails.
	return r
}

// lit is a bytea literal.
func lit(r memd.Ref) string { return fmt.Sprintf(`'\x%x'`, r[:]) }

func (b *bundle) user() user { return b.userOf(b.tenant) }

func (b *bundle) userOf(tenant memd.TenantNo) user {
	b.t.Helper()
	u := user{tenant: tenant, ref: newRef()}
	b.admit(&u)
	u.session, u.sref = b.newSession(u, "NULL")
	return u
}

// admit gives a user a number, as an application would by hand.
func (b *bundle) admit(u *user) {
	b.t.Helper()
	b.must(b.app.QueryRow(b.t.Context(), `SELECT memd.next_subject_no($1)`, u.tenant).Scan(&u.no))
	b.must(run(b.t.Context(), b.app, insertSubject(*u)))
}

func insertSubject(u user) string { return insertSubjectSince(u, "NULL") }

func insertSubjectSince(u user, sourceTime string) string {
	return fmt.Sprintf(`INSERT INTO memd.subjects (tenant_no, subject_no, app, kind, user_ref, sealed_user_id, first_source_time, admitted_at)
		VALUES (%d, %d, 'app', 1, %s, '\x00', %s, now())`, u.tenant, u.no, lit(u.ref), sourceTime)
}

func insertSession(u user, no memd.Number, ref memd.Ref, sourceTime string) string {
	return fmt.Sprintf(`INSERT INTO memd.sessions (tenant_no, subject_no, session_no, session_ref, sealed_id, first_source_time, admitted_at)
		VALUES (%d, %d, %d, %s, '\x00', %s, now())`, u.tenant, u.no, no, lit(ref), sourceTime)
}

func (b *bundle) nextSession(u user) (no memd.Number) {
	b.t.Helper()
	b.must(b.app.QueryRow(b.t.Context(), `SELECT memd.next_session_nos($1, $2, 1)`, u.tenant, u.no).Scan(&no))
	return no
}

func (b *bundle) newSession(u user, sourceTime string) (memd.Number, memd.Ref) {
	b.t.Helper()
	no, ref := b.nextSession(u), newRef()
	b.must(run(b.t.Context(), b.app, insertSession(u, no, ref, sourceTime)))
	return no, ref
}

// row is a memory as hand-written SQL would store it. Its zero values are a
// raw row of its owner's.
type row struct {
	id          uuid.UUID
	owner       user
	contributor user
	session     memd.Number
	more        int
	version     int
	sourceTime  string
	expires     string
	digest      string
}

const columns = `(tenant_no, memory_id, owner_no, kind, month, contributor_no, contributor_session, more_contributions,
	source_time, created_at, updated_at, expires_at, version, content_digest, sealed_text)`

func (r row) values() string {
	if r.id == uuid.Nil {
		r.id = uuid.New()
	}
	contributor := r.contributor.no
	if contributor == 0 {
		contributor = r.owner.no
	}
	if r.session == 0 {
		r.session = memd.OwnScope
	}
	return fmt.Sprintf(`(%d, '%s', %d, 1, 600, %d, %d, %d, %s, now(), now(), %s, %d, '\x%s', '\x00')`,
		r.owner.tenant, r.id, r.owner.no, contributor, r.session, r.more, orNull(r.sourceTime), orNull(r.expires),
		max(r.version, 1), r.digest)
}

func orNull(s string) string {
	if s == "" {
		return "NULL"
	}
	return s
}

func insert(rows ...row) string {
	values := make([]string, len(rows))
	for i, r := range rows {
		values[i] = r.values()
	}
	return "INSERT INTO memd.memories " + columns + " VALUES " + strings.Join(values, ",\n")
}

// further is the statement that adds contributions to a row.
func further(id uuid.UUID, contributors ...user) string {
	values := make([]string, len(contributors))
	for i, c := range contributors {
		s := c.session
		if s == 0 {
			s = memd.OwnScope
		}
		values[i] = fmt.Sprintf(`(%d, '%s', %d, %d)`, c.tenant, id, c.no, s)
	}
	return "INSERT INTO memd.memory_contributions (tenant_no, memory_id, contributor_no, contributor_session) VALUES " + strings.Join(values, ", ")
}

// store stores a row and returns its id.
func (b *bundle) store(r row) uuid.UUID {
	b.t.Helper()
	if r.id == uuid.Nil {
		r.id = uuid.New()
	}
	b.must(run(b.t.Context(), b.app, insert(r)))
	return r.id
}

func noScopes(context.Context, pg.DB) ([]tombstones.Hide, error) { return nil, nil }

func (b *bundle) raise(u user, request uuid.UUID, now time.Time, scopes func(context.Context, pg.DB) ([]tombstones.Hide, error)) error {
	open := func(context.Context, pg.DB) error { return nil }
	return tombstones.Raise(b.t.Context(), b.worker, u.tenant, u.ref, request, now, open, scopes)
}

// fence raises a user's fence and returns the request that did.
func (b *bundle) fence(u user) uuid.UUID {
	b.t.Helper()
	request := uuid.New()
	b.must(b.raise(u, request, time.Now(), noScopes))
	return request
}

func (b *bundle) lift(u user, request uuid.UUID, now time.Time) {
	b.t.Helper()
	b.must(b.worker.With(b.t.Context(), func(db pg.DB) error {
		return tombstones.Lift(b.t.Context(), db, u.tenant, u.ref, request, now)
	}))
}

func (b *bundle) buryFirst(u user) {
	b.t.Helper()
	b.must(tombstones.BurySession(b.t.Context(), b.worker, u.tenant, u.ref, u.sref, uuid.New(), time.Now(), noScopes))
}

func (b *bundle) retire(u user) {
	b.t.Helper()
	b.must(b.sudo(fmt.Sprintf(`UPDATE memd.subjects SET retired_at = now() WHERE tenant_no = %d AND subject_no = %d`, u.tenant, u.no)))
}

func beUint32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }
