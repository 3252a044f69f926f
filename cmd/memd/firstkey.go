package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
)

// firstKeyCmd makes the key with which all others are made. It needs the
// database, because nobody has a key yet.
type firstKeyCmd struct {
	DatabaseURL string `required:"" env:"MEMD_DATABASE_URL" help:"Connection string, as the database's owner."`
	Approver    bool   `help:"Make an approver's key instead: the first, or with --another one although there are some."`
	Another     bool   `help:"Make one although there are keys, because the last operator's was lost. The others stay good."`
}

// Run makes an operator's key of the installation. The secret goes to standard
// output, and that it is shown once to standard error.
func (c *firstKeyCmd) Run(ctx context.Context, con *console) error {
	pool, err := pg.Open(ctx, pg.Config{URL: c.DatabaseURL, MaxConns: 1, ApplicationName: "memd first-key"})
	if err != nil {
		return err
	}
	defer pool.Close()
	var secret string
	err = pool.With(ctx, func(db pg.DB) error {
		if err := pg.CheckSchema(ctx, db); err != nil {
			return err
		}
		none, err := auth.None(ctx, db)
		made := auth.NewKey{Name: "operator", Roles: auth.Operator}
		if c.Approver {
			made = auth.NewKey{Name: "approver", Roles: auth.Approver}
			had, anyErr := auth.HadApprover(ctx, db, auth.Installation)
			none, err = !had, anyErr
		}
		if err != nil {
			return err
		}
		if !none && !c.Another {
			return &hintedError{
				err:  errors.New("there are such API keys already"),
				hint: "Use an operator's key and \"memd apikey create\". If the last one is lost, say --another.",
			}
		}
		_, secret, err = auth.Create(ctx, db, time.Now().UTC(), made)
		return err
	})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(con.Stdout, secret); err != nil {
		return err
	}
	what := "The operator's API key: it makes tenants and their keys."
	if c.Approver {
		what = "An approver's API key: it approves what cannot be undone, and makes other approvers."
	}
	con.notef("%s It is stored as a hash and is not shown again.", what)
	return nil
}
