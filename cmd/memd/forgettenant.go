package main

import (
	"context"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

type forgetTenantCmd struct {
	Tenant      string `arg:"" help:"Name of the tenant, which is drained."`
	DisplayName string `required:"" placeholder:"NAME" help:"Its display name, letter by letter: a pasted name alone is not enough."`
	forgetFlags
}

// Run purges the tenant and prints the report.
func (c *forgetTenantCmd) Run(ctx context.Context, con *console) error {
	question := "This erases the whole tenant " + oneLine(c.Tenant) + " (" + oneLine(c.DisplayName) +
		"): everything of all its users, its API keys and its last key, so that no backup can be read either. It cannot be undone."
	return c.forget(ctx, con, question, func(ctx context.Context, server *clients) (reported, error) {
		return server.Erasure.DeleteTenant(ctx, &memdv1.DeleteTenantRequest{
			Tenant: c.Tenant, ConfirmDisplayName: c.DisplayName, RequestId: c.RequestID,
		})
	})
}
