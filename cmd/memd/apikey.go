package main

import (
	"context"
	"strings"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// apikeyCmd manages API keys.
type apikeyCmd struct {
	Create apikeyCreateCmd `cmd:"" help:"Create a key and print its secret, once."`
	List   apikeyListCmd   `cmd:"" help:"List the keys of a tenant, or of the installation."`
	Revoke apikeyRevokeCmd `cmd:"" help:"Revoke a key, at once and for good."`
}

type apikeyCreateCmd struct {
	Name   string   `arg:"" help:"Name for people. It is stored in clear."`
	Tenant string   `placeholder:"NAME" help:"The tenant; the installation, if left out."`
	Role   []string `required:"" enum:"agent,eraser,auditor,operator,approver" placeholder:"ROLE" help:"What the key may do, separated by commas: agent (memories), eraser (forget), auditor (read tenants and keys), operator (manage them), approver (approve what cannot be undone)."`
	outputFlags
	serverFlags
}

// Run creates the key. The secret goes to standard output, and that it is shown
// once to standard error.
func (c *apikeyCreateCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	req := &memdv1.CreateApiKeyRequest{Tenant: c.Tenant, Name: c.Name, Roles: rolesNamed(c.Role)}
	resp, err := server.Admin.CreateApiKey(ctx, req)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	return printSecret(con, resp.GetApiKey(), resp.GetSecret())
}

// rolesNamed are roles by their names, which were checked.
func rolesNamed(names []string) (roles []memdv1.Role) {
	for _, r := range names {
		roles = append(roles, memdv1.Role(memdv1.Role_value["ROLE_"+strings.ToUpper(r)]))
	}
	return roles
}

// printSecret shows a key that was just made.
func printSecret(con *console, k *memdv1.ApiKey, secret string) error {
	t := newTable(con.Stdout)
	t.row("key", k.GetKeyId())
	t.row("tenant", tenantOf(k))
	t.row("roles", roleNames(k))
	t.row("secret", secret)
	if err := t.close(); err != nil {
		return err
	}
	con.notef("The secret is stored as a hash and is not shown again.")
	return nil
}

type apikeyListCmd struct {
	Tenant string `placeholder:"NAME" help:"The tenant; the installation, if left out."`
	outputFlags
	serverFlags
}

// Run lists the keys, oldest first, revoked ones among them.
func (c *apikeyListCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	all := &memdv1.ListApiKeysResponse{}
	for first := true; first || all.NextPageToken != ""; first = false {
		resp, err := server.Admin.ListApiKeys(ctx, &memdv1.ListApiKeysRequest{Tenant: c.Tenant, PageToken: all.NextPageToken})
		if err != nil {
			return err
		}
		all.ApiKeys = append(all.ApiKeys, resp.GetApiKeys()...)
		all.NextPageToken = resp.GetNextPageToken()
	}
	if c.JSON {
		return writeMessage(con.Stdout, all)
	}
	if len(all.ApiKeys) == 0 {
		con.notef("No keys.")
		return nil
	}
	return printKeys(con, all.ApiKeys)
}

type apikeyRevokeCmd struct {
	Key string `arg:"" name:"key-id" help:"Id of the key, as in \"memd apikey list\"."`
	outputFlags
	serverFlags
}

// Run revokes the key. It is safe to repeat.
func (c *apikeyRevokeCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Admin.RevokeApiKey(ctx, &memdv1.RevokeApiKeyRequest{KeyId: c.Key})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	return printKeys(con, []*memdv1.ApiKey{resp.GetApiKey()})
}

func printKeys(con *console, keys []*memdv1.ApiKey) error {
	t := newTable(con.Stdout, "KEY", "TENANT", "NAME", "ROLES", "CREATED", "LAST USED", "REVOKED")
	for _, k := range keys {
		t.row(k.GetKeyId(), tenantOf(k), k.GetName(), roleNames(k), formatTime(k.GetCreatedAt()),
			formatTime(k.GetLastUsedAt()), formatTime(k.GetRevokedAt()))
	}
	return t.close()
}

func tenantOf(k *memdv1.ApiKey) string {
	if k.GetTenant() == "" {
		return "(installation)"
	}
	return k.GetTenant()
}

func roleNames(k *memdv1.ApiKey) string {
	var names []string
	for _, r := range k.GetRoles() {
		names = append(names, enumName(r, "ROLE_", true))
	}
	return strings.Join(names, ",")
}
