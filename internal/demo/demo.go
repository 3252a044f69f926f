package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/cluster"
	"forgettable.dev/memd/internal/dev"
)

// Instead is what is done in the place of forgetting.
type Instead string

const (
	// Forget is the zero value: nothing else is done.
	Forget Instead = ""
	// DoNothing leaves the forgetting out. Nearly every check must fail.
	DoNothing Instead = "nothing"
	// DeleteRows deletes the user's rows one by one, and what was derived from
	// them, and the rest of what memd has of the user. Search is as good as after
	// a forgetting; the backups are not.
	DeleteRows Instead = "delete"
	// ForgeReceipt forgets, and changes one byte of the receipt before it is
	// verified.
	ForgeReceipt Instead = "forge"
)

// API is what a tenant's agent calls, and an operator.
type API struct {
	Session   memdv1connect.SessionServiceClient
	Memory    memdv1connect.MemoryServiceClient
	Artifacts memdv1connect.ArtifactServiceClient
	Erasure   memdv1connect.ErasureServiceClient
	Admin     memdv1connect.AdminServiceClient
	Targets   memdv1connect.TargetServiceClient
}

// Config says where the demo runs. All fields are required but Color and Instead.
type Config struct {
	// Dir is an empty or new folder for everything that the demo makes. The
	// caller removes it, with Remove.
	Dir string
	Out io.Writer
	// Color marks the output for a terminal.
	Color bool
	// Instead replaces the forgetting, to see the checks fail.
	Instead Instead
	// Connect makes clients that call url with an API key, and Reason reads the
	// machine-readable reason of their errors.
	Connect func(url, key string) (API, error)
	Reason  func(error) memdv1.Reason
	// Command runs memd's own command line, and returns what it prints. It fails
	// when the exit status is not 0.
	Command func(ctx context.Context, args ...string) (stdout string, err error)
}

// demo is one run.
type demo struct {
	*board
	c     Config
	began time.Time
	dev   *dev.Dev
	url   string
	keys  keyService
	live  *witness

	operator     API
	acme, globex *customer
	outside      *outside
	derived      derivedRows
	// mara is who is forgotten, as the database knows her.
	mara person
	// before is what the tables, searches and backups showed.
	before observation
	dump   string
	// months are those of which there is anything, the oldest first, and promised
	// what has to stay readable of whom; readers are the lines of the table, and
	// kmsKeys the tenants' keys at the key service.
	months   []memd.Month
	promised map[cell]promise
	readers  []reader
	kmsKeys  map[memd.TenantNo]string
	// operations are the key service's that forgetting took, and again is the
	// number of who was forgotten and has come back.
	operations int
	again      memd.Number
	// request and salt are of the erasure, and steps which of its steps were
	// shown. The report is nil when nobody was forgotten.
	request, salt string
	steps         map[string]bool
	dry           map[string]int64
	planted       uuid.UUID
	report        *memdv1.Report
	// month and purged are the reports of the month that expired, and of globex's
	// purge.
	month, purged *memdv1.Report
}

// Run runs the demo and writes what it shows to Config.Out. It returns a
// *FailedError when a check failed, and another error when the demo could not go
// on. Everything that it starts has ended when it returns.
func Run(ctx context.Context, c Config) (err error) {
	d := &demo{c: c, began: time.Now(), board: &board{out: c.Out, color: c.Color}, steps: map[string]bool{}}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return fmt.Errorf("making the demo's folder: %w", err)
	}
	// MkdirTemp makes 0700 folders, which PostgreSQL's own user cannot pass.
	if err := os.Chmod(c.Dir, 0o755); err != nil { //nolint:gosec // Keys and data have folders of their own.
		return fmt.Errorf("opening the demo's folder: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(c.Dir, "memd.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	d.dev, err = dev.Start(ctx, dev.Config{
		Dir: c.Dir, Listen: "127.0.0.1:0", Logger: slog.New(slog.NewJSONHandler(log, nil)),
	})
	if err != nil {
		return fmt.Errorf("starting memd: %w", err)
	}
	defer func() { err = errors.Join(err, d.dev.Close()) }()
	d.url = "http://" + d.dev.Address
	d.section("memd runs, after %s", time.Since(d.began).Round(10*time.Millisecond))
	d.show("API %s, PostgreSQL on a socket, KMS emulator %s, ledger folder", d.url, d.dev.KMSAddress)
	if d.keys, err = openKeyService(ctx, d.dev); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.keys.close()) }()
	if d.live, err = openWitness(ctx, d.dev.Cluster.URL(dev.Database, "")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.live.close()) }()
	defer func() { err = errors.Join(err, d.outside.close()) }()
	for _, step := range []func(context.Context) error{
		d.customers, d.converse, d.derive, d.lookBefore, d.backup, d.countFirst, d.forget,
		// While the tenant's ingestion delay passes: what needs no live rows.
		d.checkKeys, d.checkBackup, d.checkSweep,
		d.checkLive, d.checkLateWrites, d.checkReturn, d.checkReceipt,
		d.expire, d.leave, d.table, d.ending, d.checkNothingInClear,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	d.show("Took %s.", time.Since(d.began).Round(100*time.Millisecond))
	return d.result()
}

// Remove deletes what Run left in the folder, wherever PostgreSQL's data lies.
func Remove(dir string) error {
	return errors.Join(cluster.Remove(filepath.Join(dir, "postgres")), os.RemoveAll(dir))
}
