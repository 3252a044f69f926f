package failures_test

// Stores and tables that stand in an erasure's way.
//
//	tenant erasure aborts on one of 73 foreign keys:   TenantErasureAbortsOnAForeignKey
//	  breeze#4100
//	a disabled connector breaks the whole request:     ADisabledConnectorBreaksTheRequest
//	  fides#2048
//	vacuum of a large index takes ten hours:           NoIndexHasToBeVacuumed
//	  pgvector#450

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	"forgettable.dev/memd/eraser"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/memdtest"
)

// remains are the tables in which a purged tenant is still named, and by what.
var remains = []string{
	"approvals",        // who approved the purge
	"erasure_checks",   // what the witness found
	"erasure_steps",    // the journal
	"erasure_subjects", // that each subject was purged
	"erasures",
	"instance_epochs", // of processes that run
	"job_counters", "subject_counters",
	"key_trees", // under destroyed versions
	"punctures",
	"receipt_heads", "receipts",
	"rotations",
	"sessions", "subjects", // no ids: numbers that nobody gets again
	"tenant_keys", "tenant_transitions", "tenants", "tombstones",
}

func TestFailure_breeze_4100_TenantErasureAbortsOnAForeignKey(t *testing.T) {
	in := setup(t)
	c := in.customer("acme")
	ids := c.add(said("alice", "s1", "one"), said("alice", "s2", "two"), contributed("bob", "b1", "to all"))
	for range 8 { // Rows that hang on rows that hang on rows.
		ids = c.add(drawn(shared(), "of all", ids...))
	}
	for what, sql := range map[string]string{
		"that blocks a deletion": `SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND connamespace = 'memd'::regnamespace AND confdeltype <> 'c'`,
		"without an index of its own": `SELECT count(*) FROM pg_constraint k WHERE contype = 'f' AND confrelid = 'memd.memories'::regclass AND NOT EXISTS (
			SELECT FROM pg_index i WHERE i.indrelid = k.conrelid AND (i.indkey::int2[])[0:cardinality(k.conkey)-1] @> k.conkey)`,
	} {
		if n := in.count(sql); n != 0 {
			t.Errorf("%d foreign keys are of a kind %s", n, what)
		}
	}
	in.operators().purged("acme")
	for _, table := range in.texts(`SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_no'
		WHERE c.relnamespace = 'memd'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1`) {
		if n := in.count(`SELECT count(*) FROM memd.`+table+` WHERE tenant_no = $1`, c.tenant.No); n > 0 && !slices.Contains(remains, table) {
			t.Errorf("%d rows are left in %s", n, table)
		}
	}
}

// switched is a store outside memd that can be switched off.
type switched struct {
	off    atomic.Bool
	erased atomic.Int64
}

// Count implements eraser.Eraser.
func (s *switched) Count(context.Context, eraser.Request) (int64, error) { return 1, nil }

// Erase implements eraser.Eraser.
func (s *switched) Erase(context.Context, eraser.Request) (eraser.Result, error) {
	return eraser.Result{Erased: s.erased.Add(1)}, nil
}

// Verify implements eraser.Eraser.
func (s *switched) Verify(context.Context, eraser.Request) (int64, error) { return 0, nil }

func (s *switched) serve(t *testing.T, token string) string {
	t.Helper()
	handler, err := eraser.Handler(s, eraser.WithToken(token))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.off.Load() {
			http.Error(w, "disabled", http.StatusServiceUnavailable)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

// One store that is switched off delays the end and its receipt. It keeps neither
// memd's own rows nor the other stores from being erased.
func TestFailure_fides_2048_ADisabledConnectorBreaksTheRequest(t *testing.T) {
	const token = "a-token-of-the-stores"
	in := setup(t, memdtest.WithPrivateTargets())
	c := in.customer("acme")
	targets := memdv1connect.NewTargetServiceClient(in.client(in.urls[0], in.Key(auth.Installation, auth.Operator)))
	stores := map[string]*switched{"archive": {}, "analytics": {}}
	for name, s := range stores {
		s.off.Store(name == "analytics")
		_, err := targets.CreateTarget(t.Context(), &memdv1.CreateTargetRequest{
			Tenant: "acme", Name: name, Kind: memdv1.TargetKind_TARGET_KIND_CONNECT, Url: s.serve(t, token), Secret: token,
			AllowPrivate: true, Timeout: durationpb.New(time.Second),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	c.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	request := &memdv1.ForgetUserRequest{App: app, UserId: "alice", RequestId: uuid.NewString(), Wait: durationpb.New(0)}
	if _, err := c.eraser[0].ForgetUser(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	report := func() *memdv1.Report {
		res, err := c.eraser[1].GetErasure(t.Context(), &memdv1.GetErasureRequest{RequestId: request.GetRequestId()})
		if err != nil {
			t.Fatal(err)
		}
		return res.GetReport()
	}
	in.within("the disabled store is told", func() bool { return report().GetErasure().GetFailure() != "" })
	if r := report(); r.GetState() != memdv1.ErasureState_ERASURE_STATE_RUNNING || r.GetFinishedAt() != nil {
		t.Errorf("with a store away: %v", r)
	}
	if n := in.count(`SELECT count(*) FROM memd.memories`); n != 1 || stores["archive"].erased.Load() == 0 {
		t.Errorf("%d rows, and the store that is there was asked %d times", n, stores["archive"].erased.Load())
	}
	c.wants(user("alice"))
	stores["analytics"].off.Store(false)
	in.within("done", func() bool { return report().GetState() >= memdv1.ErasureState_ERASURE_STATE_DONE })
	answered := map[string]bool{}
	for _, a := range report().GetTargets() {
		answered[a.GetTarget()] = answered[a.GetTarget()] || a.GetAcknowledged()
	}
	if !answered["archive"] || !answered["analytics"] {
		t.Errorf("acknowledged, as the report says: %v", answered)
	}
	c.wants(user("bob"), "bob")
}

// memd searches sealed vectors, and codes of them, in memory: no index over
// vectors is in the database, so none has to be vacuumed of a vector.
func TestFailure_pgvector_450_NoIndexHasToBeVacuumed(t *testing.T) {
	in := setup(t)
	for what, sql := range map[string]string{
		"indexes of vectors": `SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam WHERE a.amname NOT IN ('btree', 'hash') AND c.relnamespace = 'memd'::regnamespace`,
		"columns of vectors": `SELECT count(*) FROM information_schema.columns WHERE table_schema = 'memd' AND udt_name IN ('vector', 'halfvec', 'sparsevec', 'bit')`,
	} {
		if n := in.count(sql); n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
}
