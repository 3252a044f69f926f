package server

import (
	"context"
	"errors"

	"connectrpc.com/connect/v2"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

// durability says whether an answer waits until what was committed is in the
// ledgers: what makes a fact that must outlive a rollback of the database may
// not be acknowledged before. Every procedure has a row; a test fails when one
// has none.
var durability = map[string]func(answer any) bool{
	memdv1connect.MemoryServiceAddProcedure:    replaced,
	memdv1connect.MemoryServiceSearchProcedure: never,
	memdv1connect.MemoryServiceGetProcedure:    never,
	memdv1connect.MemoryServiceListProcedure:   never,
	memdv1connect.MemoryServiceUpdateProcedure: always,
	memdv1connect.MemoryServiceDeleteProcedure: always,

	memdv1connect.MemoryServiceAddSessionProcedure:     always,
	memdv1connect.SessionServiceCreateSessionProcedure: never,
	memdv1connect.SessionServiceGetSessionProcedure:    never,
	memdv1connect.SessionServiceListSessionsProcedure:  never,
	memdv1connect.SessionServiceAppendEventsProcedure:  never,
	memdv1connect.SessionServiceDeleteSessionProcedure: always,

	memdv1connect.ArtifactServiceSaveArtifactProcedure:         never,
	memdv1connect.ArtifactServiceSaveArtifactInlineProcedure:   never,
	memdv1connect.ArtifactServiceLoadArtifactProcedure:         never,
	memdv1connect.ArtifactServiceLoadArtifactInlineProcedure:   never,
	memdv1connect.ArtifactServiceListArtifactsProcedure:        never,
	memdv1connect.ArtifactServiceListArtifactVersionsProcedure: never,
	memdv1connect.ArtifactServiceGetArtifactVersionProcedure:   never,
	memdv1connect.ArtifactServiceDeleteArtifactProcedure:       always,

	// Of a compaction that a rollback takes back nothing is lost but the request.
	memdv1connect.CompactServicePlanCompactionProcedure:        never,
	memdv1connect.CompactServiceGetCompactionsProcedure:        never,
	memdv1connect.CompactServiceRunCompactionProcedure:         never,
	memdv1connect.CompactServicePauseCompactionProcedure:       never,
	memdv1connect.CompactServiceResumeCompactionProcedure:      never,
	memdv1connect.CompactServiceSetCompactionScheduleProcedure: never,

	// A restore ends every archive and every link.
	memdv1connect.ExportServiceStartExportProcedure:      never,
	memdv1connect.ExportServiceGetExportProcedure:        never,
	memdv1connect.ExportServiceListExportsProcedure:      never,
	memdv1connect.ExportServiceDeleteExportProcedure:     never,
	memdv1connect.ExportServiceCreateExportLinkProcedure: never,
	memdv1connect.ExportServiceRevokeExportLinkProcedure: never,

	memdv1connect.ErasureServiceForgetUserProcedure:      always,
	memdv1connect.ErasureServiceForgetSessionProcedure:   always,
	memdv1connect.ErasureServiceDeleteTenantProcedure:    always,
	memdv1connect.ErasureServiceApproveDeletionProcedure: always,
	memdv1connect.ErasureServiceVoidApprovalProcedure:    always,
	memdv1connect.ErasureServiceListApprovalsProcedure:   never,
	memdv1connect.ErasureServiceHoldProcedure:            always,
	memdv1connect.ErasureServiceReleaseHoldProcedure:     always,
	memdv1connect.ErasureServiceDryRunProcedure:          never,
	memdv1connect.ErasureServiceGetErasureProcedure:      never,
	memdv1connect.ErasureServiceListErasuresProcedure:    never,
	memdv1connect.ErasureServiceGetReceiptProcedure:      never,
	memdv1connect.ErasureServiceWatchErasureProcedure:    never,
	memdv1connect.ErasureServiceVerifyErasureProcedure:   never,
	// What a rollback undeletes is named by the next check, and asked for again.
	memdv1connect.ErasureServiceRemoveSurvivorsProcedure: never,
	memdv1connect.ErasureServiceGetReceiptKeysProcedure:  never,
	memdv1connect.ErasureServicePlanRetentionProcedure:   never,
	memdv1connect.ErasureServiceRunRetentionProcedure:    always,
	memdv1connect.ErasureServiceListHoldsProcedure:       never,

	memdv1connect.TargetServiceListTargetsProcedure:  never,
	memdv1connect.TargetServiceCreateTargetProcedure: always,
	memdv1connect.TargetServiceDeleteTargetProcedure: always,
	memdv1connect.TargetServiceTestTargetProcedure:   never,

	memdv1connect.AdminServiceGetTenantProcedure:       never,
	memdv1connect.AdminServiceListTenantsProcedure:     never,
	memdv1connect.AdminServiceListTransitionsProcedure: never,
	memdv1connect.AdminServiceMoveTenantProcedure:      always,
	memdv1connect.AdminServiceListApiKeysProcedure:     never,
	memdv1connect.AdminServiceCreateTenantProcedure:    always,
	memdv1connect.AdminServiceSetPolicyProcedure:       always,
	memdv1connect.AdminServiceSuspendTenantProcedure:   always,
	memdv1connect.AdminServiceResumeTenantProcedure:    always,
	memdv1connect.AdminServiceCreateApiKeyProcedure:    never,
	memdv1connect.AdminServiceRevokeApiKeyProcedure:    always,
}

func always(any) bool { return true }
func never(any) bool  { return false }

// replaced: an event that comes again with other content replaces the old, which
// must not come back. Adding otherwise makes no fact.
func replaced(answer any) bool {
	a, ok := answer.(*memdv1.AddResponse)
	if !ok {
		return true
	}
	for _, r := range a.GetResults() {
		if r.GetStatus() == memdv1.AddStatus_ADD_STATUS_UPDATED {
			return true
		}
	}
	return false
}

// durable holds answers back until flush has returned.
func durable(flush func(context.Context) error) connect.ServerInterceptor {
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			waits := durability[spec.Procedure]
			if waits == nil {
				waits = always
			}
			err := next(ctx, spec, &durableStream{ServerStream: stream, ctx: ctx, waits: waits, flush: flush})
			// An answer too: the erasure is accepted.
			if errors.Is(err, memd.ErrErasureUnfinished) {
				if failed := flush(context.WithoutCancel(ctx)); failed != nil {
					return failed
				}
			}
			return err
		}
	}
}

// durableStream is a stream whose messages wait.
type durableStream struct {
	connect.ServerStream
	ctx   context.Context
	waits func(answer any) bool
	flush func(context.Context) error
}

// Send implements connect.ServerStream.
func (s *durableStream) Send(msg any) error {
	if s.waits(msg) {
		if err := s.flush(s.ctx); err != nil {
			return err
		}
	}
	return s.ServerStream.Send(msg)
}
