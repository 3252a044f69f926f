package auth_test

import (
	"errors"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/auth"
)

func TestRoles_StringIsTheInverseOfParse(t *testing.T) {
	for r := auth.Agent; r <= auth.Agent|auth.Eraser|auth.Auditor|auth.Operator|auth.Approver; r++ {
		got, err := auth.ParseRoles(r.String())
		if err != nil || got != r {
			t.Errorf("%v: %v, %v", r, got, err)
		}
	}
	if r, err := auth.ParseRoles("operator, agent"); err != nil || r != auth.Operator|auth.Agent {
		t.Errorf("with a space: %v, %v", r, err)
	}
	for _, bad := range []string{"", "agent,", "root", "Agent"} {
		if _, err := auth.ParseRoles(bad); !errors.Is(err, memd.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
