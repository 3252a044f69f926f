package erasure_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/fault"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/ledger"
)

// orphan is a number that is not in the directory: rows of it are found by the
// tenant alone.
const orphan = 999

// outside is a witness that a broken erasure calls.
type outside struct{ fuse *fault.Fuse }

// Draw implements erasure.Verifier.
func (o outside) Draw(context.Context, memd.Examination) (p memd.Probes, err error) {
	err = fault.Call(o.fuse, fault.VerifierCall, func() error { return nil })
	p.Sealed, p.Before = []byte("probes"), map[string]int64{"memories": 1}
	return p, err
}

// Verify implements erasure.Verifier.
func (o outside) Verify(_ context.Context, _ memd.Examination, p memd.Probes) (checks []memd.Check, err error) {
	err = fault.Call(o.fuse, fault.VerifierCall, func() error { return nil })
	return []memd.Check{{Name: "memories", Result: memd.ResultPass, ControlBefore: p.Before["memories"]}}, err
}

// runnerBehind is a runner with all its parts behind a fuse. The caller closes
// its purge.Caller.
func (w *sweep) runnerBehind(ctx context.Context, fuse *fault.Fuse, pool *pg.Pool, folder ledger.Ledger) (*erasure.Runner, *purge.Caller, error) {
	log := slog.New(slog.DiscardHandler)
	kms, ledgers := fault.KMS(fuse, w.identity(kmsemu.Worker)), fault.Ledgers(fuse, []ledger.Ledger{folder})
	rotator, err := shred.NewRotator(shred.RotatorConfig{
		Pool: pool, Worker: kms, Shredder: fault.KMS(fuse, w.identity(kmsemu.Shredder)),
		Ledgers: ledgers, Clock: memd.SystemClock{}, Logger: log,
		Sample: func(ctx context.Context, _ memd.TenantNo, k *shred.Keys) error {
			return pool.With(ctx, func(db pg.DB) error {
				return errors.Join(memory.Sample(ctx, db, k), sessions.Sample(ctx, db, k), artifacts.Sample(ctx, db, k))
			})
		},
	})
	if err != nil {
		return nil, nil, err
	}
	keys := func(ctx context.Context, tenant memd.TenantNo) (*shred.Keys, error) {
		return headKeys(ctx, pool, kms, tenant)
	}
	caller, err := purge.NewCaller(purge.Config{
		Keys: func(ctx context.Context, tenant memd.TenantNo, use func(*shred.Keys) error) error {
			k, err := keys(ctx, tenant)
			if err != nil {
				return err
			}
			defer k.Drop()
			return use(k)
		},
		AllowPrivate: true, Tries: 2, RetryWait: time.Millisecond, MaxRetryWait: time.Millisecond,
	})
	if err != nil {
		return nil, nil, err
	}
	var installation uuid.UUID
	err = w.owner.With(ctx, func(db pg.DB) (err error) {
		installation, err = provenance.Installation(ctx, db)
		return err
	})
	if err != nil {
		caller.Close()
		return nil, nil, err
	}
	return &erasure.Runner{
		Pool: pool, Rotator: rotator, Clock: memd.SystemClock{}, Logger: log,
		Parts: erasure.Parts{
			Targets: caller, Verifier: outside{fuse}, Keys: keys,
			Receipts: lateIssuer{receipts.SignerConfig{
				Pool: pool, KMS: kms, Ledger: ledger.Mirror(ledgers), Installation: installation,
			}},
		},
	}, caller, nil
}

// headKeys opens the tree at the head of a tenant's line, each time anew.
func headKeys(ctx context.Context, pool *pg.Pool, kms shred.KMS, tenant memd.TenantNo) (*shred.Keys, error) {
	var key string
	var sealed []byte
	err := pool.With(ctx, func(db pg.DB) error {
		return db.QueryRow(ctx, `SELECT k.kms_key, t.sealed FROM memd.tenant_keys k JOIN memd.key_trees t USING (tenant_no, epoch)
			WHERE k.tenant_no = $1`, tenant).Scan(&key, &sealed)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, memd.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	tree, _, err := shred.OpenTree(ctx, kms, key, sealed)
	if err != nil {
		return nil, err
	}
	return shred.NewKeys(tree), nil
}

// lateIssuer opens the signer with each receipt, so that its calls are broken
// off as well.
type lateIssuer struct{ signing receipts.SignerConfig }

// Issue implements erasure.Receipts.
func (i lateIssuer) Issue(ctx context.Context, tenant memd.TenantNo, r receipts.Receipt) (receipts.Bundle, error) {
	signer, err := receipts.OpenSigner(ctx, i.signing)
	if err != nil {
		return receipts.Bundle{}, err
	}
	issuer := &receipts.Issuer{Pool: i.signing.Pool, Signer: signer, Ledger: i.signing.Ledger}
	return issuer.Issue(ctx, tenant, r)
}

// acceptWhole accepts as the API does, with all that a job remembers.
func (w *sweep) acceptWhole(p *people, what broken) erasure.Job {
	w.t.Helper()
	no := time.Duration(0)
	ctx, c, id := w.t.Context(), erasure.Caller{Tenant: p.tenant.No, Epoch: p.tenant.Epoch, Wait: &no}, uuid.New()
	var r erasure.Report
	var err error
	switch what.kind {
	case erasure.KindUser:
		r, err = w.a.Erasure.ForgetUser(ctx, c, app, "alice", id)
	case erasure.KindSession:
		r, err = w.a.Erasure.ForgetSession(ctx, c, app, "alice", "s1", id)
	case erasure.KindContent:
		r, err = w.a.Erasure.DeleteSession(ctx, c, app, "alice", "s1", false, id)
	case erasure.KindTenant:
		planted := w.plant(p.tenant, orphan, orphan, int(memd.OwnScope), "now()").String()
		p.labels = append(p.labels, planted, "orphan", strings.ReplaceAll(planted, "-", ""), "orphan")
		w.Approve(w.a, p.tenant.No)
		r, err = w.a.Erasure.DeleteTenant(ctx, c, p.name, "", id)
	case erasure.KindMonth:
		return w.age(p, what.class)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return r.Job
}
