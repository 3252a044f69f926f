package main

import (
	"context"
	"fmt"
	"strings"

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
	erasureFlags
	outputFlags
}

// Run has the verifier look, and fails when it found something.
func (c *erasureVerifyCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Erasure.VerifyErasure(ctx, &memdv1.VerifyErasureRequest{RequestId: c.Request, Tenant: c.Tenant})
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
