package main

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// tenantStateFlags are common to the commands that change a tenant's state.
type tenantStateFlags struct {
	Name   string `arg:"" help:"Name of the tenant."`
	Reason string `required:"" placeholder:"TEXT" help:"Why. It is stored sealed and shown to auditors."`
	outputFlags
	serverFlags
}

type tenantSuspendCmd struct{ tenantStateFlags }

// Run suspends the tenant and shows it. It is safe to repeat.
func (c *tenantSuspendCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Admin.SuspendTenant(ctx, &memdv1.SuspendTenantRequest{Tenant: c.Name, Reason: c.Reason})
	if err != nil {
		return err
	}
	return c.print(con, resp, resp.GetTenant())
}

type tenantResumeCmd struct{ tenantStateFlags }

// Run resumes the tenant and shows it. It is safe to repeat.
func (c *tenantResumeCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Admin.ResumeTenant(ctx, &memdv1.ResumeTenantRequest{Tenant: c.Name, Reason: c.Reason})
	if err != nil {
		return err
	}
	return c.print(con, resp, resp.GetTenant())
}

type tenantMoveCmd struct {
	tenantStateFlags
	To string `required:"" enum:"suspended,exporting,drained" placeholder:"STATE" help:"suspended, exporting or drained."`
}

// Run takes the tenant on its way out, or back, and shows it. It is safe to
// repeat.
func (c *tenantMoveCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Admin.MoveTenant(ctx, &memdv1.MoveTenantRequest{
		Tenant: c.Name, State: tenantStates[c.To], Reason: c.Reason,
	})
	if err != nil {
		return err
	}
	return c.print(con, resp, resp.GetTenant())
}

var tenantStates = map[string]memdv1.TenantState{
	"suspended": memdv1.TenantState_TENANT_STATE_SUSPENDED,
	"exporting": memdv1.TenantState_TENANT_STATE_EXPORTING,
	"drained":   memdv1.TenantState_TENANT_STATE_DRAINED,
}

func (c *tenantStateFlags) print(con *console, resp proto.Message, t *memdv1.Tenant) error {
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	return printTenant(con, t)
}

type tenantTransitionsCmd struct {
	Name string `arg:"" help:"Name of the tenant."`
	outputFlags
	serverFlags
}

// Run lists what became of the tenant, the newest first.
func (c *tenantTransitionsCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Admin.ListTransitions(ctx, &memdv1.ListTransitionsRequest{Tenant: c.Name})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	if len(resp.GetTransitions()) == 0 {
		con.notef("No transitions yet.")
		return nil
	}
	t := newTable(con.Stdout, "AT", "FROM", "TO", "BY KEY", "REASON")
	for _, m := range resp.GetTransitions() {
		by := m.GetByKeyId()
		if by == "" {
			by = "a worker"
		}
		t.row(formatTime(m.GetAt()), tenantStateName(m.GetFrom()), tenantStateName(m.GetTo()), by, m.GetReason())
	}
	return t.close()
}

// printTenantPreview shows what purging a tenant would delete.
func printTenantPreview(con *console, name string, r *memdv1.DryRunResponse) error {
	fmt.Fprintf(con.Stdout, "tenant %s (%s), %s\n\n", oneLine(name), orDash(oneLine(r.GetDisplayName())), tenantStateName(r.GetTenantState()))
	t := newTable(con.Stdout, "STORE", "WOULD GO")
	for _, n := range r.GetCounts() {
		t.row(n.GetStore(), fmt.Sprint(n.GetBefore()))
	}
	t.row("conversations known", fmt.Sprint(r.GetSessions()))
	t.row("users and shared scopes", fmt.Sprint(r.GetSubjects()))
	t.row("bytes sealed", fmt.Sprint(r.GetBytes()))
	if err := t.close(); err != nil {
		return err
	}
	if err := printStrangers(con, r.GetStrangers()); err != nil {
		return err
	}
	_, err := fmt.Fprintf(con.Stdout, "\ndigest %s\n", r.GetDigest())
	return err
}

// printStrangers names subjects that the directory does not know.
func printStrangers(con *console, all []*memdv1.Stranger) error {
	if len(all) == 0 {
		return nil
	}
	fmt.Fprintf(con.Stdout, "\nSubjects that the directory does not know, who came by a way past the API:\n")
	t := newTable(con.Stdout, "SUBJECT", "STORE", "THINGS")
	for _, s := range all {
		t.row(fmt.Sprint(s.GetSubject()), s.GetStore(), fmt.Sprint(s.GetThings()))
	}
	return t.close()
}
