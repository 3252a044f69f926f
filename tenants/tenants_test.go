package tenants_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
	"forgettable.dev/memd/tenants"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// bundle has one database and both processes' roles on it.
type bundle struct {
	t           *testing.T
	app, worker *pg.Pool
	owner       *pg.Pool
}

func setup(t *testing.T) *bundle {
	t.Helper()
	d := pgtest.Database(t)
	return &bundle{t: t, app: d.Pool("memd_app"), worker: d.Pool("memd_worker"), owner: d.Pool("")}
}

func (b *bundle) create(name, display string, p tenants.Policy) (t tenants.Tenant, err error) {
	err = b.app.With(b.t.Context(), func(db pg.DB) (err error) {
		t, err = tenants.Create(b.t.Context(), db, start, name, display, p)
		return err
	})
	return t, err
}

func (b *bundle) mustCreate(name string) tenants.Tenant {
	b.t.Helper()
	t, err := b.create(name, "", tenants.DefaultPolicy())
	if err != nil {
		b.t.Fatal(err)
	}
	return t
}

// provision stands in for package shred, which owns the table.
func (b *bundle) provision(no memd.TenantNo) {
	b.t.Helper()
	err := b.worker.With(b.t.Context(), func(db pg.DB) error {
		_, err := db.Exec(b.t.Context(), `INSERT INTO memd.tenant_keys (tenant_no, kms_key, epoch) VALUES ($1, 'k', 1)`, no)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) activate(no memd.TenantNo) error {
	return b.worker.With(b.t.Context(), func(db pg.DB) error {
		return tenants.Activate(b.t.Context(), db, start.Add(time.Minute), no)
	})
}

func TestCreate_AnnouncesATenant(t *testing.T) {
	b := setup(t)
	p := tenants.Policy{
		Dimension: 3, Embedder: tenants.EmbedderNone, VectorFormat: tenants.Float16,
		DestroyDelay: 48 * time.Hour, Index: tenants.IndexSealed, IngestionDelay: 90 * time.Minute,
		LiftFence: tenants.LiftAfterSweep, Compaction: tenants.CompactionVacuum,
	}
	got, err := b.create("acme", "Acme Ltd", p)
	if err != nil {
		t.Fatal(err)
	}
	want := tenants.Tenant{
		No: got.No, Name: "acme", DisplayName: "Acme Ltd", State: tenants.StateCreating, Policy: p, CreatedAt: start, UpdatedAt: start,
	}
	if diff := cmp.Diff(want, got); diff != "" || got.No < 1 {
		t.Errorf("no %v, difference %s", got.No, diff)
	}
}

func TestCreate_NotifiesTheWorkers(t *testing.T) {
	b := setup(t)
	conn, err := b.worker.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), "LISTEN memd_work"); err != nil {
		t.Fatal(err)
	}
	b.mustCreate("acme")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := conn.Conn().WaitForNotification(ctx); err != nil {
		t.Errorf("no notification: %v", err)
	}
}

func TestCreate_IsSafeToRepeatAndRefusesAnother(t *testing.T) {
	b := setup(t)
	first := b.mustCreate("acme")
	again, err := b.create("acme", "", tenants.DefaultPolicy())
	if err != nil || again.No != first.No {
		t.Errorf("again: %v, %v", again.No, err)
	}
	if _, err := b.create("acme", "another", tenants.DefaultPolicy()); !errors.Is(err, memd.ErrExists) {
		t.Errorf("another display name: %v", err)
	}
	p := tenants.DefaultPolicy()
	p.Dimension = 500
	if _, err := b.create("acme", "", p); !errors.Is(err, memd.ErrExists) {
		t.Errorf("another policy: %v", err)
	}
}

func TestCreate_RefusesNamesAndPolicies(t *testing.T) {
	b := setup(t)
	for _, name := range []string{"", "a", "A1", "1a", "-a", "a_b", "acme\n", "ä1", "a" + strings.Repeat("b", 63)} {
		var invalid *memd.InvalidError
		if _, err := b.create(name, "", tenants.DefaultPolicy()); !errors.As(err, &invalid) || invalid.Field != "name" {
			t.Errorf("name %q: %v", name, err)
		}
	}
	p := tenants.DefaultPolicy()
	p.DestroyDelay = 23 * time.Hour
	if _, err := b.create("acme", "", p); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("policy: %v", err)
	}
	if _, err := b.create("acme", strings.Repeat("x", 257), tenants.DefaultPolicy()); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("display name: %v", err)
	}
}

func TestGet_NotFound(t *testing.T) {
	b := setup(t)
	for _, name := range []string{"nobody", "", "*", "a\x00b", "\xff"} {
		err := b.app.With(t.Context(), func(db pg.DB) error {
			_, err := tenants.Get(t.Context(), db, name)
			return err
		})
		if !errors.Is(err, memd.ErrNotFound) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestList_PagesByNameWhateverTheLocale(t *testing.T) {
	b := setup(t)
	for _, name := range []string{"b-1", "b1", "a1", "b-0", "ba"} {
		b.mustCreate(name)
	}
	var got []string
	for after := ""; ; {
		var page []tenants.Tenant
		err := b.app.With(t.Context(), func(db pg.DB) (err error) {
			page, err = tenants.List(t.Context(), db, after, 2)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, t := range page {
			got = append(got, t.Name)
		}
		after = got[len(got)-1]
	}
	if diff := cmp.Diff([]string{"a1", "b-0", "b-1", "b1", "ba"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestSetPolicy(t *testing.T) {
	b := setup(t)
	acme := b.mustCreate("acme")
	// A key that only a newer release knows.
	if err := b.owner.With(t.Context(), func(db pg.DB) error {
		_, err := db.Exec(t.Context(), `UPDATE memd.tenants SET policy = policy || '{"quota": 5}'`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	set := func(name string, c tenants.Change) (got tenants.Tenant, err error) {
		err = b.app.InTx(t.Context(), func(tx pgx.Tx) (err error) {
			got, err = tenants.SetPolicy(t.Context(), tx, start.Add(time.Hour), name, c)
			return err
		})
		return got, err
	}
	got, err := set("acme", tenants.Change{Index: new(tenants.IndexSealed), IngestionDelay: new(time.Duration(0))})
	want := acme
	want.Policy.Index, want.Policy.IngestionDelay, want.UpdatedAt = tenants.IndexSealed, 0, start.Add(time.Hour)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v, difference %s", err, diff)
	}
	for field, c := range map[string]tenants.Change{
		"policy.dimension":     {Dimension: new(5)},
		"policy.embedder":      {Embedder: new("none")},
		"policy.destroy_delay": {DestroyDelay: new(25 * time.Hour)},
		"policy.vector_format": {VectorFormat: new(tenants.VectorFormat(9))},
	} {
		var invalid *memd.InvalidError
		if _, err := set("acme", c); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	// Another dimension is another space, and the one before is there until it was left.
	moved, err := set("acme", tenants.Change{Dimension: new(512)})
	if p := moved.Policy; err != nil || p.Space != 2 || p.Former != (tenants.Space{Number: 1, Embedder: want.Policy.Embedder, Dimension: want.Policy.Dimension}) {
		t.Errorf("%+v, %v", p, err)
	}
	var invalid *memd.InvalidError
	if _, err := set("acme", tenants.Change{Dimension: new(600)}); !errors.As(err, &invalid) || invalid.Field != "policy.dimension" {
		t.Errorf("a change before the last one is done: %v", err)
	}
	for _, space := range []int{1, 2} {
		err := b.app.InTx(t.Context(), func(tx pgx.Tx) error { return tenants.Moved(t.Context(), tx, start, acme.No, space) })
		if err != nil {
			t.Fatal(err)
		}
		if moved, err = set("acme", tenants.Change{}); err != nil || (moved.Policy.Former == tenants.Space{}) != (space == 2) {
			t.Errorf("after leaving for %d: %+v, %v", space, moved.Policy, err)
		}
	}
	if _, err := set("nobody", tenants.Change{}); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("of nobody: %v", err)
	}
	var quota int
	if err := b.owner.With(t.Context(), func(db pg.DB) error {
		return db.QueryRow(t.Context(), `SELECT (policy->>'quota')::int FROM memd.tenants`).Scan(&quota)
	}); err != nil || quota != 5 {
		t.Errorf("what a newer release stored is %d, %v", quota, err)
	}
}

func TestActivate(t *testing.T) {
	b := setup(t)
	acme := b.mustCreate("acme")
	if err := b.activate(acme.No); !errors.Is(err, memd.ErrTenantInactive) {
		t.Errorf("without keys: %v", err)
	}
	b.provision(acme.No)
	for range 2 { // Safe to repeat.
		if err := b.activate(acme.No); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.activate(acme.No + 1); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("nobody: %v", err)
	}
	err := b.app.With(t.Context(), func(db pg.DB) error {
		return tenants.Activate(t.Context(), db, start, acme.No)
	})
	if pg.SQLState(err) != "42501" {
		t.Errorf("the server's role may activate: %v", err)
	}
}

func TestCreating_FindsHalfMadeTenants(t *testing.T) {
	b := setup(t)
	var want []string
	for i := range 3 {
		tenant := b.mustCreate(fmt.Sprintf("t%d", i))
		if i == 1 {
			b.provision(tenant.No)
			if err := b.activate(tenant.No); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want = append(want, tenant.Name)
	}
	var got []string
	err := b.worker.With(t.Context(), func(db pg.DB) error {
		ts, err := tenants.Creating(t.Context(), db)
		for _, t := range ts {
			got = append(got, t.Name)
		}
		return err
	})
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v, difference %s", err, diff)
	}
}

func TestWaitActive(t *testing.T) {
	b := setup(t)
	acme := b.mustCreate("acme")
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := tenants.WaitActive(short, b.app, acme.No); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody works on it: %v", err)
	}
	done := make(chan error, 1)
	var got tenants.Tenant
	go func() {
		var err error
		got, err = tenants.WaitActive(t.Context(), b.app, acme.No)
		done <- err
	}()
	b.provision(acme.No)
	if err := b.activate(acme.No); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || got.State != tenants.StateActive || got.Epoch != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
}
