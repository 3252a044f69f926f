package restore_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/uuid"

	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/restore"
	"forgettable.dev/memd/shred/kmsemu"
)

func (p *program) undo(key string, erasure uuid.UUID, args ...string) (string, error) {
	p.w.t.Helper()
	tokens := p.w.KMS.Server.Tokens()
	cmd := exec.CommandContext(p.w.t.Context(), p.binary,
		append([]string{"shred", "undo", "--tenant", "acme", "--erasure", erasure.String()}, args...)...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "MEMD_DATABASE_URL=" + p.w.DB.URL(""), "MEMD_KMS=emulator:" + p.w.KMS.Address,
		"MEMD_KMS_TOKEN=" + tokens[kmsemu.Worker], "MEMD_SHREDDER_KMS_TOKEN=" + tokens[kmsemu.Shredder],
		"MEMD_RESTORER_KMS_TOKEN=" + tokens[kmsemu.Admin], "MEMD_LEDGER=" + p.w.Ledger, "MEMD_ONE_LEDGER=true", "MEMD_API_KEY=" + key,
	}
	out, err := cmd.CombinedOutput()
	p.w.t.Logf("memd shred undo %s\n%s", strings.Join(args, " "), out)
	return string(out), err
}

// The wrong user was forgotten, beside others. One person asks, another approves:
// in a backup from before, the wrong one's rows open again and stay; nobody
// else's do, and what was forgotten later is gone as well.
func TestDrill_UndoThenRestore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.program()
	operator, approver, agent := w.Key(w.tenant.No, auth.Operator), w.Key(w.tenant.No, auth.Approver), w.Key(w.tenant.No, auth.Agent)
	w.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"), said("carol", "c1", "carol"), said("dave", "d1", "dave"))
	w.flush()
	snapshot := w.snapshot()
	rightly := w.ForgetUser(w.srv, w.tenant, app, "alice")
	wrongly := w.ForgetUser(w.srv, w.tenant, app, "bob")
	w.ForgetUser(w.srv, w.tenant, app, "carol")

	for _, c := range []struct {
		what, key string
		args      []string
		want      string
	}{
		{"asking as an agent", agent, []string{"--reason=wrong"}, "role operator"},
		{"approving what nobody asked for", approver, []string{"--approve"}, "nobody else asked"},
		{"approving as an operator", operator, []string{"--approve"}, "role approver"},
	} {
		if out, err := p.undo(c.key, wrongly.ID, c.args...); err == nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	both := w.Key(w.tenant.No, auth.Operator|auth.Approver)
	if _, err := p.undo(both, wrongly.ID, "--reason=the wrong one"); err != nil {
		t.Fatal(err)
	}
	if out, err := p.undo(both, wrongly.ID, "--approve"); err == nil || !strings.Contains(out, "nobody else asked") {
		t.Errorf("approving what one asked for oneself: %v", err)
	}
	if out, err := p.undo(approver, wrongly.ID, "--approve"); err != nil || !strings.Contains(out, "DESTROY_SCHEDULED again") {
		t.Fatalf("%v", err)
	}
	w.admits("bob") // He is fenced no longer, and was never erased.

	w.rollback(snapshot)
	w.closed()
	report, err := restore.Run(t.Context(), w.config())
	if err != nil || report.Erasures != 2 {
		t.Fatalf("%+v, %v", report, err)
	}
	w.reopened()
	w.wants(user("alice"))
	w.wants(user("bob"), "bob")
	w.wants(user("carol"))
	w.wants(user("dave"), "dave")
	w.add(said("bob", "b1", "bob goes on"))
	if n := w.number(`SELECT count(*) FROM memd.erasures WHERE request_id = $1 AND state < 4`, wrongly.ID); n != 0 {
		t.Error("the undone erasure is open")
	}
	if n := w.number(`SELECT count(*) FROM memd.erasures WHERE request_id = $1 AND state < 3`, rightly.ID); n != 1 {
		t.Error("the other one is not")
	}
}
