package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// tenantRehearseCmd takes a tenant that is made for it through its whole life.
type tenantRehearseCmd struct {
	Users    int           `default:"20" help:"How many users it has."`
	Sessions int           `default:"2" help:"How many sessions each of them has, with an event, an artifact and a memory."`
	Limit    time.Duration `default:"10m" help:"How long all of it may take."`
	Approver string        `name:"approver-key" placeholder:"memd_…" help:"API key of an approver. Needed where there is one: only approvers make approvers. Default: it makes the first."`
	outputFlags
	serverFlags
}

// Help is the longer text of --help.
func (tenantRehearseCmd) Help() string {
	return "Makes a tenant with users, conversations, files and memories, suspends it, makes, downloads and checks its archive, drains it, has its purge approved by a key that is made for that, purges it and waits for the final receipt. Each phase is timed, and what must be refused on the way is tried. It needs an operator's key of the installation. A rehearsal that fails leaves its tenant where it is, and says so."
}

// rehearsedPhase is one line of the report.
type rehearsedPhase struct {
	Phase string        `json:"phase"`
	Took  time.Duration `json:"took_ns"`
}

// rehearsal is one run.
type rehearsal struct {
	c               *tenantRehearseCmd
	name, display   string
	operator, agent *clients
	approver        *clients
	approverKey     string
	archive         *rehearsedArchive
	request         string
	phases          []rehearsedPhase
}

// Run rehearses and reports. The exit status is 0 when every phase ended as it
// must.
func (c *tenantRehearseCmd) Run(ctx context.Context, con *console) (err error) {
	if c.Users < 1 || c.Sessions < 1 || c.Limit <= 0 {
		return usagef("--users, --sessions and --limit must be more than zero")
	}
	operator, err := c.connect()
	if err != nil {
		return err
	}
	id := make([]byte, 4)
	if _, err := rand.Read(id); err != nil {
		return fmt.Errorf("drawing a name: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Limit)
	defer cancel()
	r := &rehearsal{c: c, name: "rehearsal-" + hex.EncodeToString(id), operator: operator, request: uuid.NewString()}
	r.display = "Rehearsal of " + time.Now().UTC().Format(time.RFC3339)
	defer func() { err = errors.Join(err, r.revoke(context.WithoutCancel(ctx))) }()
	failed := r.run(ctx)
	if err := r.print(con); err != nil {
		return err
	}
	if failed != nil {
		return &hintedError{err: failed, hint: "The tenant " + r.name + " stays as it is; \"memd tenant get\" says where that is."}
	}
	return nil
}

func (r *rehearsal) run(ctx context.Context) error {
	for _, p := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"create", r.create},
		{"fill", r.fill},
		{"suspend", func(ctx context.Context) error { return r.move(ctx, memdv1.TenantState_TENANT_STATE_SUSPENDED) }},
		{"export", func(ctx context.Context) error { return r.move(ctx, memdv1.TenantState_TENANT_STATE_EXPORTING) }},
		{"archive", r.export},
		{"forget one user", r.forget},
		{"archive anew", r.exportAnew},
		{"drain", func(ctx context.Context) error { return r.move(ctx, memdv1.TenantState_TENANT_STATE_DRAINED) }},
		{"dry run and approve", r.approve},
		{"purge", r.purge},
		{"final receipt", r.final},
	} {
		began := time.Now()
		if err := p.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		r.phases = append(r.phases, rehearsedPhase{p.name, time.Since(began)})
	}
	return nil
}

// as connects with another key.
func (r *rehearsal) as(ctx context.Context, tenant string, roles ...memdv1.Role) (*clients, string, error) {
	made, err := r.operator.Admin.CreateApiKey(ctx, &memdv1.CreateApiKeyRequest{Tenant: tenant, Name: "rehearsal", Roles: roles})
	if err != nil {
		return nil, "", err
	}
	flags := r.c.serverFlags
	flags.APIKey = made.GetSecret()
	client, err := flags.connect()
	return client, made.GetApiKey().GetKeyId(), err
}

func (r *rehearsal) create(ctx context.Context) error {
	made, err := r.operator.Admin.CreateTenant(ctx, &memdv1.CreateTenantRequest{
		Name: r.name, DisplayName: r.display, Policy: &memdv1.Policy{IngestionDelay: durationpb.New(0), Dimension: 64},
	})
	if err != nil {
		return err
	}
	if s := made.GetTenant().GetState(); s != memdv1.TenantState_TENANT_STATE_ACTIVE {
		return fmt.Errorf("the tenant is %s: does a worker run?", tenantStateName(s))
	}
	if r.agent, _, err = r.as(ctx, r.name, memdv1.Role_ROLE_AGENT, memdv1.Role_ROLE_ERASER); err != nil {
		return err
	}
	if r.c.Approver != "" {
		flags := r.c.serverFlags
		flags.APIKey = r.c.Approver
		r.approver, err = flags.connect()
		return err
	}
	r.approver, r.approverKey, err = r.as(ctx, "", memdv1.Role_ROLE_APPROVER)
	return err
}

const rehearsedApp = "rehearsal"

func (r *rehearsal) fill(ctx context.Context) error {
	now := timestamppb.Now()
	for u := range r.c.Users {
		user := fmt.Sprintf("user-%d", u)
		for n := range r.c.Sessions {
			session := fmt.Sprintf("%s-session-%d", user, n)
			_, err := r.agent.Session.CreateSession(ctx, &memdv1.CreateSessionRequest{App: rehearsedApp, UserId: user, SessionId: session})
			if err == nil {
				_, err = r.agent.Session.AppendEvents(ctx, &memdv1.AppendEventsRequest{App: rehearsedApp, UserId: user, SessionId: session, Events: []*memdv1.Event{
					{Id: "e1", Author: "user", Content: jsonText("a rehearsed sentence"), Timestamp: now},
				}})
			}
			if err == nil {
				_, err = r.agent.Artifacts.SaveArtifactInline(ctx, &memdv1.SaveArtifactInlineRequest{
					Header: &memdv1.SaveArtifactHeader{Owner: &memdv1.ArtifactOwner{App: rehearsedApp, UserId: user, SessionId: session}, Name: "file.txt"},
					Data:   []byte("a rehearsed file"),
				})
			}
			if err == nil {
				_, err = r.agent.Memory.Add(ctx, r.row(user, session))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *rehearsal) row(user, session string) *memdv1.AddRequest {
	scope := &memdv1.Scope{Owner: &memdv1.Scope_User{User: &memdv1.UserScope{App: rehearsedApp, UserId: user}}}
	return &memdv1.AddRequest{Rows: []*memdv1.Row{{
		Scope: scope, SessionId: session, Kind: memdv1.Kind_KIND_RAW, Text: "a rehearsed sentence", SourceTime: timestamppb.Now(),
	}}}
}

// move takes the tenant to a state in which agents are refused, and sees that
// they are.
func (r *rehearsal) move(ctx context.Context, to memdv1.TenantState) error {
	if _, err := r.operator.Admin.MoveTenant(ctx, &memdv1.MoveTenantRequest{Tenant: r.name, State: to, Reason: "rehearsal"}); err != nil {
		return err
	}
	_, err := r.agent.Memory.Add(ctx, r.row("late", "late"))
	return wantReason(err, memdv1.Reason_REASON_TENANT_INACTIVE)
}

// wantReason is nil for the refusal that is wanted.
func wantReason(err error, want memdv1.Reason) error {
	if reasonOf(err) == want {
		return nil
	}
	return fmt.Errorf("not refused with %s: %w", enumName(want, "REASON_", false), errors.Join(errNotRefused, err))
}

var errNotRefused = errors.New("what must be refused was not")

func (r *rehearsal) forget(ctx context.Context) error {
	done, err := r.agent.Erasure.ForgetUser(ctx, &memdv1.ForgetUserRequest{App: rehearsedApp, UserId: "user-0", RequestId: uuid.NewString()})
	if err == nil && done.GetReport().GetState() < memdv1.ErasureState_ERASURE_STATE_DONE {
		err = errors.New("the user's erasure is not done in time")
	}
	return err
}

func (r *rehearsal) approve(ctx context.Context) error {
	if _, err := r.delete(ctx); reasonOf(err) != memdv1.Reason_REASON_NOT_APPROVED {
		return wantReason(err, memdv1.Reason_REASON_NOT_APPROVED)
	}
	shown, err := r.approver.Erasure.DryRun(ctx, &memdv1.DryRunRequest{Tenant: r.name})
	if err != nil {
		return err
	}
	if got := int(shown.GetSubjects()); got != r.c.Users-1 || len(shown.GetStrangers()) > 0 {
		return fmt.Errorf("the dry run shows %d users and %d strangers", got, len(shown.GetStrangers()))
	}
	_, err = r.approver.Erasure.ApproveDeletion(ctx, &memdv1.ApproveDeletionRequest{
		Tenant: r.name, ConfirmDisplayName: r.display, Digest: shown.GetDigest(),
	})
	return err
}

func (r *rehearsal) delete(ctx context.Context) (*memdv1.Report, error) {
	done, err := r.operator.Erasure.DeleteTenant(ctx, &memdv1.DeleteTenantRequest{Tenant: r.name, ConfirmDisplayName: r.display, RequestId: r.request})
	return done.GetReport(), err
}

// until repeats the deletion, which waits, until it is as far as that.
func (r *rehearsal) until(ctx context.Context, state memdv1.ErasureState) error {
	for {
		report, err := r.delete(ctx)
		if err != nil && !transient(err) || report.GetState() >= state {
			return err
		}
		if !pause(ctx, firstPollPause) {
			return fmt.Errorf("the purge is %s: %s: %w", enumName(report.GetState(), "ERASURE_STATE_", true), report.GetErasure().GetFailure(), ctx.Err())
		}
	}
}

func (r *rehearsal) purge(ctx context.Context) error {
	if err := r.until(ctx, memdv1.ErasureState_ERASURE_STATE_DONE); err != nil {
		return err
	}
	_, err := r.agent.Memory.Add(ctx, r.row("late", "late"))
	return wantReason(err, memdv1.Reason_REASON_UNAUTHENTICATED)
}

func (r *rehearsal) final(ctx context.Context) error {
	if err := r.until(ctx, memdv1.ErasureState_ERASURE_STATE_FINAL); err != nil {
		return err
	}
	got, err := r.operator.Erasure.GetReceipt(ctx, &memdv1.GetReceiptRequest{RequestId: r.request, Tenant: r.name})
	if err == nil && len(got.GetBundles()) != 2 {
		err = fmt.Errorf("%d receipts, not two", len(got.GetBundles()))
	}
	return err
}

// revoke ends the approver's key, which belongs to no tenant.
func (r *rehearsal) revoke(ctx context.Context) error {
	if r.approverKey == "" {
		return nil
	}
	_, err := r.operator.Admin.RevokeApiKey(ctx, &memdv1.RevokeApiKeyRequest{KeyId: r.approverKey})
	return err
}

func (r *rehearsal) print(con *console) error {
	if r.c.JSON {
		out := json.NewEncoder(con.Stdout)
		out.SetIndent("", "  ")
		return out.Encode(struct {
			Tenant  string           `json:"tenant"`
			Request string           `json:"request_id"`
			Phases  []rehearsedPhase `json:"phases"`
		}{r.name, r.request, r.phases})
	}
	t := newTable(con.Stdout, "PHASE", "TOOK")
	var all time.Duration
	for _, p := range r.phases {
		t.row(p.Phase, p.Took.Round(time.Millisecond).String())
		all += p.Took
	}
	t.row("all", all.Round(time.Millisecond).String())
	return t.close()
}
