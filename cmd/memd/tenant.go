package main

import (
	"context"
	"fmt"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// tenantCmd manages tenants.
type tenantCmd struct {
	Create  tenantCreateCmd  `cmd:"" help:"Create a tenant, with a key of its own."`
	Get     tenantGetCmd     `cmd:"" help:"Show a tenant and its policy."`
	List    tenantListCmd    `cmd:"" help:"List the tenants."`
	Policy  tenantPolicyCmd  `cmd:"" help:"Change a tenant's policy, or show it when no flag says how."`
	Suspend tenantSuspendCmd `cmd:"" help:"Keep a tenant's agents out. Nothing is lost, and it can be resumed."`
	Resume  tenantResumeCmd  `cmd:"" help:"Let a tenant's agents in again, from wherever it is on its way out."`
	Move    tenantMoveCmd    `cmd:"" help:"Take a suspended tenant on its way out: to exporting, to drained, or back."`

	Transitions tenantTransitionsCmd `cmd:"" help:"List what became of a tenant: who took it to which state, when and why."`
	DryRun      tenantDryRunCmd      `cmd:"" help:"Count what purging a tenant would delete. It changes nothing."`
	Approve     tenantApproveCmd     `cmd:"" help:"Approve the purge of a tenant as a dry run showed it, for a day. Whoever approves it cannot be the one who asks for it."`
	Approvals   tenantApprovalsCmd   `cmd:"" help:"List the approvals of a tenant's purge, or take one back."`
	Rehearse    tenantRehearseCmd    `cmd:"" help:"Take a tenant that is made for it through all of this, and time each phase."`
	Purge       forgetTenantCmd      `cmd:"" help:"Erase a whole tenant that is drained and approved, its last key included: the same as forget tenant."`
}

type tenantCreateCmd struct {
	Name        string   `arg:"" help:"Name: a lower-case letter, then lower-case letters, digits and hyphens."`
	DisplayName string   `placeholder:"NAME" help:"Name for people."`
	FirstKey    []string `enum:"agent,eraser,auditor,operator" placeholder:"ROLE" help:"Also make the tenant's first API key, with these roles, separated by commas, and print its secret, once. None is made for a tenant that ever had one."`
	policyFlags
	outputFlags
	serverFlags
}

// Run creates the tenant and shows it. It is safe to repeat.
func (c *tenantCreateCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Admin.CreateTenant(ctx, &memdv1.CreateTenantRequest{
		Name: c.Name, DisplayName: c.DisplayName, Policy: c.policy(), FirstKeyRoles: rolesNamed(c.FirstKey),
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	if err := printTenant(con, resp.GetTenant()); err != nil || len(c.FirstKey) == 0 {
		return err
	}
	if resp.GetFirstSecret() == "" {
		con.notef("The tenant has a key, or is not active yet: see \"memd apikey list --tenant=%s\", or repeat.", c.Name)
		return nil
	}
	return printSecret(con, resp.GetFirstKey(), resp.GetFirstSecret())
}

type tenantGetCmd struct {
	Name string `arg:"" help:"Name of the tenant."`
	outputFlags
	serverFlags
}

// Run shows the tenant.
func (c *tenantGetCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Admin.GetTenant(ctx, &memdv1.GetTenantRequest{Name: c.Name})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	return printTenant(con, resp.GetTenant())
}

type tenantListCmd struct {
	outputFlags
	serverFlags
}

// Run lists all tenants by name.
func (c *tenantListCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	all := &memdv1.ListTenantsResponse{}
	for first := true; first || all.NextPageToken != ""; first = false {
		resp, err := server.Admin.ListTenants(ctx, &memdv1.ListTenantsRequest{PageToken: all.NextPageToken})
		if err != nil {
			return err
		}
		all.Tenants = append(all.Tenants, resp.GetTenants()...)
		all.NextPageToken = resp.GetNextPageToken()
	}
	if c.JSON {
		return writeMessage(con.Stdout, all)
	}
	if len(all.Tenants) == 0 {
		con.notef("No tenants.")
		return nil
	}
	t := newTable(con.Stdout, "NAME", "STATE", "EMBEDDER", "DIMENSION", "EPOCH", "CREATED", "DISPLAY NAME")
	for _, x := range all.Tenants {
		t.row(x.GetName(), tenantStateName(x.GetState()), x.GetPolicy().GetEmbedder(), fmt.Sprint(x.GetPolicy().GetDimension()),
			fmt.Sprint(x.GetKeyEpoch()), formatTime(x.GetCreatedAt()), x.GetDisplayName())
	}
	return t.close()
}

// printTenant shows a tenant, a field a line.
func printTenant(con *console, x *memdv1.Tenant) error {
	p := x.GetPolicy()
	t := newTable(con.Stdout)
	t.row("tenant", x.GetName())
	t.row("display name", orDash(x.GetDisplayName()))
	t.row("state", tenantStateName(x.GetState()))
	t.row("key epoch", fmt.Sprint(x.GetKeyEpoch()))
	t.row("created", formatTime(x.GetCreatedAt()))
	t.row("changed", formatTime(x.GetUpdatedAt()))
	t.row("embedder", p.GetEmbedder())
	t.row("dimension", fmt.Sprint(p.GetDimension()))
	if r := x.GetReembedding(); r != nil {
		t.row("embedded anew", reembedded(r))
	}
	t.row("vector format", enumName(p.GetVectorFormat(), "VECTOR_FORMAT_", true))
	t.row("index", enumName(p.GetIndex(), "INDEX_MODE_", true))
	t.row("destroy delay", p.GetDestroyDelay().AsDuration().String())
	t.row("ingestion delay", p.GetIngestionDelay().AsDuration().String())
	t.row("lift fence", enumName(p.GetLiftFence(), "LIFT_FENCE_", true))
	t.row("sessions are kept", keptFor(p.GetSessionRetention()))
	t.row("memories are kept", keptFor(p.GetMemoryRetention()))
	q, u := p.GetQuota(), x.GetUsage()
	t.row("rows", usedOf(u.GetRows(), q.GetRows(), u))
	t.row("bytes", usedOf(u.GetBytes(), q.GetBytes(), u))
	calls := "no limit"
	if q.GetCallsPerSecond() > 0 {
		calls = fmt.Sprint(q.GetCallsPerSecond())
	}
	t.row("calls a second", calls)
	return t.close()
}

// usedOf says what a quota allows, and how much of it was used when it was last
// measured.
func usedOf(used, quota int64, u *memdv1.Usage) string {
	switch {
	case quota == 0:
		return "no limit"
	case u == nil:
		return fmt.Sprintf("at most %d", quota)
	}
	return fmt.Sprintf("%d of %d, on %s", used, quota, formatTime(u.GetMeasuredAt()))
}

// reembedded says how far the rows are in a new space.
func reembedded(r *memdv1.Reembedding) string {
	said := fmt.Sprintf("%d rows", r.GetDone())
	if r.GetFinishedAt() == nil {
		said += fmt.Sprintf(", %d to go; those are found by %s, %d components", r.GetLeft(), r.GetFormerEmbedder(), r.GetFormerDimension())
	} else {
		said += ", finished " + formatTime(r.GetFinishedAt())
	}
	if r.GetTextless() > 0 {
		said += fmt.Sprintf("; %d have no text and cannot be", r.GetTextless())
	}
	return said
}

// keptFor says for how long a class is kept.
func keptFor(r *memdv1.Retention) string {
	kept := "for ever"
	if r.GetMonths() > 0 {
		kept = fmt.Sprintf("%d months", r.GetMonths())
	}
	if r.GetNotBefore() != nil {
		kept += ", and until " + formatTime(r.GetNotBefore())
	}
	return kept
}

func tenantStateName(s memdv1.TenantState) string { return enumName(s, "TENANT_STATE_", true) }
