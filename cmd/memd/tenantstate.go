package main

import (
	"context"

	"google.golang.org/protobuf/proto"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// tenantStateFlags are common to the commands that change a tenant's state.
type tenantStateFlags struct {
	Name   string `arg:"" help:"Name of the tenant."`
	Reason string `required:"" placeholder:"TEXT" help:"Why. It is stored in clear: name nobody in it."`
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

func (c *tenantStateFlags) print(con *console, resp proto.Message, t *memdv1.Tenant) error {
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	return printTenant(con, t)
}
