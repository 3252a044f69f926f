package failures_test

// From the seeds.
//
//	no delete in the interface                     memdv1.MemoryService has Delete; ErasureService
//	derived data orphaned for want of provenance   derived_test.go
//	late re-ingestion restores deleted facts       came_back_test.go
//	a step that is not idempotent fails its retry  erasure.TestInvariant5_CrashSweep, _KilledWorkers
//	a receipt that leaks what was erased           AReportLeaksWhatWasErased;
//	                                               erasure.TestReport_NamesNobodyWhoWasForgottenSince
//	the wrong tenant, from a pasted id             wrong_owner_test.go
//	keys destroyed before deletion was verified    erasure.TestInvariant8_ASurvivorKeepsTheKeys
//	a row copied into another tenant decrypts      memory.TestService_copiedRowsDoNotOpen
//	automatic rotation decides which version       gcpkms.TestClient_RefusesAutomaticRotation,
//	  wraps                                        gcpkms.TestClient_WrongVersionInAnswer
//	the application may destroy keys               kmstest.Run, suite "permissions"
//	the key table is in the backup with the data   erasure.TestInvariant6And7_OldCopies
//	a cached key works after destruction           ACachedKeyWorksAfterDestruction
//	content in clear in logs and traces            ContentInLogsAndMetrics;
//	                                               memory.TestService_nothingInClear
//	artifacts stranded, their session gone first   artifacts.TestFailure_ArtifactsStrandedBecauseTheirSessionWentFirst
//	a restore resurrects erased users              restore.TestInvariant9_RestoreBringsNobodyBack
//
// Purges of tenants, user lists, scheduled jobs, webhooks and export links:
// offboarding_test.go.

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/node"
)

func TestFailure_seeds_AReportLeaksWhatWasErased(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	ids := c.add(said("alice-7731", "session-9924", "the words magnolia4410"), said("bob", "b1", "bob"))
	c.add(drawn(shared(), "the summary juniper5512", ids...))
	text := protojson.Format(c.forgetUser(0, "alice-7731"))
	for _, secret := range []string{"alice-7731", "session-9924", "magnolia4410", "juniper5512", ids[0]} {
		if strings.Contains(text, secret) {
			t.Errorf("the report holds %q:\n%s", secret, text)
		}
	}
	if !strings.Contains(text, ids[1]) {
		t.Error("and the surviving source is not named")
	}
}

func TestFailure_seeds_ACachedKeyWorksAfterDestruction(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	c.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	c.wants(user("alice"), "alice") // Both replicas hold the keys.
	month, err := memd.MonthOf(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	alice := []memd.Contribution{{Subject: 1<<40 | 1, Session: memd.OwnScope + 1}}
	held := map[*node.Server]func() error{}
	for _, srv := range []*node.Server{in.a, in.b} {
		k := in.Keys(srv, c.tenant)
		sealer, err := k.Row(month, alice)
		if err != nil {
			t.Fatal(err)
		}
		held[srv] = func() error {
			_, err := sealer.Seal([]byte("x"), nil)
			_, again := k.Row(month, alice)
			if errors.Is(err, memd.ErrStale) {
				return again
			}
			return err
		}
	}
	c.forgetUser(0, "alice")
	for srv, use := range held {
		if err := use(); !errors.Is(err, memd.ErrStale) {
			t.Errorf("what was cached before: %v", err)
		}
		if _, err := in.Keys(srv, c.tenant).Row(month, alice); !errors.Is(err, memd.ErrShredded) {
			t.Errorf("the keys of now: %v", err)
		}
	}
	c.wants(user("bob"), "bob")
}

func TestFailure_seeds_ContentInLogsAndMetrics(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	row := said("alice-7731", "session-9924", "the words magnolia4410")
	row.Metadata = map[string]string{"key-3381": "value-3382"}
	row.EventId = "event-6620"
	ids := c.add(row)
	c.add(drawn(shared(), "the summary juniper5512", ids...))
	c.wants(user("alice-7731"), "the words magnolia4410")
	// Refused and failing, in the service and in the database.
	row.Vector = []float32{1}
	if _, err := c.memory[0].Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{row}}); err == nil {
		t.Error("a wrong dimension was accepted")
	}
	row.Vector = vector()
	in.exec(`ALTER TABLE memd.memories ADD CONSTRAINT failing CHECK (version < 0) NOT VALID`)
	row.EventId = "event-6621"
	if _, err := c.memory[1].Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{row}}); err == nil {
		t.Error("a failing statement succeeded")
	}
	in.exec(`ALTER TABLE memd.memories DROP CONSTRAINT failing`)
	c.forgetSession(0, "alice-7731", "session-9924")
	c.refused(row, "SESSION_FORGOTTEN")
	c.forgetUser(1, "alice-7731")
	everything := in.Logs.String()
	for _, url := range in.urls {
		res, err := in.http.Get(url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err := errors.Join(err, res.Body.Close()); err != nil {
			t.Fatal(err)
		}
		everything += string(body)
	}
	if !strings.Contains(everything, "memd_rows_total") || !strings.Contains(everything, "erasure step done") || !strings.Contains(everything, "SQLSTATE") {
		t.Fatal("the logs and metrics are not there: nothing was searched")
	}
	for _, secret := range []string{"alice-7731", "session-9924", "magnolia4410", "juniper5512", "key-3381", "value-3382", "event-662"} {
		if i := strings.Index(everything, secret); i >= 0 {
			t.Errorf("%q is in the logs: %s", secret, everything[max(0, i-200):min(len(everything), i+100)])
		}
	}
}
