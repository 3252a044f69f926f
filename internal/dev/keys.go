package dev

import (
	"context"
	"fmt"
	"time"

	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

// Tenant is the name of the tenant that memd dev makes.
const Tenant = "dev"

// setupTimeout bounds the set-up of a tenant's keys.
const setupTimeout = 30 * time.Second

// FirstKeys are the API keys of a new installation.
type FirstKeys struct {
	// Agent may store, search and forget in the tenant dev; Operator administers
	// the installation.
	Agent, Operator string
}

// Setup makes the tenant dev and its first keys, once: the second time it
// returns nil, since nobody can tell a key's secret again.
func (d *Dev) Setup(ctx context.Context) (*FirstKeys, error) {
	var first bool
	err := d.Server.Pool.With(ctx, func(db pg.DB) (err error) {
		first, err = auth.None(ctx, db)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("setting up: %w", err)
	}
	t, err := d.CreateTenant(ctx, Tenant, "Development")
	if err != nil || !first {
		return nil, err
	}
	var k FirstKeys
	if k.Agent, err = d.CreateKey(ctx, t, "first", auth.Agent|auth.Eraser); err != nil {
		return nil, err
	}
	none := tenants.Tenant{No: auth.Installation}
	if k.Operator, err = d.CreateKey(ctx, none, "operator", auth.Operator); err != nil {
		return nil, err
	}
	return &k, nil
}

// CreateTenant makes a tenant with the default policy, if there is none of that
// name, and waits until it is active.
func (d *Dev) CreateTenant(ctx context.Context, name, display string) (tenants.Tenant, error) {
	return d.CreateTenantWith(ctx, name, display, tenants.DefaultPolicy())
}

// CreateTenantWith is CreateTenant with a policy.
func (d *Dev) CreateTenantWith(ctx context.Context, name, display string, p tenants.Policy) (tenants.Tenant, error) {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	var t tenants.Tenant
	err := d.Server.Pool.With(ctx, func(db pg.DB) (err error) {
		t, err = tenants.Create(ctx, db, time.Now().UTC(), name, display, p)
		return err
	})
	if err == nil {
		t, err = tenants.WaitActive(ctx, d.Server.Pool, t.No)
	}
	if err != nil {
		return t, fmt.Errorf("setting up tenant %s: %w", name, err)
	}
	return t, nil
}

// CreateKey makes an API key and returns its secret.
func (d *Dev) CreateKey(ctx context.Context, t tenants.Tenant, name string, roles auth.Roles) (string, error) {
	var secret string
	err := d.Server.Pool.With(ctx, func(db pg.DB) (err error) {
		_, secret, err = auth.Create(ctx, db, time.Now().UTC(), auth.NewKey{Tenant: t.No, Name: name, Roles: roles})
		return err
	})
	if err != nil {
		return "", fmt.Errorf("making an API key: %w", err)
	}
	return secret, nil
}
