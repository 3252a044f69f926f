package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"connectrpc.com/connect/v2"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/shred/ledger"
	"forgettable.dev/memd/tenants"
)

// databaseFlag is for commands that read the database themselves, so that what
// they print did not pass through the service that it is to check.
type databaseFlag struct {
	DatabaseURL string `required:"" env:"MEMD_DATABASE_URL" help:"PostgreSQL connection string, as a role that may read receipts."`
}

func (f *databaseFlag) with(ctx context.Context, use func(db pg.DB) error) error {
	pool, err := pg.Open(ctx, pg.Config{URL: f.DatabaseURL, MaxConns: 1, ApplicationName: "memd receipt"})
	if err != nil {
		return err
	}
	defer pool.Close()
	return pool.With(ctx, func(db pg.DB) error {
		if err := pg.CheckSchema(ctx, db); err != nil {
			return err
		}
		return use(db)
	})
}

type receiptPublicKeyCmd struct {
	DatabaseURL string `placeholder:"URL" help:"Ask the database and not the server, as a role that may read receipts."`
	serverFlags
}

// Run prints the public keyset, in the JSON of Tink's keysets.
func (c *receiptPublicKeyCmd) Run(ctx context.Context, con *console) error {
	data, err := c.fetch(ctx)
	if errors.Is(err, memd.ErrNotFound) || connect.CodeOf(err) == connect.CodeNotFound {
		err = &hintedError{err: err, hint: "A worker makes the first key with the first receipt."}
	}
	if err == nil {
		_, err = con.Stdout.Write(data)
	}
	return err
}

func (c *receiptPublicKeyCmd) fetch(ctx context.Context) (data []byte, err error) {
	if c.DatabaseURL == "" {
		server, err := c.connect()
		if err != nil {
			return nil, err
		}
		resp, err := server.Erasure.GetReceiptKeys(ctx, &memdv1.GetReceiptKeysRequest{})
		return resp.GetKeyset(), err
	}
	err = (&databaseFlag{c.DatabaseURL}).with(ctx, func(db pg.DB) error {
		keys, err := receipts.PublicKeys(ctx, db)
		if err == nil {
			data, err = keys.JSON()
		}
		return err
	})
	return data, err
}

type receiptExportCmd struct {
	Tenant string `arg:"" help:"The tenant's name."`
	To     string `required:"" placeholder:"DIR" help:"Folder, made when it is missing. Files that are there are not written over."`
	databaseFlag
}

// Run writes one file for each receipt of the tenant's log, named by its
// number, and is safe to repeat: it adds what is new.
func (c *receiptExportCmd) Run(ctx context.Context, con *console) error {
	if err := os.MkdirAll(c.To, 0o755); err != nil {
		return err
	}
	written, next := 0, uint64(0)
	err := c.with(ctx, func(db pg.DB) error {
		tenant, err := tenants.Get(ctx, db, c.Tenant)
		if err != nil {
			return err
		}
		for {
			page, err := receipts.ReadLog(ctx, db, tenant.No, next)
			if err != nil || len(page) == 0 {
				return err
			}
			for _, b := range page {
				fresh, err := writeBundle(c.To, b)
				if err != nil {
					return err
				}
				if fresh {
					written++
				}
				next = b.Entry.Index + 1
			}
		}
	})
	if err != nil {
		return err
	}
	con.notef("%s written, of %d.", plural(int64(written), "receipt", "receipts"), next)
	return nil
}

type receiptConsistencyCmd struct {
	Tenant string `arg:"" help:"The tenant's name."`
	From   uint64 `required:"" placeholder:"SIZE" help:"Entries of the earlier checkpoint: its second line, or a receipt's number and one."`
	To     uint64 `required:"" placeholder:"SIZE" help:"Entries of the later one."`
	databaseFlag
}

// Run prints the proof, for "memd receipt verify --consistency".
func (c *receiptConsistencyCmd) Run(ctx context.Context, con *console) error {
	return c.with(ctx, func(db pg.DB) error {
		tenant, err := tenants.Get(ctx, db, c.Tenant)
		if err != nil {
			return err
		}
		proof, err := receipts.ProveConsistency(ctx, db, tenant.No, c.From, c.To)
		if err != nil {
			return err
		}
		data, err := proof.Encode()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(con.Stdout, "%s\n", data)
		return err
	})
}

// writeBundle reports whether the file is new. One that is there and differs is
// an error: the log, or the file, was changed.
func writeBundle(dir string, b receipts.Bundle) (bool, error) {
	data, err := b.Encode()
	if err != nil {
		return false, err
	}
	data = append(data, '\n')
	name := filepath.Join(dir, fmt.Sprintf("%012d.json", b.Entry.Index))
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, os.ErrExist) {
		there, err := os.ReadFile(name)
		if err == nil && string(there) != string(data) {
			err = fmt.Errorf("%s differs from receipt number %d of the log", name, b.Entry.Index)
		}
		return false, err
	}
	if err != nil {
		return false, err
	}
	_, err = f.Write(data)
	return true, errors.Join(err, f.Close())
}

type receiptRotateKeyCmd struct {
	DatabaseURL    string   `required:"" env:"MEMD_DATABASE_URL" help:"PostgreSQL connection string of the primary, as a role that may become memd_worker."`
	KMS            string   `required:"" name:"kms" env:"MEMD_KMS" help:"Key service: gcp:projects/P/locations/L/keyRings/R, or emulator:HOST:PORT."`
	KMSToken       string   `name:"kms-token" env:"MEMD_KMS_TOKEN" help:"The worker's token at the KMS emulator."`
	KMSCredentials string   `name:"kms-credentials" env:"MEMD_KMS_CREDENTIALS" help:"Credentials file for Cloud KMS. Default: the machine's own identity."`
	KMSImpersonate string   `name:"kms-impersonate" env:"MEMD_KMS_IMPERSONATE" help:"Service account to act as at Cloud KMS."`
	Ledger         []string `required:"" sep:"," help:"The worker's ledgers, in the worker's order."`
}

// Run makes a key and prints its id. Workers sign with it from their next receipt on.
func (c *receiptRotateKeyCmd) Run(ctx context.Context, con *console) (err error) {
	pool, err := pg.Open(ctx, pg.Config{URL: c.DatabaseURL, Role: node.WorkerRole, MaxConns: 2, ApplicationName: "memd receipt rotate-key"})
	if err != nil {
		return err
	}
	defer pool.Close()
	var installation uuid.UUID
	err = pool.With(ctx, func(db pg.DB) (err error) {
		if err := pg.CheckSchema(ctx, db); err != nil {
			return err
		}
		installation, err = provenance.Installation(ctx, db)
		return err
	})
	if err != nil {
		return err
	}
	kms, err := gcpkms.Open(ctx, gcpkms.Config{
		URL: c.KMS, Token: c.KMSToken, CredentialsFile: c.KMSCredentials, Impersonate: c.KMSImpersonate,
	})
	if err != nil {
		return fmt.Errorf("opening the key service: %w", err)
	}
	defer func() { err = errors.Join(err, kms.Close()) }()
	var places []ledger.Ledger
	for _, url := range c.Ledger {
		l, err := ledger.Open(ctx, url)
		if err != nil {
			return fmt.Errorf("opening a ledger: %w", err)
		}
		if closer, ok := l.(io.Closer); ok {
			defer func() { _ = closer.Close() }() // Nothing that was Put depends on it.
		}
		places = append(places, l)
	}
	signer, err := receipts.RotateKey(ctx, receipts.SignerConfig{
		Pool: pool, KMS: kms, Ledger: ledger.Mirror(places), Installation: installation,
	})
	if err != nil {
		return err
	}
	con.notef("Workers sign with it from their next receipt on. Publish the new public keys: \"memd receipt public-key\".")
	_, err = fmt.Fprintln(con.Stdout, signer.Key())
	return err
}
