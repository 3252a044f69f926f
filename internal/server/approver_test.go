package server_test

import (
	"testing"

	"connectrpc.com/connect/v2"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
)

// An operator makes the first approver and no other, whatever becomes of it; an
// approver makes approvers and nothing else.
func TestCreateApiKey_OnlyApproversMakeApprovers(t *testing.T) {
	in := setup(t)
	s := in.serve()
	_, operator := in.key(auth.Installation, auth.Operator)
	create := func(secret string, roles ...memdv1.Role) (*memdv1.CreateApiKeyResponse, connect.Code) {
		res, err := s.admin(secret).CreateApiKey(t.Context(), &memdv1.CreateApiKeyRequest{Name: "key", Roles: roles})
		return res, connect.CodeOf(err)
	}
	const approver, asks = memdv1.Role_ROLE_APPROVER, memdv1.Role_ROLE_OPERATOR
	if _, code := create(operator, approver, asks); code != connect.CodeInvalidArgument {
		t.Errorf("a key that asks and approves: %v", code)
	}
	first, _ := create(operator, approver)
	if first.GetSecret() == "" {
		t.Fatal("the first approver is not made")
	}
	if _, err := s.admin(operator).RevokeApiKey(t.Context(), &memdv1.RevokeApiKeyRequest{KeyId: first.GetApiKey().GetKeyId()}); err != nil {
		t.Fatal(err)
	}
	if _, code := create(operator, approver); code != connect.CodePermissionDenied {
		t.Errorf("an operator's second approver: %v", code)
	}
	_, other := in.key(auth.Installation, auth.Approver) // By the local command.
	if made, _ := create(other, approver); made.GetSecret() == "" {
		t.Error("an approver makes no approver")
	}
	if _, code := create(other, asks); code != connect.CodePermissionDenied {
		t.Errorf("an approver's operator: %v", code)
	}
}
