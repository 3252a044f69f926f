package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/backup"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/journal"
	"forgettable.dev/memd/restore"
	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/shred/ledger"
)

// ownerFlags reach the database as its owner.
type ownerFlags struct {
	DatabaseURL string `required:"" env:"MEMD_DATABASE_URL" help:"Direct connection string (no pooler), as the database's owner."`
}

// ownerConns is one for each erasure that a restore carries out at a time, and
// some for itself.
const ownerConns = 24

func (f *ownerFlags) pool(ctx context.Context) (*pg.Pool, error) {
	return pg.Open(ctx, pg.Config{URL: f.DatabaseURL, MaxConns: ownerConns, AcquireTimeout: time.Minute, ApplicationName: "memd restore"})
}

// openLedgers opens the locations; the closer closes all.
func (f *ledgerFlags) openLedgers(ctx context.Context) ([]ledger.Ledger, io.Closer, error) {
	if err := f.checkLedgers(); err != nil {
		return nil, nil, err
	}
	var all []ledger.Ledger
	for _, url := range f.Ledger {
		l, err := ledger.Open(ctx, url)
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("opening a ledger: %w", err), ledger.Mirror(all).Close())
		}
		all = append(all, l)
	}
	return all, ledger.Mirror(all), nil
}

// restoreCmd brings a database that was rolled back up to its ledger.
type restoreCmd struct {
	Run     restoreRunCmd     `cmd:"" default:"withargs" help:"Bring a database up to its ledger: replay what it lacks, and open the gate."`
	Release restoreReleaseCmd `cmd:"" help:"Let rotations and the destruction of keys go on after a restore."`
	GiveUp  restoreGiveUpCmd  `cmd:"" name:"give-up" help:"Close a tenant whose keys are lost for good, so that the others are served. It deletes what nobody can open any more."`
}

// restoringFlags reach all that a restore works with.
type restoringFlags struct {
	logFlags
	ownerFlags
	ledgerFlags
	KMS            string `required:"" name:"kms" env:"MEMD_KMS" help:"Key service: gcp:projects/P/locations/L/keyRings/R, or emulator:HOST:PORT."`
	KMSToken       string `name:"kms-token" env:"MEMD_KMS_TOKEN" help:"The worker's token at the KMS emulator."`
	KMSCredentials string `name:"kms-credentials" env:"MEMD_KMS_CREDENTIALS" help:"Credentials file for Cloud KMS, of the worker's identity. Default: the machine's own identity."`
	KMSImpersonate string `name:"kms-impersonate" env:"MEMD_KMS_IMPERSONATE" help:"Service account to act as at Cloud KMS: the worker's."`
}

// with calls f with what a restore works with, whose database before has made.
func (c *restoringFlags) with(ctx context.Context, con *console, before func() error, f func(restore.Config) error) (err error) {
	ledgers, closer, err := c.openLedgers(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	kms, err := gcpkms.Open(ctx, gcpkms.Config{URL: c.KMS, Token: c.KMSToken, CredentialsFile: c.KMSCredentials, Impersonate: c.KMSImpersonate})
	if err != nil {
		return fmt.Errorf("opening the key service: %w", err)
	}
	defer func() { err = errors.Join(err, kms.Close()) }()
	if err := before(); err != nil {
		return err
	}
	pool, err := c.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	return f(restore.Config{Pool: pool, Ledgers: ledgers, KMS: kms, Clock: memd.SystemClock{}, Logger: c.logger(con.Stderr)})
}

type restoreRunCmd struct {
	restoringFlags
	From    string `xor:"how" help:"Folder of a backup that memd backup made; the database must be empty."`
	InPlace bool   `xor:"how" help:"The database was restored already: a base backup, a snapshot, a point in time, a failover."`
	Sample  int    `default:"10000" help:"How many rows of each tenant must open before the gate does."`
	PGBin   string `name:"pg-bin" env:"MEMD_PG_BIN" help:"Folder of pg_restore. Default: the usual places."`
}

func (c *restoreRunCmd) Run(ctx context.Context, con *console) (err error) {
	if c.From == "" && !c.InPlace {
		return usagef("say what is restored: --from FOLDER, into an empty database, or --in-place, where it was restored already")
	}
	load := func() error {
		if c.From == "" {
			return nil
		}
		m, err := backup.Load(ctx, c.DatabaseURL, c.From, c.PGBin)
		if err == nil {
			fmt.Fprintf(con.Stdout, "The backup of %s is loaded: record %d of the journal, generation %d.\n",
				m.TakenAt.Format("2006-01-02 15:04:05 MST"), m.Record, m.Generation)
		}
		return err
	}
	return c.with(ctx, con, load, func(config restore.Config) error {
		config.Sample = c.Sample
		report, err := restore.Run(ctx, config)
		if err == nil {
			printRestore(con.Stdout, report)
		}
		return err
	})
}

func printRestore(w io.Writer, r restore.Report) {
	if !r.Missing {
		fmt.Fprintf(w, "Nothing is missing: database and ledger are at record %d. The gate opens by itself.\n", r.To)
		return
	}
	fmt.Fprintf(w, "Replayed records %d to %d of the journal in %s:\n", r.From+1, r.To, r.Took.Round(time.Millisecond))
	kinds := make([]journal.Kind, 0, len(r.Facts))
	for k := range r.Facts {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	for _, k := range kinds {
		fmt.Fprintf(w, "  %6d  %s\n", r.Facts[k], k)
	}
	fmt.Fprintf(w, "Rows that fell to a tombstone: %d. Erasures carried out again: %d. Receipts recovered: %d.\n", r.Fell, r.Erasures, r.Receipts)
	fmt.Fprintf(w, "Rows that were opened: %d of %d tenants; all of them open.\n", r.Rows, r.Tenants)
	fmt.Fprintf(w, "The gate is open, in generation %d. Processes that ran before end, and are to be started again.\n", r.Generation)
	fmt.Fprintln(w, "Rotations and the destruction of keys wait: look at what was restored, then run \"memd restore release\".")
}

type restoreGiveUpCmd struct {
	restoringFlags
	Name    string `arg:"" help:"Name of the tenant."`
	Confirm string `required:"" placeholder:"DISPLAY-NAME" help:"The tenant's display name, to say that it is this one."`
}

func (c *restoreGiveUpCmd) Run(ctx context.Context, con *console) error {
	return c.with(ctx, con, func() error { return nil }, func(config restore.Config) error {
		g, err := restore.GiveUp(ctx, config, c.Name, c.Confirm)
		if err != nil {
			return err
		}
		fmt.Fprintf(con.Stdout, "Lost: %v.\n", g.Lost)
		fmt.Fprintf(con.Stdout, "Tenant %s is %s: %d rows that nobody can open and its API keys are deleted. There is no receipt, since nobody asked for it.\n",
			g.Tenant.Name, g.Tenant.State, g.Rows)
		fmt.Fprintln(con.Stdout, "If a restore stopped at it, run \"memd restore run --in-place\" again.")
		return nil
	})
}

type restoreReleaseCmd struct {
	ownerFlags
}

func (c *restoreReleaseCmd) Run(ctx context.Context, con *console) error {
	pool, err := c.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	released, err := restore.Release(ctx, pool)
	if err != nil {
		return err
	}
	if !released {
		fmt.Fprintln(con.Stdout, "Nothing was waiting for a release.")
		return nil
	}
	fmt.Fprintln(con.Stdout, "Released: workers rotate keys and destroy versions again.")
	return nil
}

// backupCmd takes a dump.
type backupCmd struct {
	ownerFlags
	Folder string `arg:"" help:"Folder of the backup. It is made, and never overwritten."`
	PGBin  string `name:"pg-bin" env:"MEMD_PG_BIN" help:"Folder of pg_dump. Default: the usual places."`
}

func (c *backupCmd) Run(ctx context.Context, con *console) error {
	m, err := backup.Take(ctx, memd.SystemClock{}, c.DatabaseURL, c.Folder, c.PGBin)
	if err != nil {
		return err
	}
	fmt.Fprintf(con.Stdout, "Dumped %d kB to %s: schema %d, generation %d, record %d of the journal, %d tenants.\n",
		m.Bytes/1000, c.Folder, m.Schema, m.Generation, m.Record, len(m.Epochs))
	fmt.Fprintln(con.Stdout, "It is of use only together with the ledger and the key service, which are not in it.")
	return nil
}

// ledgerCmd looks after the ledgers.
type ledgerCmd struct {
	Status  ledgerStatusCmd  `cmd:"" help:"Say what each location holds."`
	Verify  ledgerVerifyCmd  `cmd:"" help:"Read everything in every location: the journal's checksums and chain, and that all have the same."`
	Mirror  ledgerMirrorCmd  `cmd:"" help:"Copy to every location what it lacks and another has."`
	Rebuild ledgerRebuildCmd `cmd:"" help:"Write a ledger that was lost, in every location, anew from the database."`
}

type ledgerStatusCmd struct{ ledgerFlags }

func (c *ledgerStatusCmd) Run(ctx context.Context, con *console) (err error) {
	ledgers, closer, err := c.openLedgers(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	in, err := journal.Status(ctx, ledgers)
	if err != nil {
		return err
	}
	printLedgers(con.Stdout, ledgers, in)
	return nil
}

func printLedgers(w io.Writer, ledgers []ledger.Ledger, in journal.Inspection) {
	fmt.Fprintf(w, "Installation %s, generation %d, last record %d.\n", in.Installation, in.Generation, in.Last)
	for i, l := range in.Locations {
		fmt.Fprintf(w, "  %d  %v: %d names, records %d to %d, %d missing\n", i+1, ledgers[i], l.Names, l.First, l.Last, l.Missing)
	}
}

type ledgerVerifyCmd struct{ ledgerFlags }

func (c *ledgerVerifyCmd) Run(ctx context.Context, con *console) (err error) {
	ledgers, closer, err := c.openLedgers(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	in, err := journal.Verify(ctx, ledgers)
	if err != nil {
		return err
	}
	printLedgers(con.Stdout, ledgers, in)
	for _, p := range in.Problems {
		fmt.Fprintf(con.Stdout, "  problem: %s\n", p)
	}
	if len(in.Problems) > 0 {
		return fmt.Errorf("%d problems: %w", len(in.Problems), memd.ErrCorrupt)
	}
	fmt.Fprintln(con.Stdout, "Every location is whole, and they have the same.")
	return nil
}

type ledgerMirrorCmd struct{ ledgerFlags }

func (c *ledgerMirrorCmd) Run(ctx context.Context, con *console) (err error) {
	ledgers, closer, err := c.openLedgers(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	n, err := journal.Repair(ctx, ledgers)
	fmt.Fprintf(con.Stdout, "Copied %d names.\n", n)
	return err
}

type ledgerRebuildCmd struct {
	logFlags
	ownerFlags
	ledgerFlags
}

func (c *ledgerRebuildCmd) Run(ctx context.Context, con *console) (err error) {
	ledgers, closer, err := c.openLedgers(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	pool, err := c.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	n, err := restore.RebuildLedger(ctx, pool, ledgers, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	fmt.Fprintf(con.Stdout, "Wrote %d facts and every key tree of the database. What only the lost ledger knew stays lost.\n", n)
	return nil
}
