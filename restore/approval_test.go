package restore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/restore"
	"forgettable.dev/memd/tenants"
)

// An approval that was not spent is void after a restore, and a purge that was
// accepted on one that was spent is carried out: both were acknowledged.
func TestDrill_ApprovalsAndPurges(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"))
	gone, leaving := w.Tenant("gone", memdtest.Policy()), w.Tenant("leaving", memdtest.Policy())
	snapshot := w.DB.Snapshot()
	w.Approve(w.srv, gone.No)
	w.Approve(w.srv, leaving.No)
	w.StopWorker()
	no, request := time.Duration(0), uuid.New()
	if _, err := w.srv.Erasure.DeleteTenant(t.Context(), erasure.Caller{KeyID: uuid.New(), Wait: &no}, "gone", "gone", request); err != nil {
		t.Fatal(err)
	}
	w.flush()

	w.DB.Rollback(snapshot)
	if report, err := restore.Run(t.Context(), w.config()); err != nil || report.Erasures == 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	if n := w.number(`SELECT count(*) FROM memd.tenants WHERE name = 'leaving' AND state = $1`, int16(tenants.StateDrained)); n != 1 {
		t.Error("the tenant is not drained any more")
	}
	if n := w.number(`SELECT count(*) FROM memd.approvals WHERE tenant_no = $1 AND request_id IS NULL AND voided_at IS NOT NULL`, leaving.No); n != 1 {
		t.Errorf("%d approvals are void", n)
	}
	if n := w.number(`SELECT count(*) FROM memd.approvals WHERE tenant_no = $1 AND request_id = $2 AND voided_at IS NULL`, gone.No, request); n != 1 {
		t.Errorf("%d approvals are spent on the purge", n)
	}
	if n := w.number(`SELECT count(*) FROM memd.tenant_transitions WHERE tenant_no = $1`, gone.No); n != 4 {
		t.Errorf("%d entries in the log, not activated, suspended, drained, purging", n)
	}
	w.reopened()
	_, err := w.srv.Erasure.DeleteTenant(t.Context(), erasure.Caller{KeyID: uuid.New(), Wait: &no}, "leaving", "leaving", uuid.New())
	if !errors.Is(err, memd.ErrNotApproved) {
		t.Errorf("a void approval: %v", err)
	}
}
