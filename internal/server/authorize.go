package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect/v2"

	"forgettable.dev/memd"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

// How long a call may take, whatever its caller allows. An erasure goes on when
// its caller's time has run out.
const (
	callLimit    = 30 * time.Second
	erasureLimit = 10 * time.Minute
	// streamLimit is that of a stream, however fast something moves, and longer
	// than erasure.MaxWatch.
	streamLimit = time.Hour
)

// rule says who may call a procedure.
type rule struct {
	// roles: the key needs one of these.
	roles auth.Roles
	// tenant: the key must be a tenant's, whose state admits must accept.
	tenant bool
	admits func(tenants.State) bool
	limit  time.Duration
	// counts: the call is one of those that a quota bounds (quota.go).
	counts bool
	// rides: the call may authenticate by a statement of its own (rider.go).
	rides bool
}

func active(s tenants.State) bool { return s == tenants.StateActive }

var (
	remembering = rule{roles: auth.Agent, tenant: true, admits: active, limit: callLimit, counts: true}
	searching   = rule{roles: auth.Agent, tenant: true, admits: active, limit: callLimit, counts: true, rides: true}
	streaming   = rule{roles: auth.Agent, tenant: true, admits: active, limit: streamLimit, counts: true}
	deleting    = rule{roles: auth.Agent | auth.Eraser, tenant: true, admits: active, limit: erasureLimit}
	forgetting  = rule{roles: auth.Eraser, tenant: true, admits: tenants.State.Erases, limit: erasureLimit}
	// purging is for the installation's own keys alone, as its handler sees to.
	purging   = rule{roles: auth.Operator, limit: erasureLimit}
	following = rule{roles: auth.Eraser | auth.Auditor | auth.Operator, limit: callLimit}
	watching  = rule{roles: auth.Eraser | auth.Auditor | auth.Operator, limit: streamLimit}
	// publishing is for everybody who has a key at all.
	publishing = rule{roles: auth.Agent | auth.Eraser | auth.Auditor | auth.Operator | auth.Approver, limit: callLimit}
	removing   = rule{roles: auth.Operator, limit: callLimit}
	verifying  = rule{roles: auth.Eraser | auth.Auditor, limit: time.Minute}
	holding    = rule{roles: auth.Operator, tenant: true, admits: tenants.State.Erases, limit: callLimit}
	counting   = rule{roles: auth.Eraser | auth.Auditor | auth.Operator | auth.Approver, limit: callLimit}
	// approving is for the installation's own keys alone, too.
	approving     = rule{roles: auth.Approver, limit: callLimit}
	voiding       = rule{roles: auth.Approver | auth.Operator, limit: callLimit}
	looking       = rule{roles: auth.Auditor | auth.Operator, limit: callLimit}
	overseeing    = rule{roles: auth.Auditor | auth.Operator | auth.Approver, limit: callLimit}
	administering = rule{roles: auth.Operator, limit: callLimit}
	// keying is narrowed by its handler: see mayMake.
	keying = rule{roles: auth.Operator | auth.Approver, limit: callLimit}
)

// rules is the one table of who may call what. A procedure without a row is
// refused to everybody, and a test fails.
//
// Handlers of the AdminService also keep a tenant's key to its tenant, because
// only they know which tenant a request is about.
var rules = map[string]rule{
	memdv1connect.MemoryServiceAddProcedure:    remembering,
	memdv1connect.MemoryServiceSearchProcedure: searching,
	memdv1connect.MemoryServiceGetProcedure:    remembering,
	memdv1connect.MemoryServiceListProcedure:   remembering,
	memdv1connect.MemoryServiceUpdateProcedure: remembering,
	memdv1connect.MemoryServiceDeleteProcedure: remembering,

	memdv1connect.MemoryServiceAddSessionProcedure:     remembering,
	memdv1connect.SessionServiceCreateSessionProcedure: remembering,
	memdv1connect.SessionServiceGetSessionProcedure:    remembering,
	memdv1connect.SessionServiceListSessionsProcedure:  remembering,
	memdv1connect.SessionServiceAppendEventsProcedure:  remembering,
	memdv1connect.SessionServiceDeleteSessionProcedure: deleting,

	memdv1connect.ArtifactServiceSaveArtifactProcedure:         streaming,
	memdv1connect.ArtifactServiceSaveArtifactInlineProcedure:   remembering,
	memdv1connect.ArtifactServiceLoadArtifactProcedure:         streaming,
	memdv1connect.ArtifactServiceLoadArtifactInlineProcedure:   remembering,
	memdv1connect.ArtifactServiceListArtifactsProcedure:        remembering,
	memdv1connect.ArtifactServiceListArtifactVersionsProcedure: remembering,
	memdv1connect.ArtifactServiceGetArtifactVersionProcedure:   remembering,
	memdv1connect.ArtifactServiceDeleteArtifactProcedure:       remembering,

	memdv1connect.ErasureServiceForgetUserProcedure:      forgetting,
	memdv1connect.ErasureServiceForgetSessionProcedure:   forgetting,
	memdv1connect.ErasureServiceDeleteTenantProcedure:    purging,
	memdv1connect.ErasureServiceApproveDeletionProcedure: approving,
	memdv1connect.ErasureServiceVoidApprovalProcedure:    voiding,
	memdv1connect.ErasureServiceListApprovalsProcedure:   overseeing,
	memdv1connect.ErasureServiceDryRunProcedure:          counting,
	memdv1connect.ErasureServiceGetErasureProcedure:      following,
	memdv1connect.ErasureServiceListErasuresProcedure:    following,
	memdv1connect.ErasureServiceGetReceiptProcedure:      following,
	memdv1connect.ErasureServiceWatchErasureProcedure:    watching,
	memdv1connect.ErasureServiceVerifyErasureProcedure:   verifying,
	memdv1connect.ErasureServiceRemoveSurvivorsProcedure: removing,
	memdv1connect.ErasureServiceGetReceiptKeysProcedure:  publishing,
	memdv1connect.ErasureServiceHoldProcedure:            holding,
	memdv1connect.ErasureServiceReleaseHoldProcedure:     holding,
	memdv1connect.ErasureServicePlanRetentionProcedure:   looking,
	memdv1connect.ErasureServiceRunRetentionProcedure:    administering,
	memdv1connect.ErasureServiceListHoldsProcedure:       following,

	memdv1connect.AdminServiceGetTenantProcedure:       overseeing,
	memdv1connect.AdminServiceListTenantsProcedure:     overseeing,
	memdv1connect.AdminServiceListTransitionsProcedure: overseeing,
	memdv1connect.AdminServiceMoveTenantProcedure:      administering,
	memdv1connect.AdminServiceListApiKeysProcedure:     looking,
	memdv1connect.AdminServiceCreateTenantProcedure:    administering,
	memdv1connect.AdminServiceSetPolicyProcedure:       administering,
	memdv1connect.AdminServiceSuspendTenantProcedure:   administering,
	memdv1connect.AdminServiceResumeTenantProcedure:    administering,
	memdv1connect.AdminServiceCreateApiKeyProcedure:    keying,
	memdv1connect.AdminServiceRevokeApiKeyProcedure:    administering,

	memdv1connect.ExportServiceStartExportProcedure:      administering,
	memdv1connect.ExportServiceGetExportProcedure:        looking,
	memdv1connect.ExportServiceListExportsProcedure:      looking,
	memdv1connect.ExportServiceDeleteExportProcedure:     administering,
	memdv1connect.ExportServiceCreateExportLinkProcedure: administering,
	memdv1connect.ExportServiceRevokeExportLinkProcedure: administering,

	memdv1connect.CompactServicePlanCompactionProcedure:        looking,
	memdv1connect.CompactServiceGetCompactionsProcedure:        looking,
	memdv1connect.CompactServiceRunCompactionProcedure:         administering,
	memdv1connect.CompactServicePauseCompactionProcedure:       administering,
	memdv1connect.CompactServiceResumeCompactionProcedure:      administering,
	memdv1connect.CompactServiceSetCompactionScheduleProcedure: administering,

	memdv1connect.TargetServiceListTargetsProcedure:  looking,
	memdv1connect.TargetServiceCreateTargetProcedure: administering,
	memdv1connect.TargetServiceDeleteTargetProcedure: administering,
	memdv1connect.TargetServiceTestTargetProcedure:   administering,
}

// check decides by the table alone.
func check(procedure string, p auth.Principal) error {
	r, ok := rules[procedure]
	switch {
	case !ok, !p.Roles.Any(r.roles), r.tenant && p.Tenant == auth.Installation:
		return fmt.Errorf("authorising: %w", memd.ErrPermissionDenied)
	case r.tenant && !r.admits(p.State):
		return fmt.Errorf("authorising: %w", memd.ErrTenantInactive)
	}
	return nil
}

// authorisation admits a call before its message is read, and bounds its time.
func authorisation(a *auth.Authenticator) connect.ServerInterceptor {
	return func(next connect.ServerFunc) connect.ServerFunc {
		asking := func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			secret := bearer(ctx)
			p, err := a.Authenticate(ctx, secret)
			if err != nil {
				return err
			}
			again := func(ctx context.Context) error {
				p, err := a.Authenticate(ctx, secret)
				if err == nil {
					err = check(spec.Procedure, p)
				}
				return err
			}
			return admit(ctx, spec, stream, admitted{Principal: p, again: again}, next)
		}
		riding := rider(a, next, asking)
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			if rules[spec.Procedure].rides {
				return riding(ctx, spec, stream)
			}
			return asking(ctx, spec, stream)
		}
	}
}

// admit lets a caller on who may call the procedure.
func admit(ctx context.Context, spec connect.Spec, stream connect.ServerStream, c admitted, next connect.ServerFunc) error {
	if log := callOf(ctx); log != nil {
		log.principal = c.Principal
	}
	if err := check(spec.Procedure, c.Principal); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, rules[spec.Procedure].limit)
	defer cancel()
	return next(context.WithValue(ctx, admittedKey{}, &c), spec, stream)
}

// bearer returns the secret of an "Authorization: Bearer" header, or "".
func bearer(ctx context.Context) string {
	info, ok := connect.CallInfoForServerContext(ctx)
	if !ok {
		return ""
	}
	scheme, secret, _ := strings.Cut(info.RequestHeader().Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(secret)
}

// admitted is who is calling, as authentication found it a moment ago, or, with a
// premise, some time ago.
type admitted struct {
	auth.Principal
	premise *pg.Premise
	// again says whether the caller may still do what it does. Nil for calls that
	// are short.
	again func(context.Context) error
}

type admittedKey struct{}

// admittedOf returns who is calling. Only handlers call it, and the server lets
// nobody on to a handler who has no principal.
func admittedOf(ctx context.Context) admitted {
	if c, ok := ctx.Value(admittedKey{}).(*admitted); ok {
		return *c
	}
	return admitted{}
}

func principalOf(ctx context.Context) auth.Principal { return admittedOf(ctx).Principal }
