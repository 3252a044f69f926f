package server_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"forgettable.dev/memd"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/server"
	"forgettable.dev/memd/tenants"
)

// methods returns every method that proto/ defines and memd serves, which is all
// but what purge targets serve.
func methods() []protoreflect.MethodDescriptor {
	var all []protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFilesByPackage("memd.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			if s.FullName() == memdv1connect.EraserServiceName {
				continue
			}
			for j := range s.Methods().Len() {
				all = append(all, s.Methods().Get(j))
			}
		}
		return true
	})
	// The registry has no order, and a seed wants one.
	slices.SortFunc(all, func(a, b protoreflect.MethodDescriptor) int {
		return strings.Compare(string(a.FullName()), string(b.FullName()))
	})
	return all
}

// procedures returns every procedure that proto/ defines.
func procedures() []string {
	var all []string
	for _, m := range methods() {
		all = append(all, "/"+string(m.Parent().FullName())+"/"+string(m.Name()))
	}
	return all
}

func TestRules_HaveARowForEachProcedureAndNoOther(t *testing.T) {
	defined := map[string]bool{}
	for _, p := range procedures() {
		defined[p] = true
	}
	for _, p := range server.Procedures() {
		if !defined[p] {
			t.Errorf("%s has a row and is not defined", p)
		}
		delete(defined, p)
	}
	for p := range defined {
		t.Errorf("%s has no row: nobody may call it", p)
	}
}

// TestRules_Matrix spells out who may call what, so that a change of the table
// has to be made twice.
func TestRules_Matrix(t *testing.T) {
	const memory, erasure, admin = "/memd.v1.MemoryService/", "/memd.v1.ErasureService/", "/memd.v1.AdminService/"
	reads := map[string]bool{admin + "ListApiKeys": true, erasure + "PlanRetention": true, "/memd.v1.TargetService/ListTargets": true,
		"/memd.v1.ExportService/GetExport": true, "/memd.v1.ExportService/ListExports": true,
		// Whose handlers refuse a tenant's own key.
		"/memd.v1.CompactService/PlanCompaction": true, "/memd.v1.CompactService/GetCompactions": true,
	}
	oversees := map[string]bool{
		admin + "GetTenant": true, admin + "ListTenants": true, admin + "ListTransitions": true, erasure + "ListApprovals": true,
	}
	may := func(procedure string, role auth.Roles, tenant memd.TenantNo) bool {
		switch {
		case strings.HasPrefix(procedure, memory):
			return role == auth.Agent && tenant != auth.Installation
		case procedure == "/memd.v1.SessionService/DeleteSession":
			return (role == auth.Agent || role == auth.Eraser) && tenant != auth.Installation
		case strings.HasPrefix(procedure, "/memd.v1.SessionService/"), strings.HasPrefix(procedure, "/memd.v1.ArtifactService/"):
			return role == auth.Agent && tenant != auth.Installation
		case procedure == erasure+"ForgetUser", procedure == erasure+"ForgetSession":
			return role == auth.Eraser && tenant != auth.Installation
		case procedure == erasure+"Hold", procedure == erasure+"ReleaseHold":
			return role == auth.Operator && tenant != auth.Installation
		case procedure == erasure+"DeleteTenant": // Whose handler refuses a tenant's own key.
			return role == auth.Operator
		case procedure == erasure+"GetReceiptKeys":
			return role != 0
		case procedure == erasure+"RemoveSurvivors":
			return role == auth.Operator
		case procedure == erasure+"ApproveDeletion": // Likewise.
			return role == auth.Approver
		case procedure == erasure+"VoidApproval": // Likewise.
			return role == auth.Approver || role == auth.Operator
		case oversees[procedure]:
			return role == auth.Auditor || role == auth.Operator || role == auth.Approver
		case procedure == admin+"CreateApiKey": // Whose handler says which.
			return role == auth.Operator || role == auth.Approver
		case procedure == erasure+"DryRun":
			return role == auth.Eraser || role == auth.Auditor || role == auth.Operator || role == auth.Approver
		case procedure == erasure+"PlanRetention", procedure == erasure+"RunRetention":
			return role == auth.Operator || role == auth.Auditor && reads[procedure]
		case procedure == erasure+"VerifyErasure":
			return role == auth.Eraser || role == auth.Auditor
		case strings.HasPrefix(procedure, erasure):
			return role == auth.Eraser || role == auth.Auditor || role == auth.Operator
		default:
			return role == auth.Operator || role == auth.Auditor && reads[procedure]
		}
	}
	roles := []auth.Roles{0, auth.Agent, auth.Eraser, auth.Auditor, auth.Operator, auth.Approver}
	for _, procedure := range procedures() {
		for _, role := range roles {
			for _, tenant := range []memd.TenantNo{auth.Installation, 7} {
				err := server.Check(procedure, auth.Principal{Roles: role, Tenant: tenant, State: tenants.StateActive})
				if may(procedure, role, tenant) != (err == nil) || err != nil && !errors.Is(err, memd.ErrPermissionDenied) {
					t.Errorf("%s by %q of tenant %v: %v", procedure, role, tenant, err)
				}
			}
		}
	}
	if err := server.Check("/memd.v1.MemoryService/Dump", auth.Principal{Roles: 0xffff, Tenant: 7}); !errors.Is(err, memd.ErrPermissionDenied) {
		t.Errorf("a procedure without a row: %v", err)
	}
}

func TestRules_OnlyAnActiveTenantAdmitsAgents(t *testing.T) {
	for s := tenants.StateUnknown; s <= tenants.StatePurged; s++ {
		p := auth.Principal{Roles: auth.Agent | auth.Eraser | auth.Operator, Tenant: 7, State: s}
		for procedure, want := range map[string]bool{
			"/memd.v1.MemoryService/Add":         s == tenants.StateActive,
			"/memd.v1.MemoryService/Search":      s == tenants.StateActive,
			"/memd.v1.ErasureService/ForgetUser": s >= tenants.StateActive && s < tenants.StatePurging,
			"/memd.v1.AdminService/GetTenant":    true,
		} {
			err := server.Check(procedure, p)
			if want != (err == nil) || err != nil && !errors.Is(err, memd.ErrTenantInactive) {
				t.Errorf("%s of a tenant that is %v: %v", procedure, s, err)
			}
		}
	}
}
