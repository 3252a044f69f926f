package erasure

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/tenants"
)

// Receipts signs what an erasure did: a receipts.Issuer. It is safe to repeat,
// and one request has one receipt of each stage: the transaction that makes the
// erasure done, or final, follows it.
type Receipts interface {
	Issue(ctx context.Context, tenant memd.TenantNo, r receipts.Receipt) (receipts.Bundle, error)
}

const sqlReadCommitment = `SELECT commitment FROM memd.erasures WHERE tenant_no = @tenant AND request_id = @id`

// receipt issues the receipt of a stage. An erasure that was accepted without a
// commitment has none.
func (r *Runner) receipt(ctx context.Context, j Job, stage receipts.Stage) error {
	if r.Receipts == nil {
		return nil
	}
	var rec receipts.Receipt
	var given bool
	err := r.Pool.With(ctx, func(db pg.DB) (err error) {
		rec, given, err = r.evidence(ctx, db, j, stage)
		return err
	})
	if err != nil || !given {
		return err
	}
	if _, err := r.Receipts.Issue(ctx, j.Tenant, rec); err != nil {
		return fmt.Errorf("issuing a receipt: %w", err)
	}
	return nil
}

var receiptKinds = map[Kind]receipts.Kind{
	KindUser: receipts.User, KindSession: receipts.Session, KindContent: receipts.SessionContent, KindTenant: receipts.Tenant,
	KindMonth: receipts.Month,
}

// commitmentOf returns what the receipts of an erasure commit to; nil when it was
// accepted without. Of a month there is nothing to hide: its receipt tells class and
// month, and commits to the tenant under a salt of zeros, which everybody has.
func commitmentOf(ctx context.Context, db pg.DB, j Job, tenant string) ([]byte, error) {
	if j.Kind == KindMonth {
		c := receipts.Commit(receipts.Salt{}, tenant, "", "", "")
		return c[:], nil
	}
	var commitment []byte
	if err := db.QueryRow(ctx, sqlReadCommitment, pg.Args{"tenant": j.Tenant, "id": j.ID}).Scan(&commitment); err != nil {
		return nil, fmt.Errorf("reading a commitment: %w", err)
	}
	return commitment, nil
}

// evidence collects from the journal what a receipt tells. It names nobody.
func (r *Runner) evidence(ctx context.Context, db pg.DB, j Job, stage receipts.Stage) (rec receipts.Receipt, given bool, err error) {
	steps, err := readSteps(ctx, db, j.Tenant, j.ID)
	if err != nil {
		return rec, false, err
	}
	t, err := tenants.GetByNo(ctx, db, j.Tenant)
	if err != nil {
		return rec, false, err
	}
	commitment, err := commitmentOf(ctx, db, j, t.Name)
	if err != nil || len(commitment) != len(rec.Commitment) {
		return rec, false, err
	}
	now := r.Clock.Now()
	rec = receipts.Receipt{
		Commitment: receipts.Digest(commitment), Kind: receiptKinds[j.Kind], RequestID: j.ID, Stage: stage, Tenant: t.Name,
		Stores: storesOf(j, steps), Checks: checksOf(steps[StepCheck].Notes.Checks),
		Times: receipts.Times{
			Accepted: j.AcceptedAt, Erased: timeOf(steps[StepVerify].Finished), Fenced: timeOf(steps[j.Kind.first()].Finished),
		},
		Sweep: receipts.Sweep{State: receipts.SweepPlanned, PlannedAt: now.Add(t.Policy.IngestionDelay)},
		Residuals: []receipts.Residual{
			{Kind: receipts.ResidualWAL, Provider: receipts.ProviderMemd, RetentionDays: -1},
			{Kind: receipts.ResidualBackups, Provider: receipts.ProviderOther, RetentionDays: -1},
		},
	}
	if j.Kind == KindMonth {
		rec.Expired = &receipts.Expired{Class: receipts.RetentionClass(j.Class.String()), Month: j.Month.String()}
	}
	if j.Kind != KindTenant { // Whose index key goes with all the others.
		rec.Residuals = append(rec.Residuals, receipts.Residual{Kind: receipts.ResidualIndexKey, Provider: receipts.ProviderMemd, RetentionDays: -1})
	}
	if e := t.Policy.Embedder; e == tenants.EmbedderOpenAI {
		rec.Residuals = append(rec.Residuals, receipts.Residual{Kind: receipts.ResidualEmbedder, Provider: receipts.Provider(e), RetentionDays: -1})
	}
	_, downloaded := exportsOf(steps)
	rec.Residuals = append(rec.Residuals, downloaded...)
	if stage == receipts.Final {
		rec.Checks = checksOf(steps[StepRecheck].Notes.Checks)
		rec.Times.Swept = timeOf(steps[StepSweep].Finished)
		rec.Sweep = receipts.Sweep{State: receipts.SweepDone, PlannedAt: j.SweepAt, RowsFound: steps[StepSweep].Notes.Found.total()}
	}
	if r.Verifier == nil {
		rec.NotRun = append(rec.NotRun, receipts.NotRun{What: string(receipts.OmittedVerifier), Reason: "not_configured"})
	}
	for _, c := range storeCounts(j, steps) {
		if c.After < 0 {
			return rec, false, fmt.Errorf("%s were not counted, and a receipt would say that there are none: %w", c.Store, errSurvivors)
		}
	}
	keysOf(&rec, steps, now)
	compactionOf(&rec, steps)
	if rec.Fallen, err = countFallen(ctx, db, j); err != nil {
		return rec, false, err
	}
	if j.Kind == KindTenant {
		if rec.Approvals, err = approvalsOf(ctx, db, j); err != nil {
			return rec, false, err
		}
	}
	if rec.Holds, err = holdsOf(ctx, db, j); err != nil {
		return rec, false, err
	}
	acks, err := purge.Acks(ctx, db, j.Tenant, j.ID)
	if err != nil {
		return rec, false, err
	}
	rec.Purges = purgesOf(acks)
	return rec, true, nil
}

// receiptStores are the receipts' words for what the report has other words for.
var receiptStores = map[string]receipts.StoreName{
	"vectors": "embeddings", "memories_derived": "derived_memories", storeHeads: "sessions", "sessions": "subjects",
}

func storesOf(j Job, steps map[Step]stepRow) []receipts.Store {
	var out []receipts.Store
	for _, c := range storeCounts(j, steps) {
		if c.Store == "sessions" {
			continue // The directory's; those that were kept are a store's.
		}
		name, ok := receiptStores[c.Store]
		if !ok {
			name = receipts.StoreName(c.Store)
		}
		out = append(out, receipts.Store{Name: name, Before: c.Before, After: c.After})
	}
	return out
}

func checksOf(checks []memd.Check) []receipts.Check {
	var out []receipts.Check
	for _, c := range checks {
		if c.Name == checkVerifier {
			continue // An omission, not a check.
		}
		out = append(out, receipts.Check{
			Name: receipts.CheckName(c.Name), Result: receipts.Result(c.Result.String()), Reason: receipts.Reason(c.Reason),
			ControlBefore: c.ControlBefore, Count: c.CountAfter, DurationMicros: c.Duration.Microseconds(),
			Scanned: c.Scanned, Unscanned: c.Unscanned,
		})
	}
	return out
}

// keysOf tells which key went, or why none did.
func keysOf(rec *receipts.Receipt, steps map[Step]stepRow, now time.Time) {
	rot := steps[StepRotate].Notes.Rotation
	if end := steps[StepDestroy].Notes.Rotation; rot == nil {
		rot = end
	}
	reason := receipts.Reason("never_seen")
	if rot != nil {
		state := receipts.DestroyScheduled
		if !now.Before(rot.DestroyDue) {
			state = receipts.Destroyed
		}
		rec.Key = &receipts.Key{Version: rot.OldVersion, State: state, UnreadableAt: rot.DestroyedAt, DestroyedAt: rot.DestroyDue}
		reason = "not_applicable" // A purged tenant has no tree after the last.
		before, after := digestOf(rot.TreeBefore), digestOf(rot.TreeAfter)
		if !before.IsZero() && !after.IsZero() {
			rec.Tree = &receipts.Trees{
				Before: receipts.Tree{Digest: before, Epoch: rot.Epoch - 1}, After: receipts.Tree{Digest: after, Epoch: rot.Epoch},
			}
		}
	} else if rec.Kind == receipts.SessionContent {
		reason = "policy"
	}
	if rec.Key == nil || rec.Tree == nil {
		rec.NotRun = append(rec.NotRun, receipts.NotRun{What: string(receipts.OmittedRotation), Reason: reason})
	}
}

func digestOf(text string) (d receipts.Digest) {
	if b, err := hex.DecodeString(text); err == nil && len(b) == len(d) {
		d = receipts.Digest(b)
	}
	return d
}

func purgesOf(acks []purge.Ack) []receipts.Purge {
	one := map[[16]byte]*receipts.Purge{}
	var order [][16]byte
	for _, a := range acks {
		p, ok := one[a.Target]
		if !ok {
			p = &receipts.Purge{Target: a.Target, Class: receipts.Class(a.Order.String()), Required: a.Required}
			one[a.Target] = p
			order = append(order, a.Target)
		}
		p.Attempts += int64(a.Tries)
		switch a.Op {
		case purge.OpCount:
			p.Before = a.Before
		case purge.OpErase:
			p.Erased = a.Erased
		case purge.OpVerify:
			p.After = a.After
		}
		if a.Op == purge.OpCount {
			continue // Counting is no deed.
		}
		p.Code, p.Result, p.ResidualUntil = receipts.PurgeCode(a.Code), receipts.PurgeFailed, a.ResidualUntil
		if a.Acknowledged {
			p.Result, p.AcknowledgedAt = receipts.Acknowledged, a.At
		}
	}
	out := make([]receipts.Purge, len(order))
	for i, id := range order {
		out[i] = *one[id]
		if out[i].Result == "" {
			out[i].Result, out[i].Reason = receipts.PurgeNotRun, "target_unavailable"
		}
	}
	return out
}

const sqlCountFallen = `SELECT count(*) FROM memd.erasure_fallen WHERE tenant_no = @tenant AND request_id = @id`

func countFallen(ctx context.Context, db pg.DB, j Job) (n int64, err error) {
	if err = db.QueryRow(ctx, sqlCountFallen, pg.Args{"tenant": j.Tenant, "id": j.ID}).Scan(&n); err != nil {
		return 0, fmt.Errorf("counting fallen rows: %w", err)
	}
	return n, nil
}
