package artifacts_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

// bundle is a memd with one server and one tenant, and what tests ask it.
type bundle struct {
	*memdtest.Stack
	t      testing.TB
	srv    *node.Server
	a      *artifacts.Service
	whole  memory.Tenant
	tenant artifacts.Tenant
	clock  *clock
}

// clock is a clock that a test moves. It starts at the machine's time.
type clock struct {
	mu    sync.Mutex
	ahead time.Duration
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return memd.SystemClock{}.Now().Add(c.ahead)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

func setup(t testing.TB) *bundle {
	t.Helper()
	c := &clock{}
	b := &bundle{Stack: memdtest.Start(t, memdtest.WithClock(c)), t: t, clock: c}
	b.srv, _ = b.Server()
	b.a = b.service(b.srv)
	b.whole = b.Tenant("acme", memdtest.Policy())
	b.tenant = artifacts.Tenant{No: b.whole.No, Epoch: b.whole.Epoch}
	return b
}

func (b *bundle) service(srv *node.Server) *artifacts.Service {
	b.t.Helper()
	s, err := artifacts.New(artifacts.Config{Pool: srv.Pool, Keyring: srv.Keyring, Directory: srv.Directory, Clock: b.clock})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *bundle) policy() tenants.Policy { return memdtest.Policy() }

func (b *bundle) ctx() context.Context { return b.t.Context() }

var anna = artifacts.Owner{App: "pharmacy", UserID: "anna", SessionID: "monday"}

// session is another session of the same user.
func session(o artifacts.Owner, id string) artifacts.Owner {
	o.SessionID = id
	return o
}

func (b *bundle) save(o artifacts.Owner, name string, content []byte) artifacts.Version {
	b.t.Helper()
	v, err := b.a.Save(b.ctx(), b.tenant, o, name, artifacts.File{}, bytes.NewReader(content))
	if err != nil {
		b.t.Fatalf("Save: %v", err)
	}
	return v
}

// load returns a range of a version.
func (b *bundle) load(o artifacts.Owner, name string, version, offset, length int64) ([]byte, error) {
	c, err := b.a.Load(b.ctx(), b.tenant, o, name, version, offset, length)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if _, err := c.Copy(b.ctx(), &out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// holds fails the test unless a version has exactly these bytes.
func (b *bundle) holds(o artifacts.Owner, name string, version int64, want []byte) {
	b.t.Helper()
	got, err := b.load(o, name, version, 0, 0)
	if err != nil {
		b.t.Fatalf("loading: %v", err)
	}
	if !bytes.Equal(got, want) {
		b.t.Fatalf("%d bytes came back, %d were saved, and they differ", len(got), len(want))
	}
}

// gone fails the test unless a version is not found.
func (b *bundle) gone(o artifacts.Owner, name string, version int64) {
	b.t.Helper()
	if _, err := b.load(o, name, version, 0, 0); !errors.Is(err, memd.ErrNotFound) {
		b.t.Errorf("loading what is gone: %v", err)
	}
}

func (b *bundle) names(o artifacts.Owner) []string {
	b.t.Helper()
	out := []string{}
	token := ""
	for {
		page, err := b.a.List(b.ctx(), b.tenant, o, memd.MaxPageSize, token)
		if err != nil {
			b.t.Fatalf("List: %v", err)
		}
		for _, n := range page.Names {
			out = append(out, n.Name)
		}
		if token = page.Next; token == "" {
			return out
		}
	}
}

func (b *bundle) versions(o artifacts.Owner, name string) []int64 {
	b.t.Helper()
	vs, err := b.a.ListVersions(b.ctx(), b.tenant, o, name, memd.MaxPageSize, artifacts.Latest)
	if err != nil {
		b.t.Fatalf("ListVersions: %v", err)
	}
	out := []int64{}
	for _, v := range vs {
		out = append(out, v.Number)
	}
	return out
}

// superuser runs SQL as the database's owner, triggers off if asked.
func (b *bundle) superuser(sql string, args ...any) int64 {
	b.t.Helper()
	conn, err := pgx.Connect(b.ctx(), b.DB.URL(""))
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(b.ctx())) }()
	tag, err := conn.Exec(b.ctx(), sql, args...)
	if err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	return tag.RowsAffected()
}

func (b *bundle) count(sql string, args ...any) int64 {
	b.t.Helper()
	conn, err := pgx.Connect(b.ctx(), b.DB.URL(""))
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(b.ctx())) }()
	var n int64
	if err := conn.QueryRow(b.ctx(), sql, args...).Scan(&n); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// total is everything that the tenant has.
func (b *bundle) total() artifacts.Counts {
	b.t.Helper()
	var c artifacts.Counts
	err := b.Worker.Pool.With(b.ctx(), func(db pg.DB) (err error) {
		c, err = artifacts.CountTenant(b.ctx(), db, b.tenant.No)
		return err
	})
	if err != nil {
		b.t.Fatalf("CountTenant: %v", err)
	}
	return c
}

// numbers are a user's of now, and of a session of theirs or of the own scope.
func (b *bundle) numbers(o artifacts.Owner) memd.Contribution {
	b.t.Helper()
	ref := b.keys().UserRef(o.App, o.UserID)
	c := memd.Contribution{
		Subject: memd.Number(b.count(`SELECT subject_no FROM memd.live_subjects WHERE tenant_no = $1 AND user_ref = $2`, b.tenant.No, ref[:])),
		Session: memd.OwnScope,
	}
	if o.SessionID != "" {
		sref := b.keys().SessionRef(ref, o.SessionID)
		c.Session = memd.Number(b.count(`SELECT session_no FROM memd.sessions WHERE tenant_no = $1 AND subject_no = $2 AND session_ref = $3`,
			b.tenant.No, c.Subject, sref[:]))
	}
	return c
}

func (b *bundle) keys() *shred.Keys { return b.Keys(b.srv, b.whole) }

// raiseFence puts up a fence as an accepted erasure does, and nothing else.
func (b *bundle) raiseFence(o artifacts.Owner) {
	b.t.Helper()
	ref := b.keys().UserRef(o.App, o.UserID)
	b.superuser(`INSERT INTO memd.fences VALUES ($1, $2, 1, now(), gen_random_uuid(), now())`, b.tenant.No, ref[:])
}

// bury marks a session as dead: kind 1 with its memories, 2 its content alone.
func (b *bundle) bury(o artifacts.Owner, kind int) {
	b.t.Helper()
	sref := b.keys().SessionRef(b.keys().UserRef(o.App, o.UserID), o.SessionID)
	b.superuser(`INSERT INTO memd.tombstones (tenant_no, kind, ref, changed_xid, recorded_at) VALUES ($1, $2, $3, 0, now())`, b.tenant.No, kind, sref[:])
}

// noise is n bytes that do not compress, the same for the same seed.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	if _, err := io.ReadFull(source(seed), b); err != nil {
		panic(err)
	}
	return b
}

func source(seed uint64) io.Reader {
	var s [32]byte
	copy(s[:], fmt.Sprintf("artifact %d", seed))
	return rand.NewChaCha8(s)
}
