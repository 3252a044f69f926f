package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// retentionCmd looks at what tenants' policies let expire, and expires it.
type retentionCmd struct {
	Plan retentionPlanCmd `cmd:"" help:"Show the months of a tenant, or of all, with what would expire and why the rest is kept."`
	Run  retentionRunCmd  `cmd:"" help:"Expire what is due, in the live database and in every backup. Workers do so by themselves every hour."`
}

// waitInterval is how often an expiry that is waited for is asked about.
const waitInterval = 200 * time.Millisecond

type retentionPlanCmd struct {
	Tenant string `arg:"" optional:"" help:"Name of the tenant; all if left out."`
	outputFlags
	serverFlags
}

// Run shows the plan and changes nothing.
func (c *retentionPlanCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	names, err := server.tenants(ctx, c.Tenant)
	if err != nil {
		return err
	}
	var plan []*memdv1.Expiry
	var of []string
	for _, name := range names {
		resp, err := server.Erasure.PlanRetention(ctx, &memdv1.PlanRetentionRequest{Tenant: name})
		if err != nil {
			return err
		}
		if c.JSON {
			if err := writeMessage(con.Stdout, resp); err != nil {
				return err
			}
			continue
		}
		for _, e := range resp.GetExpiries() {
			plan, of = append(plan, e), append(of, name)
		}
	}
	if c.JSON {
		return nil
	}
	return printExpiries(con, of, plan)
}

type retentionRunCmd struct {
	Tenant string        `arg:"" optional:"" help:"Name of the tenant; all if left out."`
	Wait   time.Duration `default:"10m" help:"How long to wait for the months to be gone; 0s does not."`
	outputFlags
	serverFlags
}

// Run begins what is due and waits until its keys and rows are gone.
func (c *retentionRunCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	names, err := server.tenants(ctx, c.Tenant)
	if err != nil {
		return err
	}
	var begun []*memdv1.Expiry
	var of []string
	for _, name := range names {
		resp, err := server.Erasure.RunRetention(ctx, &memdv1.RunRetentionRequest{Tenant: name})
		if err != nil {
			return err
		}
		for _, e := range resp.GetExpiries() {
			if e.GetKept() == memdv1.KeptReason_KEPT_REASON_UNSPECIFIED {
				begun, of = append(begun, e), append(of, name)
			}
		}
	}
	if err := c.await(ctx, server, of, begun); err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, &memdv1.RunRetentionResponse{Expiries: begun})
	}
	if len(begun) == 0 {
		con.notef("Nothing is due.")
		return nil
	}
	return printExpiries(con, of, begun)
}

// errStillExpiring: the exit status says that not all of it is gone.
var errStillExpiring = errors.New("months are still expiring: they go on, and memd retention plan shows them")

// await waits until all of the expiries are done, and writes down how far they came.
func (c *retentionRunCmd) await(ctx context.Context, server *clients, of []string, begun []*memdv1.Expiry) error {
	if c.Wait <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Wait, errStillExpiring)
	defer cancel()
	tick := time.NewTicker(waitInterval)
	defer tick.Stop()
	for i, e := range begun {
		for e.GetState() < memdv1.ErasureState_ERASURE_STATE_DONE {
			resp, err := server.Erasure.GetErasure(ctx, &memdv1.GetErasureRequest{Tenant: of[i], RequestId: e.GetRequestId()})
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case err != nil:
				return err
			}
			if e.State = resp.GetReport().GetState(); e.GetState() >= memdv1.ErasureState_ERASURE_STATE_DONE {
				break
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-tick.C:
			}
		}
	}
	return nil
}

// tenants are one by its name, or all that the key sees and that have anything.
func (c *clients) tenants(ctx context.Context, name string) ([]string, error) {
	if name != "" {
		return []string{name}, nil
	}
	var names []string
	for token, first := "", true; first || token != ""; first = false {
		resp, err := c.Admin.ListTenants(ctx, &memdv1.ListTenantsRequest{PageToken: token})
		if err != nil {
			return nil, err
		}
		for _, t := range resp.GetTenants() {
			if s := t.GetState(); s >= memdv1.TenantState_TENANT_STATE_ACTIVE && s < memdv1.TenantState_TENANT_STATE_PURGING {
				names = append(names, t.GetName())
			}
		}
		token = resp.GetNextPageToken()
	}
	return names, nil
}

func printExpiries(con *console, of []string, plan []*memdv1.Expiry) error {
	if len(plan) == 0 {
		con.notef("There is nothing.")
		return nil
	}
	t := newTable(con.Stdout, "TENANT", "CLASS", "MONTH", "ROWS", "BYTES", "WHAT")
	for i, e := range plan {
		t.row(of[i], enumName(e.GetDataClass(), "DATA_CLASS_", true), e.GetMonth(), fmt.Sprint(e.GetRows()), fmt.Sprint(e.GetBytes()), fate(e))
	}
	return t.close()
}

// fate says what becomes of a month, and why.
func fate(e *memdv1.Expiry) string {
	switch state := e.GetState(); {
	case state >= memdv1.ErasureState_ERASURE_STATE_DONE:
		return "expired"
	case state != memdv1.ErasureState_ERASURE_STATE_UNSPECIFIED && e.GetKept() != memdv1.KeptReason_KEPT_REASON_UNSPECIFIED:
		return "stopped: " + strings.ReplaceAll(enumName(e.GetKept(), "KEPT_REASON_", true), "-", " ")
	case state != memdv1.ErasureState_ERASURE_STATE_UNSPECIFIED:
		return "expiring"
	case e.GetKept() != memdv1.KeptReason_KEPT_REASON_UNSPECIFIED:
		return "kept: " + strings.ReplaceAll(enumName(e.GetKept(), "KEPT_REASON_", true), "-", " ")
	}
	return "due"
}
