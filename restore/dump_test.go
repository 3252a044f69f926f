package restore_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

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

// emptyFor makes an empty database as the manual has it: of an owner who is no
// superuser, for whom one has made the extension. It returns the owner's URL.
func emptyFor(t *testing.T) (db *pgtest.DB, ownersURL string) {
	t.Helper()
	owner := fmt.Sprintf("memd_owner_%d", os.Getpid())
	var admin string
	// After the database is gone, which the role owns.
	t.Cleanup(func() { execute(context.Background(), t, admin, "DROP ROLE "+owner) })
	db = pgtest.Empty(t)
	u, err := url.Parse(db.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/postgres"
	admin = u.String()
	for _, sql := range []string{
		"CREATE ROLE " + owner + " LOGIN CREATEROLE",
		"GRANT memd_app, memd_worker, memd_maintain TO " + owner + " WITH ADMIN OPTION",
		"CREATE EXTENSION vector",
		"ALTER DATABASE " + db.Name + " OWNER TO " + owner,
	} {
		execute(t.Context(), t, db.URL(""), sql)
	}
	u.Path, u.User = "/"+db.Name, url.User(owner)
	return db, u.String()
}

func execute(ctx context.Context, t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(ctx, url)
	if err == nil {
		_, err = conn.Exec(ctx, sql)
		err = errors.Join(err, conn.Close(ctx))
	}
	if err != nil {
		t.Errorf("%s: %v", sql, err)
	}
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
	// These belong to whoever migrated, which is the owner who restores, elsewhere.
	execute(t.Context(), t, w.DB.URL(""), `
		ALTER DEFAULT PRIVILEGES IN SCHEMA memd_jobs REVOKE ALL ON TABLES FROM memd_worker;
		ALTER DEFAULT PRIVILEGES IN SCHEMA memd_jobs REVOKE ALL ON SEQUENCES FROM memd_worker`)
	p.must(w.DB.URL(""), "backup", backup)
	nothingInClear(t, backup, "xylophone")
	if out, err := p.run(w.DB.URL(""), "backup", backup); err == nil || !strings.Contains(out, "never overwritten") {
		t.Errorf("overwriting a backup: %v, %s", err, out)
	}
	w.ForgetUser(w.srv, w.tenant, app, "alice")
	w.flush()
	w.StopWorker()

	empty, owner := emptyFor(t)
	if out, err := p.run(w.DB.URL(""), "restore", "run", "--from", backup); err == nil || !strings.Contains(out, "not empty") {
		t.Errorf("restoring over a live database: %v, %s", err, out)
	}
	out := p.must(owner, "restore", "run", "--from", backup)
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
	p.must(owner, "restore", "release")
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
