package main

import (
	"context"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

type tenantDryRunCmd struct {
	Name string `arg:"" help:"Name of the tenant."`
	outputFlags
	serverFlags
}

// Run counts what purging the tenant would delete. It changes nothing.
func (c *tenantDryRunCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Erasure.DryRun(ctx, &memdv1.DryRunRequest{Tenant: c.Name})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	if err := printTenantPreview(con, c.Name, resp); err != nil {
		return err
	}
	if resp.GetHeld() {
		con.notef("A legal hold would keep it from beginning.")
	}
	if resp.GetTenantState() != memdv1.TenantState_TENANT_STATE_DRAINED {
		con.notef("It cannot be approved before the tenant is drained, and the digest will be another then.")
	}
	return nil
}

type tenantApproveCmd struct {
	Name        string `arg:"" help:"Name of the tenant, which is drained."`
	DisplayName string `required:"" placeholder:"NAME" help:"Its display name, letter by letter."`
	Digest      string `required:"" placeholder:"HEX" help:"That of the dry run that you have looked at."`
	outputFlags
	serverFlags
}

// Run approves the purge of the tenant as the dry run showed it.
func (c *tenantApproveCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Erasure.ApproveDeletion(ctx, &memdv1.ApproveDeletionRequest{
		Tenant: c.Name, ConfirmDisplayName: c.DisplayName, Digest: c.Digest,
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	return printApprovals(con, resp.GetApproval())
}

type tenantApprovalsCmd struct {
	Name string `arg:"" help:"Name of the tenant."`
	Void string `placeholder:"UUID" help:"Take this one back first, if it was not spent."`
	outputFlags
	serverFlags
}

// Run lists the approvals of the tenant's purge.
func (c *tenantApprovalsCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	if c.Void != "" {
		if _, err := server.Erasure.VoidApproval(ctx, &memdv1.VoidApprovalRequest{Tenant: c.Name, ApprovalId: c.Void}); err != nil {
			return err
		}
	}
	resp, err := server.Erasure.ListApprovals(ctx, &memdv1.ListApprovalsRequest{Tenant: c.Name})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	if len(resp.GetApprovals()) == 0 {
		con.notef("No approvals.")
		return nil
	}
	return printApprovals(con, resp.GetApprovals()...)
}

func printApprovals(con *console, all ...*memdv1.Approval) error {
	t := newTable(con.Stdout, "APPROVAL", "BY KEY", "APPROVED", "EXPIRES", "VOIDED", "SPENT ON")
	for _, a := range all {
		t.row(a.GetApprovalId(), a.GetApproverKeyId(), formatTime(a.GetApprovedAt()), formatTime(a.GetExpiresAt()),
			orDash(formatTime(a.GetVoidedAt())), orDash(a.GetRequestId()))
	}
	return t.close()
}
