package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

type erasureDryRunCmd struct {
	appFlag
	User         string `arg:"" optional:"" name:"user-id" help:"The user. Left out, with --tenant: the whole tenant."`
	Session      string `placeholder:"ID" help:"Only this conversation of the user."`
	KeepMemories bool   `help:"With --session: its own content alone."`
	Tenant       string `help:"With a key of the installation: the tenant."`
	outputFlags
	serverFlags
}

// Run counts.
func (c *erasureDryRunCmd) Run(ctx context.Context, con *console) error {
	if c.User == "" && c.Tenant == "" {
		return usagef("whose? name a user, or a tenant by --tenant")
	}
	server, err := c.connect()
	if err != nil {
		return err
	}
	req := &memdv1.DryRunRequest{Tenant: c.Tenant}
	if c.User != "" {
		req.App, req.UserId, req.SessionId, req.KeepMemories = c.App, c.User, c.Session, c.KeepMemories
	}
	resp, err := server.Erasure.DryRun(ctx, req)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	if c.User == "" {
		if err := printTenantPreview(con, c.Tenant, resp); err != nil || !resp.GetHeld() {
			return err
		}
		con.notef("A legal hold would keep it from beginning.")
		return nil
	}
	t := newTable(con.Stdout, "STORE", "WOULD GO")
	for _, n := range resp.GetCounts() {
		t.row(n.GetStore(), fmt.Sprint(n.GetBefore()))
	}
	t.row("conversations known", fmt.Sprint(resp.GetSessions()))
	if err := t.close(); err != nil {
		return err
	}
	if resp.GetHeld() {
		con.notef("A legal hold would keep it from beginning.")
	}
	return nil
}

type erasureVerifyCmd struct {
	WholeStore bool          `help:"Search all of the tenant's store for what was drawn, and wait for it."`
	Rows       int64         `placeholder:"N" help:"Search so many rows. Default: what the worker's --verify-rows says."`
	MiB        int64         `name:"mib" placeholder:"N" help:"Search so much of what is sealed. Default: what the worker's --verify-mib says."`
	Time       time.Duration `placeholder:"DURATION" help:"Search so long, an hour at most. Default: what the worker's --verify-time says, or, of the whole store, an hour."`
	erasureFlags
	outputFlags
}

// Run has the verifier look, waits for it, and fails when it found something.
func (c *erasureVerifyCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := c.look(ctx, con, server)
	if err != nil {
		return err
	}
	if c.JSON {
		err = writeMessage(con.Stdout, resp)
	} else {
		err = printChecks(con, resp.GetChecks())
	}
	switch {
	case err != nil:
		return err
	case !resp.GetFinished():
		return fmt.Errorf("no worker has answered in time; ask again")
	}
	for _, check := range resp.GetChecks() {
		if check.GetResult() == "fail" {
			return fmt.Errorf("something is left: check %s", check.GetName())
		}
	}
	return nil
}

// look asks once, and of a search that was given a budget again and again, for the
// same one.
func (c *erasureVerifyCmd) look(ctx context.Context, con *console, server *clients) (*memdv1.VerifyErasureResponse, error) {
	req := &memdv1.VerifyErasureRequest{RequestId: c.Request, Tenant: c.Tenant}
	if c.WholeStore || c.Rows != 0 || c.MiB != 0 || c.Time != 0 {
		req.Budget = &memdv1.SearchBudget{WholeStore: c.WholeStore, Rows: c.Rows, Mebibytes: c.MiB}
		if c.Time != 0 {
			req.Budget.Time = durationpb.New(c.Time)
		}
	}
	for {
		resp, err := server.Erasure.VerifyErasure(ctx, req)
		if err != nil || resp.GetFinished() || req.Budget == nil {
			return resp, err
		}
		con.notef("A worker is looking.")
		req.Verification = resp.GetVerification()
		if !pause(ctx, firstPollPause) {
			return nil, ctx.Err()
		}
	}
}

type erasureRemoveCmd struct {
	Request string   `arg:"" name:"request-id" help:"The request id of the erasure."`
	Rows    []string `arg:"" name:"row" help:"Rows, as \"memd erasure get --json\" names them: the table, a colon and the id."`
	Tenant  string   `help:"With a key of the installation: the tenant."`
	serverFlags
}

// Run has the rows deleted before the next look.
func (c *erasureRemoveCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	rows := make([]string, len(c.Rows))
	for i, row := range c.Rows {
		rows[i] = strings.Replace(row, ":", " ", 1)
	}
	_, err = server.Erasure.RemoveSurvivors(ctx, &memdv1.RemoveSurvivorsRequest{RequestId: c.Request, Tenant: c.Tenant, Rows: rows})
	if err == nil {
		con.notef("A worker deletes %s and looks again, within a minute.", plural(int64(len(rows)), "row", "rows"))
	}
	return err
}

type erasureReceiptCmd struct {
	Last bool `help:"Only the newest."`
	erasureFlags
}

// Run prints the receipts, one a line.
func (c *erasureReceiptCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Erasure.GetReceipt(ctx, &memdv1.GetReceiptRequest{RequestId: c.Request, Tenant: c.Tenant})
	if err != nil {
		return err
	}
	bundles := resp.GetBundles()
	if c.Last && len(bundles) > 0 {
		bundles = bundles[len(bundles)-1:]
	}
	for _, b := range bundles {
		if _, err := fmt.Fprintf(con.Stdout, "%s\n", b); err != nil {
			return err
		}
	}
	return nil
}
