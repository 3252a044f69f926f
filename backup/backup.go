package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/cluster"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/journal"
)

// The files of a backup.
const (
	ManifestFile = "manifest.json"
	DumpFile     = "database.dump"
)

const manifestFormat = 1

// Manifest says what a backup is of.
type Manifest struct {
	Format  int       `json:"format"`
	TakenAt time.Time `json:"taken_at"`
	// Schema is the number of the newest migration.
	Schema       int64     `json:"schema"`
	Installation uuid.UUID `json:"installation"`
	Generation   int64     `json:"generation"`
	// Record and Digest are those of the last record of the ledger's journal
	// that the database knew.
	Record int64  `json:"record"`
	Digest string `json:"digest"`
	// Epochs are the heads of the tenants' key trees.
	Epochs map[string]int64 `json:"epochs"`
	// SHA256 and Bytes are the dump's.
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
}

const sqlEpochs = `SELECT tenant_no::text, epoch FROM memd.key_epochs ORDER BY tenant_no`

// Take writes a backup of the database at dbURL, as its owner, into a folder,
// which it makes and which must not have one yet. binDir names the folder of
// PostgreSQL's programs; empty looks for them. A backup that broke off has no
// manifest.
func Take(ctx context.Context, clock memd.Clock, dbURL, dir, binDir string) (m Manifest, err error) {
	programs, err := cluster.Find(binDir)
	if err != nil {
		return m, fmt.Errorf("looking for pg_dump: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return m, fmt.Errorf("making the backup's folder: %w", err)
	}
	dump := filepath.Join(dir, DumpFile)
	for _, f := range []string{dump, filepath.Join(dir, ManifestFile)} {
		if _, err := os.Lstat(f); !errors.Is(err, fs.ErrNotExist) {
			return m, fmt.Errorf("%s is there already: a backup is never overwritten, name another folder", f)
		}
	}
	conn, err := pgx.Connect(ctx, dbURL)
	if err != nil {
		return m, pg.Classify(fmt.Errorf("connecting: %w", err))
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	// The dump sees what the manifest says, and nothing that came after.
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return m, pg.Classify(fmt.Errorf("beginning: %w", err))
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // It has read, and nothing else.
	if err := pg.CheckSchema(ctx, tx); err != nil {
		return m, err
	}
	if m, err = describe(ctx, tx, clock.Now()); err != nil {
		return m, err
	}
	var snapshot string
	if err := tx.QueryRow(ctx, `SELECT pg_export_snapshot()`).Scan(&snapshot); err != nil {
		return m, pg.Classify(fmt.Errorf("exporting the snapshot: %w", err))
	}
	err = run(ctx, filepath.Join(programs.Dir, "pg_dump"), dbURL,
		"--format=custom", "--compress=0", "--no-unlogged-table-data", "--snapshot="+snapshot, "--file="+dump)
	if err != nil {
		return m, err
	}
	if m.SHA256, m.Bytes, err = digest(dump); err != nil {
		return m, err
	}
	return m, writeManifest(dir, m)
}

func describe(ctx context.Context, db pg.DB, now time.Time) (Manifest, error) {
	p, err := journal.ReadPosition(ctx, db)
	if err != nil {
		return Manifest{}, err
	}
	m := Manifest{
		Format: manifestFormat, TakenAt: now.UTC(), Schema: pg.SchemaVersion(), Installation: p.Installation,
		Generation: p.Generation, Record: p.Seq, Digest: hex.EncodeToString(p.Digest), Epochs: map[string]int64{},
	}
	rows, err := db.Query(ctx, sqlEpochs)
	if err != nil {
		return m, pg.Classify(fmt.Errorf("reading the epochs: %w", err))
	}
	var tenant string
	var epoch int64
	_, err = pgx.ForEachRow(rows, []any{&tenant, &epoch}, func() error {
		m.Epochs[tenant] = epoch
		return nil
	})
	if err != nil {
		return m, pg.Classify(fmt.Errorf("reading the epochs: %w", err))
	}
	return m, nil
}

// writeManifest makes the backup whole: dump, manifest and folder are durable
// when it returns.
func writeManifest(dir string, m Manifest) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the manifest: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, ManifestFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("writing the manifest: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Sync(), f.Close(), syncPath(filepath.Join(dir, DumpFile)), syncPath(dir))
	if err != nil {
		return fmt.Errorf("writing the manifest: %w", err)
	}
	return nil
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// readManifest reads what a backup says of itself.
func readManifest(dir string) (Manifest, error) {
	var m Manifest
	text, err := os.ReadFile(filepath.Join(dir, ManifestFile))
	if err != nil {
		return m, fmt.Errorf("reading the manifest, without which this is no whole backup: %w", err)
	}
	if err := json.Unmarshal(text, &m); err != nil || m.Format != manifestFormat {
		return m, fmt.Errorf("the manifest cannot be read, or is of another release: %w", memd.ErrCorrupt)
	}
	return m, nil
}

// check compares the whole dump with the manifest.
func (m Manifest) check(dir string) error {
	sum, size, err := digest(filepath.Join(dir, DumpFile))
	if err == nil && (sum != m.SHA256 || size != m.Bytes) {
		err = fmt.Errorf("the dump is not the one that the manifest is of: %w", memd.ErrCorrupt)
	}
	return err
}

func digest(file string) (sum string, size int64, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", 0, fmt.Errorf("reading the dump: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	if size, err = io.Copy(h, f); err != nil {
		return "", 0, fmt.Errorf("reading the dump: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

const sqlEmpty = `
SELECT NOT EXISTS (SELECT FROM pg_namespace WHERE nspname IN ('memd', 'memd_jobs'))`

// LoadJobs is how many connections Load has for tables and indexes.
const LoadJobs = 4

// Load brings a backup into a database that has nothing of memd's, as its owner
// and with the right to make roles. The database is not fit to serve before a
// restore, and no process opens it before. A load that broke off, or whose dump
// turns out to be another than the manifest's, leaves a database that is to be
// dropped.
func Load(ctx context.Context, dbURL, dir, binDir string) (Manifest, error) {
	programs, err := cluster.Find(binDir)
	if err != nil {
		return Manifest{}, fmt.Errorf("looking for pg_restore: %w", err)
	}
	m, err := readManifest(dir)
	if err != nil {
		return m, err
	}
	conn, err := pgx.Connect(ctx, dbURL)
	if err != nil {
		return m, pg.Classify(fmt.Errorf("connecting: %w", err))
	}
	var empty bool
	err = conn.QueryRow(ctx, sqlEmpty).Scan(&empty)
	if err == nil && !empty {
		err = errors.New("the database is not empty: a dump is restored into an empty one; to bring up a database that was restored by other means, use --in-place")
	}
	if err == nil {
		err = pg.EnsureRoles(ctx, conn)
	}
	if err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))); err != nil {
		return m, pg.Classify(err)
	}
	// The checksum is taken meanwhile: it reads all of the dump, as the load does,
	// and ends a load of the wrong one.
	group, loading := errgroup.WithContext(ctx)
	group.Go(func() error { return m.check(dir) })
	group.Go(func() error {
		// Comments are those of extensions, which the owner may not own.
		return run(loading, filepath.Join(programs.Dir, "pg_restore"), dbURL,
			"--exit-on-error", "--no-owner", "--no-comments", fmt.Sprintf("--jobs=%d", LoadJobs), filepath.Join(dir, DumpFile))
	})
	if err := group.Wait(); err != nil {
		return m, err
	}
	// What a dump does not carry, and what this binary's schema has more.
	return m, pg.Migrate(ctx, dbURL)
}

// run runs one of PostgreSQL's own programs on a database. A password does not
// go where every process of the machine can read it.
func run(ctx context.Context, program, dbURL string, args ...string) error {
	config, err := pgx.ParseConfig(dbURL)
	if err != nil {
		return errors.New("the database URL is no PostgreSQL connection string")
	}
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"}
	if config.Password != "" {
		u, err := url.Parse(dbURL)
		if err != nil || u.User == nil {
			return errors.New("give the database URL as postgres://…, so that the password can be kept from the command line")
		}
		u.User = url.User(u.User.Username())
		dbURL = u.String()
		env = append(env, "PGPASSWORD="+config.Password)
	}
	cmd := exec.CommandContext(ctx, program, append(args, "--dbname="+dbURL)...) //nolint:gosec // PostgreSQL's own.
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running %s: %w: %s", filepath.Base(program), err, strings.TrimSpace(string(out)))
	}
	return nil
}
