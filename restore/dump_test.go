package restore_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"forgettable.dev/memd/internal/pgtest"
	"forgettable.dev/memd/shred/kmsemu"
)

// program is memd itself.
type program struct {
	w      *world
	binary string
}

// built is memd, built once for all tests, in binaries.
var built = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(binaries, "memd")
	if out, err := exec.CommandContext(context.Background(), "go", "build", "-o", binary, "../cmd/memd").CombinedOutput(); err != nil {
		return "", fmt.Errorf("building memd: %w\n%s", err, out)
	}
	return binary, nil
})

func (w *world) program() *program {
	w.t.Helper()
	binary, err := built()
	if err != nil {
		w.t.Fatal(err)
	}
	return &program{w: w, binary: binary}
}

// run runs a command as an operator does, on a database.
func (p *program) run(database string, args ...string) (string, error) {
	p.w.t.Helper()
	cmd := exec.CommandContext(p.w.t.Context(), p.binary, args...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "MEMD_DATABASE_URL=" + database, "MEMD_KMS=emulator:" + p.w.KMS.Address,
		"MEMD_KMS_TOKEN=" + p.w.KMS.Server.Tokens()[kmsemu.Worker], "MEMD_LEDGER=" + p.w.Ledger, "MEMD_ONE_LEDGER=true",
	}
	out, err := cmd.CombinedOutput()
	p.w.t.Logf("memd %s\n%s", strings.Join(args, " "), out)
	return string(out), err
}

func (p *program) must(database string, args ...string) string {
	p.w.t.Helper()
	out, err := p.run(database, args...)
	if err != nil {
		p.w.t.Fatalf("memd %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// Dump, erase, restore the dump into an empty database, with the commands that
// the manual gives.
func TestDrill_DumpEraseRestore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.program()
	w.add(said("alice", "s1", "xylophone of alice"), said("bob", "b1", "bob lives"))
	w.flush()
	backup := filepath.Join(t.TempDir(), "backup")
	p.must(w.DB.URL(""), "backup", backup)
	nothingInClear(t, backup, "xylophone")
	if out, err := p.run(w.DB.URL(""), "backup", backup); err == nil || !strings.Contains(out, "never overwritten") {
		t.Errorf("overwriting a backup: %v, %s", err, out)
	}
	w.ForgetUser(w.srv, w.tenant, app, "alice")
	w.flush()
	w.StopWorker()

	empty := pgtest.Empty(t)
	if out, err := p.run(w.DB.URL(""), "restore", "run", "--from", backup); err == nil || !strings.Contains(out, "not empty") {
		t.Errorf("restoring over a live database: %v, %s", err, out)
	}
	out := p.must(empty.URL(""), "restore", "run", "--from", backup)
	for _, want := range []string{"Erasures carried out again: 1", "The gate is open", "memd restore release"} {
		if !strings.Contains(out, want) {
			t.Errorf("restore did not say %q", want)
		}
	}
	w.DB = empty
	w.StartWorker()
	w.srv, _ = w.Server()
	w.owner = w.DB.Pool("")
	w.wants(user("alice"))
	w.wants(user("bob"), "bob lives")
	p.must(empty.URL(""), "restore", "release")
	w.within("the erasure done again", func() bool {
		return w.number(`SELECT count(*) FROM memd.erasures WHERE state >= 3`) == 1
	})
	p.must(empty.URL(""), "ledger", "status")
	p.must(empty.URL(""), "ledger", "verify")
	p.must(empty.URL(""), "ledger", "mirror")
	if out := p.must(empty.URL(""), "restore", "run", "--in-place"); !strings.Contains(out, "Nothing is missing") {
		t.Error("a second restore found something to do")
	}
}
