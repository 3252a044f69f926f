package demo

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"forgettable.dev/memd"
	"forgettable.dev/memd/backup"
	"forgettable.dev/memd/internal/dev"
	"forgettable.dev/memd/shred"
)

// The databases that the dump is restored into: before anybody is forgotten, and
// after.
const (
	restoredBefore = "restored_before"
	restoredAfter  = "restored_after"
)

// backup takes a backup, a dump of pg_dump's, and restores it once while nobody
// is forgotten: what opens now and does not later shows what forgetting did.
func (d *demo) backup(ctx context.Context) error {
	d.section("A backup is taken")
	dir := filepath.Join(d.c.Dir, "backup")
	said, err := d.c.Command(ctx, "backup", "--database-url="+d.dev.Cluster.URL(dev.Database, ""), dir)
	if err != nil {
		return fmt.Errorf("backing up: %w", err)
	}
	d.dump = filepath.Join(dir, backup.DumpFile)
	said, _, _ = strings.Cut(strings.TrimPrefix(said, "Dumped "), " to ")
	d.show("memd backup: a pg_dump of all of memd, %s", said)
	copied, err := d.restore(ctx, restoredBefore)
	if err != nil {
		return err
	}
	defer func() { _ = copied.close() }()
	k, err := d.keysOf(ctx, copied, d.acme.tenant)
	if err != nil {
		return err
	}
	defer k.Drop()
	hers, rest, err := d.split(ctx, copied)
	if err != nil {
		return err
	}
	kept, keptRest, err := d.splitKept(ctx, copied)
	if err != nil {
		return err
	}
	of, others := read(k, hers, d.acme.texts), read(k, rest, d.acme.texts)
	ofKept, othersKept := readKept(k, kept, d.acme.said), readKept(k, keptRest, d.acme.said)
	d.before.backup, d.before.inDump = of, ofKept
	d.check(of.opened > 0 && of.opened == of.total() && others.opened == others.total() &&
		ofKept.opened > 0 && ofKept.opened == ofKept.total() && othersKept.opened == othersKept.total(),
		"Today everything in it can be read with the key service's help, which is the point of a backup",
		"restored beside, opened with the key tree in the dump: %d of %d memories of Mara's and %d of %d of others;\n      %d of %d events, entries of state, file names and files of Mara's and %d of %d of others",
		of.opened, of.total(), others.opened, others.total(), ofKept.opened, ofKept.total(), othersKept.opened, othersKept.total())
	return d.expect(ctx, copied)
}

// restore restores the dump into a new database beside the live one, which
// memd does not serve.
func (d *demo) restore(ctx context.Context, name string) (*witness, error) {
	if err := d.dev.Cluster.CreateDatabase(ctx, name); err != nil {
		return nil, err
	}
	url := d.dev.Cluster.URL(name, "")
	if err := d.program(ctx, "pg_restore", "--exit-on-error", "--dbname="+url, d.dump); err != nil {
		return nil, err
	}
	return openWitness(ctx, url)
}

// split reads acme's rows from a copy: those with Mara's words, and the rest.
func (d *demo) split(ctx context.Context, copied *witness) (hers, rest []sealedRow, err error) {
	rows, err := copied.rows(ctx, d.acme.tenant)
	for _, r := range rows {
		if r.has(d.mara.number) {
			hers = append(hers, r)
		} else {
			rest = append(rest, r)
		}
	}
	return hers, rest, err
}

// keysOf opens the tree that a database has of a tenant.
func (d *demo) keysOf(ctx context.Context, w *witness, tenant memd.TenantNo) (*shred.Keys, error) {
	t, err := w.tree(ctx, tenant)
	if err != nil {
		return nil, err
	}
	k, err := d.keys.open(ctx, t)
	if err != nil {
		return nil, fmt.Errorf("opening a key tree: %w", err)
	}
	return k, nil
}

// program runs one of PostgreSQL's own programs.
func (d *demo) program(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(d.dev.Cluster.Programs(), name), args...) //nolint:gosec // PostgreSQL's own.
	// Nothing of libpq's variables: the URL says it all.
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running %s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// shredded reports whether the key service itself refused, or the tree.
func shredded(err error) bool { return errors.Is(err, memd.ErrShredded) }
