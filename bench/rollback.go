package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd"
	"forgettable.dev/memd/backup"
	"forgettable.dev/memd/internal/dev"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/journal"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/restore"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/ledger"
	"forgettable.dev/memd/tenants"
)

const (
	restoreLimit  = 60 // s
	restoreShare  = 1.15
	rotationLimit = 150 // ms
	gateLimit     = 50  // ms
	gateTenants   = 10_000
	// A tree of three megabytes: so many of 1,000,000 users erased.
	rotationErased = 15_000
	// A tombstone for so many rows.
	rowsPerTombstone = 100
	deleters         = 8
)

// rollback measures what a rolled-back database costs: the gate at each start, a
// rotation that is durable outside, and a restore. The restore comes last: two
// databases on one ledger end whoever runs.
func rollback(ctx context.Context, l *lab) (figures []Figure, err error) {
	folder, err := ledger.OpenFolder(l.d.Ledger)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	kms := map[kmsemu.Identity]*gcpkms.Client{}
	for _, id := range []kmsemu.Identity{kmsemu.Worker, kmsemu.Shredder} {
		if kms[id], err = gcpkms.Open(ctx, gcpkms.Config{URL: "emulator:" + l.d.KMSAddress, Token: l.d.KMS.Tokens()[id]}); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, kms[id].Close()) }()
	}
	for _, part := range []func() (Figure, error){
		func() (Figure, error) { return l.gate(ctx) },
		func() (Figure, error) { return l.rotation(ctx, folder, kms[kmsemu.Worker], kms[kmsemu.Shredder]) },
	} {
		f, err := part()
		if err != nil {
			return figures, err
		}
		figures = append(figures, f)
	}
	restored, err := l.restoring(ctx, folder, kms[kmsemu.Worker])
	return append(figures, restored...), err
}

// owner opens a database of the lab's cluster as its owner.
func (l *lab) owner(ctx context.Context, database string) (*pg.Pool, error) {
	return pg.Open(ctx, pg.Config{URL: l.d.Cluster.URL(database, ""), MaxConns: 24, AcquireTimeout: time.Minute})
}

// gate measures how long a process compares database and ledger when it starts.
func (l *lab) gate(ctx context.Context) (Figure, error) {
	const database = "gate"
	if err := l.d.Cluster.CreateDatabase(ctx, database); err != nil {
		return Figure{}, err
	}
	if err := pg.Migrate(ctx, l.d.Cluster.URL(database, "")); err != nil {
		return Figure{}, err
	}
	pool, err := l.owner(ctx, database)
	if err != nil {
		return Figure{}, err
	}
	defer pool.Close()
	own, err := ledger.OpenFolder(filepath.Join(l.c.Dir, "gate-ledger"))
	if err != nil {
		return Figure{}, err
	}
	config := journal.Config{Pool: pool, Ledgers: []ledger.Ledger{own}, Logger: slog.New(slog.DiscardHandler)}
	j, err := journal.Open(ctx, config)
	if err == nil {
		err = pool.InTx(ctx, func(tx pgx.Tx) error {
			for i := range gateTenants {
				if _, err := tenants.Create(ctx, tx, time.Now(), fmt.Sprintf("tenant-%d", i), "", tenants.DefaultPolicy()); err != nil {
					return err
				}
			}
			return nil
		})
		err = errors.Join(err, j.Flush(ctx))
		j.Close()
	}
	if err != nil {
		return Figure{}, errors.Join(err, own.Close())
	}
	took, err := latencies(10*l.c.Runs, func(int) error {
		j, err := journal.Open(ctx, config)
		if err == nil {
			j.Close()
		}
		return err
	})
	return bounded(fmt.Sprintf("gate check at start, %d tenants", gateTenants), "ms", median(took), gateLimit), errors.Join(err, own.Close())
}

// rotation measures one user's rotation, from the puncture to the confirmation,
// with a tree of three megabytes.
func (l *lab) rotation(ctx context.Context, folder ledger.Ledger, worker, shredder shred.KMS) (Figure, error) {
	t, err := l.tenant(ctx, "rotating", 8)
	if err != nil {
		return Figure{}, err
	}
	pool, err := l.owner(ctx, dev.Database)
	if err != nil {
		return Figure{}, err
	}
	defer pool.Close()
	j, err := journal.Open(ctx, journal.Config{Pool: pool, Ledgers: []ledger.Ledger{folder}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return Figure{}, err
	}
	defer j.Close()
	rotator, err := shred.NewRotator(shred.RotatorConfig{
		Pool: pool, Worker: worker, Shredder: shredder, Ledgers: []ledger.Ledger{folder}, Clock: memd.SystemClock{},
		Logger: slog.New(slog.DiscardHandler), Durable: j.Flush, Allowed: j.Released,
	})
	if err != nil {
		return Figure{}, err
	}
	users := l.rng.Perm(1_000_000)
	rotate := func(users []int) error {
		paths := make([]shred.Path, len(users))
		for i, n := range users {
			no, err := memd.NewNumber(1, int64(n)+1)
			if err != nil {
				return err
			}
			paths[i] = shred.SubjectPath(no)
		}
		err := pool.With(ctx, func(db pg.DB) error {
			return shred.RequestPuncture(ctx, db, t.No, paths, uuid.New(), time.Now())
		})
		if err == nil {
			_, err = rotator.Rotate(ctx, t.No)
		}
		return err
	}
	if err := rotate(users[:rotationErased]); err != nil {
		return Figure{}, err
	}
	took, err := latencies(3*l.c.Runs, func(i int) error { return rotate(users[rotationErased+i:][:1]) })
	return bounded("rotation with a tree of 3 MB, ledger in a folder", "ms", median(took), rotationLimit), err
}

// restoring measures restores of a dump beside bare pg_restores of it, with as many
// connections, in turns: each begins with nothing left to be written to the disk of what was before.
func (l *lab) restoring(ctx context.Context, folder ledger.Ledger, worker shred.KMS) ([]Figure, error) {
	dumped, err := l.dumped(ctx)
	if err != nil {
		return nil, err
	}
	var bare, all, replays []float64
	for range l.c.Runs {
		took, err := l.restored(ctx, func(url string) error {
			program := exec.CommandContext(ctx, filepath.Join(l.d.Cluster.Programs(), "pg_restore"), //nolint:gosec // PostgreSQL's own.
				"--exit-on-error", "--no-owner", "--no-comments", fmt.Sprintf("--jobs=%d", backup.LoadJobs), "--dbname="+url, filepath.Join(dumped, backup.DumpFile))
			out, err := program.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("pg_restore: %w: %s", err, out)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		bare = append(bare, took)
		took, err = l.restored(ctx, func(url string) error {
			report, err := l.restore(ctx, url, dumped, folder, worker)
			replays = append(replays, report.Took.Seconds())
			return err
		})
		if err != nil {
			return nil, err
		}
		all = append(all, took)
	}
	return []Figure{
		bounded(fmt.Sprintf("replay of %d tombstones in a restore of %d rows", l.tombstones(), l.c.RestoreRows), "s", median(replays), restoreLimit),
		against(fmt.Sprintf("restore of a dump of %d rows, load and replay", l.c.RestoreRows), "s", median(all), fmt.Sprintf("pg_restore --jobs=%d", backup.LoadJobs), median(bare),
			"at most 1.15 of it", func(ratio float64) bool { return ratio <= restoreShare }),
	}, nil
}

func (l *lab) tombstones() int { return l.c.RestoreRows / rowsPerTombstone }

// restored restores into a new database, which is dropped again, and returns how
// many seconds that took.
func (l *lab) restored(ctx context.Context, how func(url string) error) (float64, error) {
	const database = "restored"
	if err := l.d.Cluster.CreateDatabase(ctx, database); err != nil {
		return 0, err
	}
	if _, err := l.plain.Exec(ctx, `CHECKPOINT`); err != nil {
		return 0, err
	}
	began := time.Now()
	err := how(l.d.Cluster.URL(database, ""))
	took := time.Since(began)
	if err == nil {
		_, err = l.plain.Exec(ctx, `DROP DATABASE `+database)
	}
	return took.Seconds(), err
}

// restore does what memd restore run --from does.
func (l *lab) restore(ctx context.Context, url, dumped string, folder ledger.Ledger, worker shred.KMS) (restore.Report, error) {
	if _, err := backup.Load(ctx, url, dumped, ""); err != nil {
		return restore.Report{}, err
	}
	pool, err := pg.Open(ctx, pg.Config{URL: url, MaxConns: 24, AcquireTimeout: time.Minute})
	if err != nil {
		return restore.Report{}, err
	}
	defer pool.Close()
	report, err := restore.Run(ctx, restore.Config{
		Pool: pool, Ledgers: []ledger.Ledger{folder}, KMS: worker, Clock: memd.SystemClock{}, Logger: slog.New(slog.DiscardHandler),
	})
	if err == nil && report.Fell != int64(l.tombstones()) {
		err = fmt.Errorf("%d rows fell to %d tombstones", report.Fell, l.tombstones())
	}
	return report, err
}

// dumped fills a tenant, takes a dump, and deletes rows. It returns the dump's
// folder.
func (l *lab) dumped(ctx context.Context) (dir string, err error) {
	const batch = memd.MaxBatch
	t, err := l.tenant(ctx, "restoring", 384)
	if err != nil {
		return "", err
	}
	doomed := make([]memory.Row, 0, batch)
	type deletion struct {
		scope memd.Scope
		id    uuid.UUID
	}
	var deletions []deletion
	for n := 0; n < l.c.RestoreRows; n += batch {
		user := l.newUser()
		doomed = doomed[:0]
		for range min(batch, l.c.RestoreRows-n) {
			doomed = append(doomed, l.row(user, t.Dimension))
		}
		added, err := l.d.Server.Memory.Add(ctx, t.Tenant, doomed)
		if err != nil {
			return "", err
		}
		for i := 0; i < len(added) && len(deletions) < (n+batch)/rowsPerTombstone && len(deletions) < l.tombstones(); i++ {
			deletions = append(deletions, deletion{user, added[i].ID})
		}
	}
	dir = filepath.Join(l.c.Dir, "backup")
	if _, err := backup.Take(ctx, memd.SystemClock{}, l.d.Cluster.URL(dev.Database, ""), dir, ""); err != nil {
		return "", err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(deleters)
	for _, d := range deletions {
		group.Go(func() error {
			_, err := l.d.Server.Memory.Delete(ctx, t.Tenant, d.scope, d.id, false)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return "", err
	}
	return dir, errors.Join(l.d.Server.Flush(context.WithoutCancel(ctx)), os.Chmod(dir, 0o755))
}
