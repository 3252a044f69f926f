package provenance_test

import (
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

// bundle is one tenant with real keys, and two processes' directories.
type bundle struct {
	t                 *testing.T
	app, worker, root *pg.Pool
	tenant            memd.TenantNo
	keys              *shred.Keys
	a, b              *provenance.Directory
}

func setup(t *testing.T) *bundle {
	t.Helper()
	d := pgtest.Database(t)
	b := &bundle{
		t: t, app: d.Open(pg.Config{URL: d.URL("memd_app"), MaxConns: 24}), worker: d.Pool("memd_worker"), root: d.Pool(""),
		a: provenance.New(memd.SystemClock{}), b: provenance.New(memd.SystemClock{}),
	}
	b.sudo(`INSERT INTO memd.tenants (name, state, policy, created_at, updated_at) VALUES ('acme', 1, '{}', now(), now());
		UPDATE memd.tenants SET state = 2`)
	b.tenant = 1
	b.keys = shred.NewKeys(b.tree())
	return b
}

// tree is the tenant's key tree; the same seed gives the same tree again.
func (b *bundle) tree(punctured ...shred.Path) *shred.Tree {
	b.t.Helper()
	t, err := shred.NewTree(b.tenant, &repeat{})
	if err == nil && len(punctured) > 0 {
		t, err = t.Next(punctured)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return t
}

// repeat is a source of "random" bytes that is the same each time.
type repeat struct{ n byte }

func (r *repeat) Read(p []byte) (int, error) {
	for i := range p {
		r.n++
		p[i] = r.n
	}
	return len(p), nil
}

func (b *bundle) sudo(sql string) {
	b.t.Helper()
	b.must(b.root.With(b.t.Context(), func(db pg.DB) error {
		_, err := db.Exec(b.t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		return err
	}))
}

func (b *bundle) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) count(sql string) (n int) {
	b.t.Helper()
	b.must(b.root.With(b.t.Context(), func(db pg.DB) error { return db.QueryRow(b.t.Context(), sql).Scan(&n) }))
	return n
}

func user(id string) memd.Scope { return memd.Scope{App: "app", UserID: id} }

func want(id, session string) provenance.Want {
	return provenance.Want{Scope: user(id), Session: session}
}

func (b *bundle) admit(d *provenance.Directory, wants ...provenance.Want) (cs []memd.Contribution, err error) {
	err = b.app.With(b.t.Context(), func(db pg.DB) (err error) {
		cs, err = d.Admit(b.t.Context(), db, b.keys, wants)
		return err
	})
	return cs, err
}

func (b *bundle) mustAdmit(d *provenance.Directory, wants ...provenance.Want) []memd.Contribution {
	b.t.Helper()
	cs, err := b.admit(d, wants...)
	b.must(err)
	return cs
}

func (b *bundle) find(d *provenance.Directory, wants ...provenance.Want) []memd.Contribution {
	b.t.Helper()
	var cs []memd.Contribution
	b.must(b.app.With(b.t.Context(), func(db pg.DB) (err error) {
		cs, err = d.Find(b.t.Context(), db, b.keys, wants)
		return err
	}))
	return cs
}

// forget does to the directory what an erasure does: the user's sessions become
// stubs with tombstones, the number is retired, and what came before is refused.
func (b *bundle) forget(id string, now time.Time) {
	b.t.Helper()
	ref := b.keys.UserRef("app", id)
	b.must(b.worker.InTx(b.t.Context(), func(tx pgx.Tx) error {
		numbers, err := provenance.AllSubjects(b.t.Context(), tx, b.tenant, ref)
		if err != nil {
			return err
		}
		refs, err := provenance.SessionRefs(b.t.Context(), tx, b.tenant, numbers)
		if err != nil {
			return err
		}
		for _, r := range refs {
			_, err := tx.Exec(b.t.Context(), `INSERT INTO memd.tombstones (tenant_no, kind, ref, changed_xid, recorded_at) VALUES ($1, 1, $2, 1, $3)`, b.tenant, r[:], now)
			if err != nil {
				return err
			}
		}
		if _, err := provenance.ForgetSessions(b.t.Context(), tx, b.tenant, numbers, 0); err != nil {
			return err
		}
		if err := provenance.Retire(b.t.Context(), tx, b.tenant, numbers, now); err != nil {
			return err
		}
		_, err = tx.Exec(b.t.Context(), `INSERT INTO memd.fences VALUES ($1, $2, 3, $3, $4, $3, $3)
			ON CONFLICT (tenant_no, user_ref) DO UPDATE SET erased_before = excluded.erased_before`, b.tenant, ref[:], now, uuid.New())
		return err
	}))
}

func (b *bundle) number(generation, counter int64) memd.Number {
	b.t.Helper()
	n, err := memd.NewNumber(generation, counter)
	b.must(err)
	return n
}

func random() string { return fmt.Sprintf("user-%s", rand.Text()) }
