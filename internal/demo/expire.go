package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// expire has the oldest month of acme's go, by a policy, and does not touch
// globex, whose policy keeps all.
func (d *demo) expire(ctx context.Context) error {
	oldest, current := d.expired(), d.months[len(d.months)-1]
	keep := int32(current - oldest)
	d.section("Acme keeps %d months, this one included: %s is over", keep, oldest)
	retention := &memdv1.Retention{Months: &keep}
	_, err := d.operator.Admin.SetPolicy(ctx, &memdv1.SetPolicyRequest{
		Tenant: d.acme.name, Policy: &memdv1.Policy{SessionRetention: retention, MemoryRetention: retention},
	})
	if err != nil {
		return fmt.Errorf("setting a policy: %w", err)
	}
	plan, err := d.operator.Erasure.PlanRetention(ctx, &memdv1.PlanRetentionRequest{Tenant: d.acme.name})
	if err != nil {
		return fmt.Errorf("planning: %w", err)
	}
	due, kept := 0, []string{}
	for _, e := range plan.GetExpiries() {
		if e.GetKept() != memdv1.KeptReason_KEPT_REASON_UNSPECIFIED {
			kept = append(kept, e.GetMonth())
			continue
		}
		due++
		if e.GetMonth() != oldest.String() {
			due = -len(plan.GetExpiries())
		}
		d.show("due: %s of %s, %d rows", strings.ToLower(strings.TrimPrefix(e.GetDataClass().String(), "DATA_CLASS_")), e.GetMonth(), e.GetRows())
	}
	slices.Sort(kept)
	d.check(due == 2 && len(kept) > 0, "The plan names that month alone, conversations and memories, and changes nothing",
		"kept because they are in the window: %s", orNothing(slices.Compact(kept)))
	before, err := d.live.inMonths(ctx, d.acme.tenant, d.months)
	if err != nil {
		return err
	}
	switch d.c.Instead {
	case DoNothing:
		d.show("and nobody does anything")
	case DeleteRows:
		if err := d.live.deleteMonth(ctx, d.acme.tenant, oldest); err != nil {
			return err
		}
		d.show("and its rows are deleted")
	default:
		if d.month, err = d.runRetention(ctx); err != nil {
			return err
		}
	}
	after, err := d.live.inMonths(ctx, d.acme.tenant, d.months)
	if err != nil {
		return err
	}
	versions, err := d.versions(ctx, d.acme)
	if err != nil {
		return err
	}
	enabled, _ := active(versions)
	d.check(before[oldest] > 0 && after[oldest] == 0 && d.month.GetKey().GetKmsVersion() != "" && enabled == 1 &&
		after[d.months[1]] == before[d.months[1]] && before[d.months[1]] > 0,
		"It goes: first its key, then its rows, and no other month",
		"rows of %s: %d before, %d now; of %s: %d and %d; key version destroyed: %s; enabled: %d, not one a month",
		oldest, before[oldest], after[oldest], d.months[1], before[d.months[1]], after[d.months[1]], short(d.month.GetKey().GetKmsVersion()), enabled)
	_, err = d.acme.api.Memory.Add(ctx, &memdv1.AddRequest{Rows: d.acme.rows(d.talk("owen-2025-01-pressure"))})
	reason := memdv1.Reason_REASON_UNSPECIFIED
	if err != nil {
		reason = d.c.Reason(err)
	}
	d.check(reason == memdv1.Reason_REASON_MONTH_EXPIRED, "Nothing can be stored into it again", "Add of a conversation of Owen's: %s", name(reason))
	return nil
}

// runRetention expires what is due, waits until it is gone, and returns the
// report of the last.
func (d *demo) runRetention(ctx context.Context) (*memdv1.Report, error) {
	run, err := d.operator.Erasure.RunRetention(ctx, &memdv1.RunRetentionRequest{Tenant: d.acme.name})
	if err != nil {
		return nil, fmt.Errorf("expiring a month: %w", err)
	}
	var report *memdv1.Report
	for _, e := range run.GetExpiries() {
		if e.GetKept() != memdv1.KeptReason_KEPT_REASON_UNSPECIFIED {
			continue
		}
		if report, err = d.await(ctx, d.acme, e.GetRequestId()); err != nil {
			return nil, err
		}
	}
	return report, nil
}

// askAgain is how often an erasure is asked about that has no caller who waits.
const askAgain = 50 * time.Millisecond

// await waits until an erasure of a customer is done.
func (d *demo) await(ctx context.Context, c *customer, request string) (*memdv1.Report, error) {
	tick := time.NewTicker(askAgain)
	defer tick.Stop()
	for {
		got, err := d.operator.Erasure.GetErasure(ctx, &memdv1.GetErasureRequest{Tenant: c.name, RequestId: request})
		if err != nil {
			return nil, fmt.Errorf("reading a report: %w", err)
		}
		if got.GetReport().GetState() >= memdv1.ErasureState_ERASURE_STATE_DONE {
			return got.GetReport(), nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), fmt.Errorf("an erasure of %s is %s", c.name, got.GetReport().GetState()))
		case <-tick.C:
		}
	}
}

const sqlMonth = `
SELECT (SELECT count(*) FROM memd.memories WHERE tenant_no = $1 AND month = $2)
  + (SELECT count(*) FROM memd.session_events WHERE tenant_no = $1 AND month = $2)
  + (SELECT count(*) FROM memd.session_state WHERE tenant_no = $1 AND month = $2)
  + (SELECT count(*) FROM memd.artifacts WHERE tenant_no = $1 AND month = $2)`

// inMonths counts a tenant's rows of each month.
func (w *witness) inMonths(ctx context.Context, tenant memd.TenantNo, months []memd.Month) (map[memd.Month]int64, error) {
	out := map[memd.Month]int64{}
	for _, m := range months {
		var n int64
		if err := w.conn.QueryRow(ctx, sqlMonth, tenant, m).Scan(&n); err != nil {
			return nil, fmt.Errorf("counting a month's rows: %w", err)
		}
		out[m] = n
	}
	return out, nil
}

// What a program does that knows nothing of keys.
var sqlDeleteMonth = []string{
	`DELETE FROM memd.memories WHERE tenant_no = $1 AND month = $2`,
	`DELETE FROM memd.session_events WHERE tenant_no = $1 AND month = $2`,
	`DELETE FROM memd.session_state WHERE tenant_no = $1 AND month = $2`,
	`DELETE FROM memd.artifact_chunks c USING memd.artifact_versions v WHERE v.tenant_no = $1 AND v.month = $2
       AND (c.tenant_no, c.subject_no, c.session_no, c.version_id) = (v.tenant_no, v.subject_no, v.session_no, v.version_id)`,
	`DELETE FROM memd.artifact_versions WHERE tenant_no = $1 AND month = $2`,
	`DELETE FROM memd.artifacts WHERE tenant_no = $1 AND month = $2`,
}

func (w *witness) deleteMonth(ctx context.Context, tenant memd.TenantNo, month memd.Month) error {
	for _, sql := range sqlDeleteMonth {
		if _, err := w.conn.Exec(ctx, sql, tenant, month); err != nil {
			return fmt.Errorf("deleting a month's rows: %w", err)
		}
	}
	return nil
}

// soon is what a call waits for that has to be done here at once.
func soon() *durationpb.Duration { return durationpb.New(time.Minute) }
