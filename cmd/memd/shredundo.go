package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/undo"
)

// shredCmd looks after destroyed keys.
type shredCmd struct {
	Undo shredUndoCmd `cmd:"" help:"Take back an erasure of the wrong one, while the key service can still restore its keys: one person asks, another one approves."`
}

type shredUndoCmd struct {
	logFlags
	ownerFlags
	ledgerFlags
	Tenant              string    `required:"" help:"Name of the tenant."`
	Erasure             uuid.UUID `required:"" help:"Request id of the erasure."`
	Reason              string    `xor:"what" help:"Ask for it, and say why. It is kept sealed, and shown to who approves. MEMD_API_KEY has the role operator."`
	Approve             bool      `xor:"what" help:"Approve what another person asked for, and carry it out. MEMD_API_KEY has the role approver."`
	APIKey              string    `name:"api-key" required:"" env:"MEMD_API_KEY" help:"API key of who asks, or approves."`
	KMS                 string    `required:"" name:"kms" env:"MEMD_KMS" help:"Key service, as the worker has it."`
	KMSToken            string    `name:"kms-token" env:"MEMD_KMS_TOKEN" help:"The worker's token at the KMS emulator."`
	KMSCredentials      string    `name:"kms-credentials" env:"MEMD_KMS_CREDENTIALS" help:"Credentials file of the worker's identity."`
	KMSImpersonate      string    `name:"kms-impersonate" env:"MEMD_KMS_IMPERSONATE" help:"Service account to act as: the worker's."`
	ShredderToken       string    `name:"shredder-kms-token" env:"MEMD_SHREDDER_KMS_TOKEN" help:"The shredder's token at the KMS emulator."`
	ShredderCredentials string    `name:"shredder-kms-credentials" env:"MEMD_SHREDDER_KMS_CREDENTIALS" help:"Credentials file of the shredder's identity."`
	ShredderImpersonate string    `name:"shredder-kms-impersonate" env:"MEMD_SHREDDER_KMS_IMPERSONATE" help:"Service account of the shredder."`
	RestorerToken       string    `name:"restorer-kms-token" env:"MEMD_RESTORER_KMS_TOKEN" help:"An administrator's token at the KMS emulator."`
	RestorerCredentials string    `name:"restorer-kms-credentials" env:"MEMD_RESTORER_KMS_CREDENTIALS" help:"Credentials file of an identity that may restore and enable versions: cloudkms.cryptoKeyVersions.restore, .update and .get."`
	RestorerImpersonate string    `name:"restorer-kms-impersonate" env:"MEMD_RESTORER_KMS_IMPERSONATE" help:"Service account of that identity."`
}

func (c *shredUndoCmd) Run(ctx context.Context, con *console) (err error) {
	if c.Reason == "" && !c.Approve {
		return usagef("say what is to be done: --reason asks for it, --approve approves it and carries it out")
	}
	u, end, err := c.open(ctx, c.logger(con.Stderr))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	if !c.Approve {
		until, err := u.Request(ctx, c.APIKey, c.Tenant, c.Erasure, c.Reason)
		if err != nil {
			return err
		}
		fmt.Fprintf(con.Stdout, "Noted. Another person approves it with --approve, before %s: then the key is gone for good.\n",
			until.UTC().Format("2006-01-02 15:04 MST"))
		return nil
	}
	asked, err := u.Asked(ctx, c.APIKey, c.Tenant, c.Erasure)
	if err != nil {
		return err
	}
	con.notef("API key %s asked for it at %s: %s", asked.By, asked.At.UTC().Format("2006-01-02 15:04 MST"), oneLine(asked.Reason))
	done, err := u.Approve(ctx, c.APIKey, c.Tenant, c.Erasure)
	if err != nil {
		return err
	}
	fmt.Fprintf(con.Stdout, "Keys that are there again: those of %d subjects or sessions, in state %d of the key tree, from state %d.\n",
		len(done.Paths), done.Epoch, done.Source)
	fmt.Fprintf(con.Stdout, "The version that was restored for it is %s again: %s.\n", done.Version.State, done.Version.Name)
	fmt.Fprintln(con.Stdout, "Rows that were deleted stay deleted. In a backup from before the erasure they open again, and a restore leaves them there.")
	return nil
}

// open opens what an undo needs; end closes it.
func (c *shredUndoCmd) open(ctx context.Context, logger *slog.Logger) (u *undo.Undoer, end func() error, err error) {
	var closers []func() error
	end = func() error {
		var errs []error
		for i := len(closers) - 1; i >= 0; i-- {
			errs = append(errs, closers[i]())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, end())
		}
	}()
	ledgers, closer, err := c.openLedgers(ctx)
	if err != nil {
		return nil, end, err
	}
	closers = append(closers, closer.Close)
	var clients []*gcpkms.Client
	for _, id := range []gcpkms.Config{
		{Token: c.KMSToken, CredentialsFile: c.KMSCredentials, Impersonate: c.KMSImpersonate},
		{Token: c.ShredderToken, CredentialsFile: c.ShredderCredentials, Impersonate: c.ShredderImpersonate},
		{Token: c.RestorerToken, CredentialsFile: c.RestorerCredentials, Impersonate: c.RestorerImpersonate},
	} {
		id.URL = c.KMS
		client, err := gcpkms.Open(ctx, id)
		if err != nil {
			return nil, end, fmt.Errorf("opening the key service: %w", err)
		}
		closers = append(closers, client.Close)
		clients = append(clients, client)
	}
	pool, err := pg.Open(ctx, pg.Config{
		URL: c.DatabaseURL, MaxConns: undoConns, AcquireTimeout: time.Minute, ApplicationName: "memd shred undo",
	})
	if err != nil {
		return nil, end, err
	}
	closers = append(closers, func() error { pool.Close(); return nil })
	u, err = undo.New(undo.Config{
		Pool: pool, Ledgers: ledgers, Worker: clients[0], Shredder: clients[1], Restorer: clients[2], Clock: memd.SystemClock{}, Logger: logger,
	})
	return u, end, err
}

// undoConns: one holds the tenant's rotation, the others ship and look.
const undoConns = 6
