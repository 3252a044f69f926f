package failures_test

// From the second seed: a tenant's exit.
//
//	the wrong tenant, from a pasted id              TheWrongTenant
//	a user list that missed users                   AnIncompleteUserList
//	a job, queue or webhook resurrects it           Resurrection
//	memory left behind                              MemoryLeftBehind
//	keys destroyed too early                        AKeyDestroyedTooEarly
//	an export that leaks                            ExportThatLeaks (exportleak_test.go)

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/memory"
)

// operators are those of the installation: whoever asks, and whoever approves.
type operators struct {
	in                *installation
	admin             memdv1connect.AdminServiceClient
	requester, signer memdv1connect.ErasureServiceClient
}

func (in *installation) operators() *operators {
	operator, approver := in.Key(auth.Installation, auth.Operator), in.Key(auth.Installation, auth.Approver)
	return &operators{
		in, memdv1connect.NewAdminServiceClient(in.client(in.urls[0], operator)),
		memdv1connect.NewErasureServiceClient(in.client(in.urls[0], operator)),
		memdv1connect.NewErasureServiceClient(in.client(in.urls[1], approver)),
	}
}

func (o *operators) move(name string, states ...memdv1.TenantState) {
	o.in.t.Helper()
	for _, s := range states {
		if _, err := o.admin.MoveTenant(o.in.t.Context(), &memdv1.MoveTenantRequest{Tenant: name, State: s, Reason: "contract ended"}); err != nil {
			o.in.t.Fatalf("to %v: %v", s, err)
		}
	}
}

func (o *operators) drain(name string) {
	o.in.t.Helper()
	o.move(name, memdv1.TenantState_TENANT_STATE_SUSPENDED, memdv1.TenantState_TENANT_STATE_DRAINED)
}

func (o *operators) dryRun(name string) *memdv1.DryRunResponse {
	o.in.t.Helper()
	shown, err := o.signer.DryRun(o.in.t.Context(), &memdv1.DryRunRequest{Tenant: name})
	if err != nil {
		o.in.t.Fatal(err)
	}
	return shown
}

func (o *operators) approve(name, display, digest string) error {
	_, err := o.signer.ApproveDeletion(o.in.t.Context(), &memdv1.ApproveDeletionRequest{Tenant: name, ConfirmDisplayName: display, Digest: digest})
	return err
}

func (o *operators) purge(name, display, request string, wait time.Duration) (*memdv1.Report, error) {
	res, err := o.requester.DeleteTenant(o.in.t.Context(), &memdv1.DeleteTenantRequest{
		Tenant: name, ConfirmDisplayName: display, RequestId: request, Wait: durationpb.New(wait),
	})
	return res.GetReport(), err
}

// within waits until something is so.
func (in *installation) within(what string, ok func() bool) {
	in.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); !ok(); <-tick.C {
		if time.Since(began) > time.Minute {
			in.t.Fatalf("not within a minute: %s; log:\n%s", what, in.Logs)
		}
	}
}

// internalRows are what somebody stores who does not come by the API.
func internalRows() []memory.Row {
	return []memory.Row{{
		Scope: memd.Scope{App: app, UserID: "erin"}, SessionID: "e1", Kind: memory.KindRaw, Text: "a retry queue", Vector: vector(), SourceTime: time.Now(),
	}}
}

// purged drains a tenant, has its purge approved, and purges it.
func (o *operators) purged(name string) *memdv1.Report {
	o.in.t.Helper()
	o.drain(name)
	if err := o.approve(name, name, o.dryRun(name).GetDigest()); err != nil {
		o.in.t.Fatal(err)
	}
	r, err := o.purge(name, name, uuid.NewString(), time.Minute)
	if err != nil || r.GetState() < memdv1.ErasureState_ERASURE_STATE_DONE {
		o.in.t.Fatalf("%v, %v; log:\n%s", r, err, o.in.Logs)
	}
	return r
}

// A pasted id, a state that was not asked for, an approval of another tenant, and
// one's own: nothing of it deletes a live customer.
func TestFailure_seeds_TheWrongTenant(t *testing.T) {
	in := setup(t)
	o := in.operators()
	live, leaving := in.customer("live"), in.customer("leaving")
	live.add(said("alice", "s1", "alice"))
	leaving.add(said("alice", "s1", "alice"))
	o.drain("leaving")
	digest := o.dryRun("leaving").GetDigest()
	for name, err := range map[string]error{
		"a live tenant approved":                    o.approve("live", "live", o.dryRun("live").GetDigest()),
		"the other's digest":                        o.approve("live", "live", digest),
		"the pasted id with the wrong display name": o.approve("live", "leaving", digest),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := o.approve("leaving", "leaving", digest); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string][2]string{
		"the pasted id":                      {"live", "leaving"},
		"with its own display name":          {"live", "live"},
		"the right one, mistyped for people": {"leaving", "Leaving"},
	} {
		if r, err := o.purge(c[0], c[1], uuid.NewString(), 0); err == nil {
			t.Errorf("%s: %v", name, r)
		}
	}
	o.move("leaving", memdv1.TenantState_TENANT_STATE_ACTIVE)
	if r, err := o.purge("leaving", "leaving", uuid.NewString(), 0); err == nil {
		t.Errorf("one that stays after all: %v", r)
	}
	live.wants(user("alice"), "alice")
	leaving.wants(user("alice"), "alice")
}

// A user came into the stores by a way past admission. The purge goes by the
// directory, and finds and names them all the same.
func TestFailure_seeds_AnIncompleteUserList(t *testing.T) {
	in := setup(t)
	o := in.operators()
	c := in.customer("acme")
	c.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	const stranger = 1<<40 | 4711
	in.exec(`ALTER TABLE memd.memories DISABLE TRIGGER USER`)
	in.exec(`INSERT INTO memd.memories (tenant_no, memory_id, owner_no, kind, month, contributor_no, contributor_session, created_at, updated_at, content_digest, sealed_text)
		SELECT tenant_no, gen_random_uuid(), $1, kind, month, $1, contributor_session, created_at, updated_at, content_digest, sealed_text
		FROM memd.memories LIMIT 1`, int64(stranger))
	in.exec(`ALTER TABLE memd.memories ENABLE TRIGGER USER`)
	named := func(all []*memdv1.Stranger) bool {
		return len(all) == 1 && all[0].GetSubject() == stranger && all[0].GetStore() == "memories" && all[0].GetThings() == 1
	}
	if shown := o.dryRun("acme"); !named(shown.GetStrangers()) || shown.GetSubjects() != 2 {
		t.Errorf("the dry run does not name the stranger: %v", shown)
	}
	r := o.purged("acme")
	if !named(r.GetStrangers()) {
		t.Errorf("the report does not name the stranger: %v", r.GetStrangers())
	}
	if n := in.count(`SELECT count(*) FROM memd.memories`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	if !strings.Contains(in.Logs.String(), fmt.Sprint(stranger)) {
		t.Error("the log does not name the stranger")
	}
}

// Whoever comes late is refused in every state but active, on every replica from
// the next call on; what a single user has a right to goes on until the purge.
func TestFailure_seeds_Resurrection(t *testing.T) {
	in := setup(t)
	o := in.operators()
	c := in.customer("acme")
	c.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"), said("carol", "c1", "carol"))
	late := at(said("dave", "d1", "a late webhook"), time.Now())
	left := []string{"alice", "bob", "carol"}
	for _, s := range []memdv1.TenantState{
		memdv1.TenantState_TENANT_STATE_SUSPENDED, memdv1.TenantState_TENANT_STATE_EXPORTING, memdv1.TenantState_TENANT_STATE_DRAINED,
	} {
		o.move("acme", s)
		c.refused(late, "TENANT_INACTIVE")
		for _, m := range c.memory {
			if _, err := m.Search(t.Context(), &memdv1.SearchRequest{Scope: user("bob"), Vector: vector(), TopK: 1}); reason(err) != "TENANT_INACTIVE" {
				t.Errorf("%v: a search: %v", s, err)
			}
		}
		// An internal caller, who does not come by the API.
		_, err := in.a.Memory.Add(t.Context(), c.tenant, internalRows())
		if err == nil || in.count(`SELECT count(*) FROM memd.memories WHERE tenant_no = $1`, c.tenant.No) != len(left) {
			t.Errorf("%v: an internal caller: %v", s, err)
		}
		c.forgetUser(1, left[0])
		left = left[1:]
	}
	if err := o.approve("acme", "acme", o.dryRun("acme").GetDigest()); err != nil {
		t.Fatal(err)
	}
	request := uuid.NewString()
	if r, err := o.purge("acme", "acme", request, time.Minute); err != nil || r.GetState() < memdv1.ErasureState_ERASURE_STATE_DONE {
		t.Fatalf("%v, %v", r, err)
	}
	for _, m := range c.memory {
		if _, err := m.Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{late}}); connect.CodeOf(err) != connect.CodeUnauthenticated {
			t.Errorf("after the purge: %v", err)
		}
	}
	if _, err := in.a.Memory.Add(t.Context(), c.tenant, internalRows()); err == nil {
		t.Error("an internal caller after the purge")
	}
	if n := in.count(`SELECT count(*) FROM memd.subjects WHERE tenant_no = $1 AND retired_at IS NULL`, c.tenant.No); n != 0 {
		t.Errorf("%d users live", n)
	}
}

// What was derived from sessions goes with them: by the tenant's number, in every
// store.
func TestFailure_seeds_MemoryLeftBehind(t *testing.T) {
	in := setup(t)
	o := in.operators()
	c, neighbour := in.customer("acme"), in.customer("neighbour")
	ids := c.add(said("alice", "s1", "alice"), contributed("bob", "b1", "bob to all"))
	c.add(drawn(shared(), "of both", ids...), drawn(user("carol"), "about both", ids...))
	neighbour.add(said("alice", "s1", "alice elsewhere"))
	r := o.purged("acme")
	if before, after := store(r, "memories"); before != 4 || after != 0 {
		t.Errorf("memories: %d before and %d after", before, after)
	}
	for _, table := range []string{"memories", "memory_contributions", "memory_sources", "session_heads", "session_events", "artifacts", "artifact_chunks", "user_state", "app_state"} {
		if n := in.count(`SELECT count(*) FROM memd.`+table+` WHERE tenant_no = $1`, c.tenant.No); n != 0 {
			t.Errorf("%d rows are left in %s", n, table)
		}
	}
	if !slices.ContainsFunc(r.GetChecks(), func(k *memdv1.ErasureCheck) bool {
		return k.GetName() == "memories" && k.GetResult() == "pass" && k.GetControlBefore() == 4
	}) {
		t.Errorf("the witness does not say so: %v", r.GetChecks())
	}
	neighbour.wants(user("alice"), "alice elsewhere")
}

// A purge that leaves something behind destroys no key, and says what survived.
func TestFailure_seeds_AKeyDestroyedTooEarly(t *testing.T) {
	in := setup(t)
	o := in.operators()
	c := in.customer("acme")
	c.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	// Somebody's trigger keeps bob's row, whoever deletes it.
	in.exec(`CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	in.exec(`CREATE TRIGGER keep BEFORE DELETE ON memd.memories FOR EACH ROW WHEN (OLD.owner_no = 1099511627778) EXECUTE FUNCTION keep()`)
	o.drain("acme")
	if err := o.approve("acme", "acme", o.dryRun("acme").GetDigest()); err != nil {
		t.Fatal(err)
	}
	request := uuid.NewString()
	if _, err := o.purge("acme", "acme", request, 0); err != nil {
		t.Fatal(err)
	}
	var r *memdv1.Report
	in.within("a verification that fails", func() bool {
		res, err := o.requester.GetErasure(t.Context(), &memdv1.GetErasureRequest{RequestId: request, Tenant: "acme"})
		if err != nil {
			t.Fatal(err)
		}
		r = res.GetReport()
		return r.GetErasure().GetFailure() != ""
	})
	if before, after := store(r, "memories"); before != 2 || after != 1 {
		t.Errorf("the report says %d memories before and %d after", before, after)
	}
	failed := slices.IndexFunc(r.GetChecks(), func(k *memdv1.ErasureCheck) bool { return k.GetName() == "memories" && k.GetResult() == "fail" })
	if failed < 0 || len(r.GetChecks()[failed].GetRows()) != 1 || r.GetKey() != nil {
		t.Errorf("checks %v, key %v", r.GetChecks(), r.GetKey())
	}
	if _, err := in.a.Keyring.Keys(t.Context(), c.tenant.No, 0); err != nil {
		t.Errorf("the keys are gone: %v", err)
	}
	in.exec(`DROP TRIGGER keep ON memd.memories`)
	if r, err := o.purge("acme", "acme", request, time.Minute); err != nil || r.GetState() < memdv1.ErasureState_ERASURE_STATE_DONE || r.GetKey() == nil {
		t.Errorf("%v, %v", r, err)
	}
}
