package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"forgettable.dev/memd/internal/demo"
)

// demoCmd shows that forgetting works.
type demoCmd struct {
	Keep    string `placeholder:"DIR" help:"Use this folder, which must be new or empty, and leave everything in it."`
	Instead string `enum:",nothing,delete,forge" default:"" placeholder:"nothing|delete|forge" help:"Do nothing instead of forgetting, or delete the rows only, or forget and forge the receipt: checks must fail then, which shows that they can."`
}

// Help is the longer text of --help.
func (demoCmd) Help() string {
	return "Runs a whole memd in a temporary folder, with two tenants, takes a backup with pg_dump, forgets a user and looks for them: in the service, in the tables, in the keys and in the backup. Then a month of one tenant expires, the other tenant leaves, and a table shows what can still be read of whom, live and in the backup, with the dates and what it costs. Each line with a mark, and each cell of the table, is a check. A check that fails makes the exit status 1."
}

// callTimeout bounds a call of the demo's.
const callTimeout = time.Minute

// Run runs the demo.
func (c *demoCmd) Run(ctx context.Context, con *console) (err error) {
	noCoreDumps()
	dir := c.Keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "memd-demo-"); err != nil {
			return fmt.Errorf("making a temporary folder: %w", err)
		}
		defer func() { err = errors.Join(err, demo.Remove(dir)) }()
	} else if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return usagef("--keep=%s is not empty", dir)
	}
	err = demo.Run(ctx, demo.Config{
		Dir: dir, Out: con.Stdout, Color: isTerminal(con.Stdout) && con.Getenv("NO_COLOR") == "",
		Instead: demo.Instead(c.Instead), Connect: c.connect, Reason: reasonOf, Command: command,
	})
	if c.Keep != "" {
		con.notef("Everything is in %s.", dir)
	}
	return err
}

func (demoCmd) connect(url, key string) (demo.API, error) {
	flags := serverFlags{URL: url, APIKey: key, Timeout: callTimeout}
	clients, err := flags.connect()
	if err != nil {
		return demo.API{}, err
	}
	return demo.API{
		Session: clients.Session, Memory: clients.Memory, Artifacts: clients.Artifacts,
		Erasure: clients.Erasure, Admin: clients.Admin, Targets: clients.Targets,
	}, nil
}

// command runs this command line with nothing of the environment, for what the
// demo shows of it.
func command(ctx context.Context, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	none := func(string) string { return "" }
	if status := run(ctx, args, none, strings.NewReader(""), &stdout, &stderr); status != exitOK {
		return stdout.String(), fmt.Errorf("exit status %d, %s", status, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
