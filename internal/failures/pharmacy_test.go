package failures_test

// The worked example of the first seed, number by number: a user of a pharmacy
// support agent asks to be forgotten.

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/tenants"
)

// The numbers of the example. Nine events in each of four sessions make 36
// memories, and the summary of two sessions is the 37th.
const (
	pharmacySessions  = 4
	pharmacyArtifacts = 2 // in each session
	pharmacyEvents    = 9
	pharmacyMemories  = 37
	// An hour, in the example.
	pharmacyDelay = 6 * time.Second
)

type pharmacy struct {
	*customer
	sessions  memdv1connect.SessionServiceClient
	artifacts memdv1connect.ArtifactServiceClient
	m         memdv1connect.MemoryServiceClient
	e         memdv1connect.ErasureServiceClient
	log       string
}

func newPharmacy(t *testing.T) *pharmacy {
	t.Helper()
	p := &pharmacy{log: filepath.Join(t.TempDir(), "agent.log")}
	if err := os.WriteFile(p.log, []byte("{\"msg\":\"answered\",\"session_digest\":\"c0606f4aa6c4e06c\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in := setup(t, memdtest.WithWitness(p.log))
	policy := memdtest.Policy()
	policy.Embedder, policy.Dimension = tenants.EmbedderLexical, 64
	policy.IngestionDelay, policy.LiftFence = pharmacyDelay, tenants.LiftAfterSweep
	p.customer = &customer{in: in, t: t, tenant: in.Tenant("pharmacy", policy)}
	client := in.client(in.urls[0], in.Key(p.tenant.No, auth.Agent|auth.Eraser|auth.Auditor))
	p.sessions, p.artifacts = memdv1connect.NewSessionServiceClient(client), memdv1connect.NewArtifactServiceClient(client)
	p.m, p.e = memdv1connect.NewMemoryServiceClient(client), memdv1connect.NewErasureServiceClient(client)
	return p
}

// pharmacyEvent is one of a session's, which an ingestion worker may hold a copy of.
func pharmacyEvent(session, n int, when time.Time) *memdv1.Event {
	return &memdv1.Event{
		Id: fmt.Sprintf("e%d", n), Author: "user", Timestamp: timestamppb.New(when),
		Content: fmt.Sprintf(`{"role":"user","parts":[{"text":"My daughter has asthma, inhaler %d%d to 14 Tannery Lane."}]}`, session, n),
	}
}

const patient = "mara.lindqvist@example.org"

// visit is one conversation with its artifacts, taken into memory.
func (p *pharmacy) visit(user string, n int, when time.Time) {
	p.t.Helper()
	ctx, session := p.t.Context(), fmt.Sprintf("visit-%d", n)
	var events []*memdv1.Event
	for i := range pharmacyEvents {
		events = append(events, pharmacyEvent(n, i, when))
	}
	if user != patient {
		for i := range events {
			events[i].Content = fmt.Sprintf(`{"parts":[{"text":"Ibuprofen for me, number %d%d."}]}`, n, i)
		}
	}
	_, err := p.sessions.CreateSession(ctx, &memdv1.CreateSessionRequest{App: app, UserId: user, SessionId: session})
	if err == nil {
		_, err = p.sessions.AppendEvents(ctx, &memdv1.AppendEventsRequest{App: app, UserId: user, SessionId: session, Events: events})
	}
	for i := 0; i < pharmacyArtifacts && err == nil; i++ {
		_, err = p.artifacts.SaveArtifactInline(ctx, &memdv1.SaveArtifactInlineRequest{
			Header: &memdv1.SaveArtifactHeader{
				Owner: &memdv1.ArtifactOwner{App: app, UserId: user, SessionId: session}, Name: fmt.Sprintf("photo-%d.jpg", i),
				SourceTime: timestamppb.New(when),
			},
			Data: []byte("a prescription of " + user),
		})
	}
	if err == nil {
		_, err = p.m.AddSession(ctx, &memdv1.AddSessionRequest{App: app, UserId: user, SessionId: session})
	}
	if err != nil {
		p.t.Fatalf("visit %d: %v", n, err)
	}
}

func (p *pharmacy) memories(user string) int {
	p.t.Helper()
	page, err := p.m.List(p.t.Context(), &memdv1.ListRequest{Scope: scopeOf(user), PageSize: 1000})
	if err != nil {
		p.t.Fatal(err)
	}
	return len(page.GetMemories())
}

// scopeOf is user, where a user of that name is at hand.
func scopeOf(id string) *memdv1.Scope { return user(id) }

func TestPharmacy_NumberByNumber(t *testing.T) {
	p := newPharmacy(t)
	ctx, in := t.Context(), p.in
	when := time.Now().Add(-time.Minute)
	for n := range pharmacySessions {
		p.visit(patient, n+1, when)
	}
	p.visit("jonas", 1, when)
	summary := &memdv1.Row{Scope: user(patient), Kind: memdv1.Kind_KIND_SUMMARY, Text: "She orders inhalers for her daughter.", SourceTime: timestamppb.New(when)}
	for _, s := range []string{"visit-1", "visit-2"} {
		summary.Sources = append(summary.Sources, &memdv1.Source{Source: &memdv1.Source_Session{Session: &memdv1.Session{UserId: patient, SessionId: s}}})
	}
	if _, err := p.m.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{summary}}); err != nil {
		t.Fatal(err)
	}
	if n := p.memories(patient); n != pharmacyMemories {
		t.Fatalf("%d memories before, want %d", n, pharmacyMemories)
	}

	// Day 0: the request is accepted while no worker is there. From this moment
	// searches return nothing and writes are refused.
	in.StopWorker()
	request := uuid.NewString()
	accepted, err := p.e.ForgetUser(ctx, &memdv1.ForgetUserRequest{App: app, UserId: patient, RequestId: request, Wait: durationpb.New(0)})
	if err != nil || accepted.GetReport().GetState() != memdv1.ErasureState_ERASURE_STATE_ACCEPTED {
		t.Fatalf("accepting: %v, %v", accepted, err)
	}
	salt, err := receipts.ParseSalt(accepted.GetReport().GetSalt())
	if err != nil {
		t.Fatal(err)
	}
	p.silent("before the worker came")

	// The worker lists four sessions, deletes two artifacts of each, then the
	// sessions, then 37 rows with the summary, and destroys the key.
	in.StartWorker()
	report := p.reach(request, memdv1.ErasureState_ERASURE_STATE_DONE)
	if n := in.count(`SELECT count(*) FROM memd.memories m JOIN memd.subjects s ON s.tenant_no = m.tenant_no AND s.subject_no = m.owner_no
		WHERE s.retired_at IS NOT NULL`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	counts := map[string]int64{}
	for _, c := range report.GetCounts() {
		counts[c.GetStore()] = c.GetBefore()
		if c.GetAfter() != 0 {
			t.Errorf("%s: %d are left", c.GetStore(), c.GetAfter())
		}
	}
	for store, want := range map[string]int64{
		"memories": pharmacyMemories, "memories_derived": 1, "sessions": pharmacySessions,
		"artifacts": pharmacySessions * pharmacyArtifacts, "session_events": pharmacySessions * pharmacyEvents,
	} {
		if counts[store] != want {
			t.Errorf("%s: %d before, want %d (%v)", store, counts[store], want, counts)
		}
	}
	if report.GetKey().GetUnreadableAt() == nil {
		t.Error("no key was destroyed")
	}

	// Three minutes later a delayed worker brings the third session again.
	p.silent("after the deletion")
	p.bring("FENCED", "SESSION_FORGOTTEN")

	// The verifier passes: no sessions, no hits for the canaries, searched in the
	// store itself, no rows, the key destroyed, no ids in the logs.
	for name, want := range map[string]string{
		"sessions": "pass", "unique_probes": "pass", "rows_by_owner": "pass", "rows_by_contribution": "pass",
		"artifacts": "pass", "session_events": "pass", "old_epochs": "pass", "derivation_refused": "pass", "neighbour_derives": "pass", "logs": "pass",
	} {
		if got := checkOf(report, name); got.GetResult() != want || got.GetControlBefore() == 0 {
			t.Errorf("%s: %v, want %s", name, got, want)
		}
	}

	// An hour later the second sweep finds nothing, the fence is lifted, and the
	// receipt is stored.
	report = p.reach(request, memdv1.ErasureState_ERASURE_STATE_FINAL)
	for _, c := range report.GetSwept() {
		if c.GetBefore() != 0 {
			t.Errorf("the sweep found %d %s", c.GetBefore(), c.GetStore())
		}
	}
	if checkOf(report, "sessions").GetResult() != "pass" || checkOf(report, "unique_probes").GetResult() != "pass" {
		t.Errorf("the second look: %v", report.GetChecks())
	}
	p.bring("SESSION_FORGOTTEN", "ERASED_BEFORE")
	if n := p.memories(patient); n != 0 {
		t.Errorf("%d memories after the fence was lifted", n)
	}
	if e := report.GetErasure(); e.GetDueAt().AsTime().Sub(e.GetFinalAt().AsTime()) < 29*24*time.Hour {
		t.Errorf("final at %v, due at %v", e.GetFinalAt().AsTime(), e.GetDueAt().AsTime())
	}
	p.receipt(request, salt)
	if n := p.memories("jonas"); n != pharmacyEvents {
		t.Errorf("jonas has %d memories, had %d", n, pharmacyEvents)
	}
	// A user who comes back starts empty, and can.
	back := said(patient, "visit-9", "I am back.")
	back.SourceTime, back.Vector = timestamppb.Now(), nil
	if _, err := p.m.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{back}}); err != nil {
		t.Errorf("coming back: %v", err)
	}
}

// silent demands that nothing of hers is found, and nothing taken.
func (p *pharmacy) silent(moment string) {
	p.t.Helper()
	ctx := p.t.Context()
	found, err := p.m.Search(ctx, &memdv1.SearchRequest{Scope: user(patient), Text: "asthma inhaler", TopK: 100})
	if err != nil || len(found.GetHits()) > 0 || !found.GetFenced() {
		p.t.Errorf("%s: search finds %d, fenced %v, %v", moment, len(found.GetHits()), found.GetFenced(), err)
	}
	sessions, err := p.sessions.ListSessions(ctx, &memdv1.ListSessionsRequest{App: app, UserId: patient})
	if err != nil || len(sessions.GetSessions()) > 0 {
		p.t.Errorf("%s: %d sessions, %v", moment, len(sessions.GetSessions()), err)
	}
	row := said(patient, "visit-9", "new words")
	row.SourceTime, row.Vector = timestamppb.Now(), nil
	if _, err := p.m.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{row}}); reason(err) != "FENCED" {
		p.t.Errorf("%s: a write: %v", moment, err)
	}
}

// bring adds the third session once more, from a copy, and from memd's own.
func (p *pharmacy) bring(reasons ...string) {
	p.t.Helper()
	events := []*memdv1.Event{pharmacyEvent(3, 0, time.Now().Add(-time.Minute))}
	for _, copied := range [][]*memdv1.Event{events, nil} {
		resp, err := p.m.AddSession(p.t.Context(), &memdv1.AddSessionRequest{App: app, UserId: patient, SessionId: "visit-3", Events: copied})
		refused := err == nil && resp.GetAdded()+resp.GetUpdated()+resp.GetUnchanged() == 0 && resp.GetRefused() > 0
		for _, want := range reasons {
			refused = refused || reason(err) == want
		}
		if copied == nil && connect.CodeOf(err) == connect.CodeNotFound {
			refused = true // There is nothing of it to be ingested.
		}
		if !refused {
			p.t.Errorf("a late ingestion: %v, %v", resp, err)
		}
	}
}

// reach waits for a state of the erasure, on the service's own stream.
func (p *pharmacy) reach(request string, want memdv1.ErasureState) *memdv1.Report {
	p.t.Helper()
	stream, err := p.e.WatchErasure(p.t.Context(), &memdv1.WatchErasureRequest{
		RequestId: request, UntilDone: want == memdv1.ErasureState_ERASURE_STATE_DONE,
	})
	if err != nil {
		p.t.Fatal(err)
	}
	for {
		if _, err := stream.Receive(); err != nil {
			break // Its end is that of the erasure, or of the wait.
		}
	}
	if err := stream.Close(); err != nil {
		p.t.Fatal(err)
	}
	resp, err := p.e.GetErasure(p.t.Context(), &memdv1.GetErasureRequest{RequestId: request})
	if err != nil || resp.GetReport().GetState() < want {
		p.t.Fatalf("%v, %v; log:\n%s", resp, err, p.in.Logs)
	}
	return resp.GetReport()
}

func checkOf(r *memdv1.Report, name string) *memdv1.ErasureCheck {
	for _, c := range r.GetChecks() {
		if c.GetName() == name {
			return c
		}
	}
	return nil
}

// receipt verifies both receipts with the public key alone: they are about her,
// say what was counted, and hold nothing of hers.
func (p *pharmacy) receipt(request string, salt receipts.Salt) {
	p.t.Helper()
	resp, err := p.e.GetReceipt(p.t.Context(), &memdv1.GetReceiptRequest{RequestId: request})
	if err != nil || len(resp.GetBundles()) != 2 {
		p.t.Fatalf("%d receipts, %v", len(resp.GetBundles()), err)
	}
	var keys *receipts.Keys
	err = p.in.db.With(p.t.Context(), func(db pg.DB) (err error) {
		keys, err = receipts.PublicKeys(p.t.Context(), db)
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	var stages []receipts.Stage
	for _, data := range resp.GetBundles() {
		b, err := receipts.ParseBundle(data)
		if err == nil {
			_, err = b.Verify(keys)
		}
		if err != nil {
			p.t.Fatalf("verifying a receipt: %v", err)
		}
		r := b.Entry.Receipt
		stages = append(stages, r.Stage)
		if !r.Proves(salt, app, patient, "") || r.Proves(salt, app, "jonas", "") {
			p.t.Error("the receipt is not about her")
		}
		for _, secret := range []string{patient, "mara", "visit-", "asthma", "Tannery", "photo-"} {
			if bytes.Contains(bytes.ToLower(data), []byte(strings.ToLower(secret))) {
				p.t.Errorf("the receipt holds %q", secret)
			}
		}
		for _, c := range r.Checks {
			if c.Result == receipts.Fail {
				p.t.Errorf("%s failed: %s", c.Name, c.Reason)
			}
		}
	}
	if d := cmp.Diff([]receipts.Stage{receipts.Provisional, receipts.Final}, stages); d != "" {
		p.t.Errorf("stages (-want +got):\n%s", d)
	}
}
