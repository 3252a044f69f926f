package main

import (
	"bytes"
	"strings"
	"testing"

	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/memdtest"
)

// A tenant's whole life against a whole memd, with the time of each phase; an
// auditor's key may not.
func TestTenantRehearse(t *testing.T) {
	s := memdtest.Start(t)
	_, url := s.Server()
	rehearse := func(role auth.Roles) (status int, stdout, stderr string) {
		key := s.Key(auth.Installation, role)
		var out, errs bytes.Buffer
		getenv := func(name string) string { return map[string]string{"MEMD_API_KEY": key, "MEMD_URL": url}[name] }
		status = run(t.Context(), []string{"tenant", "rehearse", "--users=3", "--sessions=1"}, getenv, strings.NewReader(""), &out, &errs)
		return status, out.String(), errs.String()
	}
	status, out, stderr := rehearse(auth.Operator)
	if status != exitOK {
		t.Fatalf("status %d: %s%s\n%s", status, out, stderr, s.Logs)
	}
	for _, phase := range []string{"create", "fill", "suspend", "export", "forget one user", "drain", "dry run and approve", "purge", "final receipt", "all"} {
		if !strings.Contains(out, phase) {
			t.Errorf("no phase %q in\n%s", phase, out)
		}
	}
	if status, _, stderr := rehearse(auth.Auditor); status != exitFailure || !strings.Contains(stderr, "PERMISSION_DENIED") {
		t.Errorf("an auditor: status %d, %s", status, stderr)
	}
}
