package erasure_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/fault"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/ledger"
	"forgettable.dev/memd/tenants"
)

// Making a tenant is broken off at every statement, call of the key service and
// ledger operation. A worker that starts later finishes each of them: with one key,
// one version and one tree, whatever was left behind; and whoever asks again gets
// the tenant that they asked for.
func TestWorker_FinishesTenantsThatAreHalfMade(t *testing.T) {
	w := newSweep(t)
	type half struct {
		t    tenants.Tenant
		what string
	}
	var all []half
	create := func(name string) (made tenants.Tenant) {
		t.Helper()
		err := w.app.With(t.Context(), func(db pg.DB) (err error) {
			made, err = tenants.Create(t.Context(), db, spoken, name, "for people", memdtest.Policy())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	points := map[string]int{}
	for _, mode := range []fault.Mode{fault.CrashBefore, fault.CrashAfter} {
		for k := 1; ; k++ {
			made := create(fmt.Sprintf("half-%d-%d", mode, k))
			w.fuse.Arm(k, mode)
			err := w.provisionBroken(made)
			kind, blown := w.fuse.Blown()
			w.fuse.Disarm()
			all = append(all, half{made, fmt.Sprintf("%v %s %d", mode, kind, k)})
			if !blown {
				if err != nil {
					t.Fatal(err)
				}
				break
			}
			points[kind]++
		}
	}
	t.Logf("%d half-made tenants, broken off at %v", len(all), points)
	for _, kind := range []string{fault.Statement, fault.KMSCall, fault.Ledger} {
		if points[kind] == 0 {
			t.Errorf("none was broken off at a %s", kind)
		}
	}
	w.StartWorker()
	for _, h := range all {
		w.within(time.Minute, h.what+" is active", func() bool {
			return w.count(`SELECT state FROM memd.tenants WHERE tenant_no = $1`, h.t.No) == int(tenants.StateActive)
		})
		if again := create(h.t.Name); again.No != h.t.No || again.State != tenants.StateActive || again.Epoch != 1 {
			t.Errorf("%s: asked for again it is %+v", h.what, again)
		}
		for sql, want := range map[string]int{
			`SELECT count(*) FROM memd.key_trees WHERE tenant_no = $1`:                           1,
			`SELECT count(*) FROM memd.tenant_keys WHERE tenant_no = $1`:                         1,
			`SELECT count(*) FROM memd.tenant_transitions WHERE tenant_no = $1 AND to_state = 2`: 1,
		} {
			if n := w.count(sql, h.t.No); n != want {
				t.Errorf("%s: %d of %q", h.what, n, sql)
			}
		}
		versions, err := w.identity(kmsemu.Worker).List(t.Context(), w.strings(`SELECT kms_key FROM memd.tenant_keys WHERE tenant_no = $1`, h.t.No)[0])
		if err != nil || len(versions) != 1 || versions[0].State != shred.VersionEnabled {
			t.Errorf("%s: versions %+v, %v", h.what, versions, err)
		}
		p := memdtest.Policy()
		of := memory.Tenant{No: h.t.No, Epoch: 1, Dimension: p.Dimension, Embedder: p.Embedder, Format: memory.VectorFormat(p.VectorFormat)}
		w.addTo(of, said("alice", "s1", h.what))
		if found := w.textsOf(of, user("alice")); len(found) != 1 {
			t.Errorf("%s: alice has %q", h.what, found)
		}
	}
}

// provisionBroken does what a worker does for a tenant that was announced, behind
// the fuse.
func (w *sweep) provisionBroken(made tenants.Tenant) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	pool, err := pg.Open(ctx, pg.Config{URL: w.wire.URL, MaxConns: 2})
	if err != nil {
		return err
	}
	defer pool.Close()
	folder, err := ledger.OpenFolder(w.Ledger)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	var installation uuid.UUID
	err = w.owner.With(ctx, func(db pg.DB) (err error) {
		installation, err = provenance.Installation(ctx, db)
		return err
	})
	if err != nil {
		return err
	}
	err = shred.Provision(ctx, shred.ProvisionConfig{
		Pool: pool, KMS: fault.KMS(w.fuse, w.identity(kmsemu.Worker)), Ledgers: fault.Ledgers(w.fuse, []ledger.Ledger{folder}),
		Installation: installation, DestroyDelay: made.Policy.DestroyDelay, Clock: memd.SystemClock{},
	}, made.No)
	if err != nil {
		return err
	}
	return pool.With(ctx, func(db pg.DB) error { return tenants.Activate(ctx, db, time.Now(), made.No) })
}
