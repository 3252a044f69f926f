package erasure_test

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/fault"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/ledger"
)

// outside is a store outside memd, and a witness, that a broken erasure calls.
type outside struct{ fuse *fault.Fuse }

// EraseAll implements erasure.Targets.
func (o outside) EraseAll(context.Context, *pg.Pool, memd.TenantNo, purge.Order, purge.Request) ([]purge.Ack, error) {
	return nil, fault.Call(o.fuse, fault.PurgeCall, func() error { return nil })
}

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

// runnerBehind is a runner with all its parts behind a fuse.
func (w *sweep) runnerBehind(ctx context.Context, fuse *fault.Fuse, pool *pg.Pool, folder ledger.Ledger) (*erasure.Runner, error) {
	log := slog.New(slog.DiscardHandler)
	kms, ledgers := fault.KMS(fuse, w.identity(kmsemu.Worker)), fault.Ledgers(fuse, []ledger.Ledger{folder})
	rotator, err := shred.NewRotator(shred.RotatorConfig{
		Pool: pool, Worker: kms, Shredder: fault.KMS(fuse, w.identity(kmsemu.Shredder)),
		Ledgers: ledgers, Clock: memd.SystemClock{}, Logger: log,
		Sample: func(ctx context.Context, _ memd.TenantNo, k *shred.Keys) error {
			return pool.With(ctx, func(db pg.DB) error { return memory.Sample(ctx, db, k) })
		},
	})
	if err != nil {
		return nil, err
	}
	var installation uuid.UUID
	err = w.owner.With(ctx, func(db pg.DB) (err error) {
		installation, err = provenance.Installation(ctx, db)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &erasure.Runner{
		Pool: pool, Rotator: rotator, Clock: memd.SystemClock{}, Logger: log,
		Parts: erasure.Parts{
			Targets: outside{fuse}, Verifier: outside{fuse},
			Receipts: lateIssuer{receipts.SignerConfig{
				Pool: pool, KMS: kms, Ledger: ledger.Mirror(ledgers), Installation: installation,
			}},
		},
	}, nil
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
func (w *sweep) acceptWhole(p people, session string) erasure.Job {
	w.t.Helper()
	no := time.Duration(0)
	c := erasure.Caller{Tenant: p.tenant.No, Epoch: p.tenant.Epoch, Wait: &no}
	var r erasure.Report
	var err error
	if session == "" {
		r, err = w.a.Erasure.ForgetUser(w.t.Context(), c, app, "alice", uuid.New())
	} else {
		r, err = w.a.Erasure.ForgetSession(w.t.Context(), c, app, "alice", session, uuid.New())
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return r.Job
}
