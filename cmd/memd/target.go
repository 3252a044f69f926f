package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// targetCmd manages purge targets.
type targetCmd struct {
	Add    targetAddCmd    `cmd:"" help:"Register a store outside memd that erasures must reach, and print its secret, once."`
	List   targetListCmd   `cmd:"" help:"List a tenant's purge targets, in the order in which an erasure calls them."`
	Test   targetTestCmd   `cmd:"" help:"Ask a purge target to count what there is of a user who does not exist."`
	Remove targetRemoveCmd `cmd:"" help:"Forget a purge target. Erasures no longer reach it."`
}

// tenantFlag is the tenant of a command whose key may be the tenant's own.
type tenantFlag struct {
	Tenant string `placeholder:"NAME" help:"The tenant; that of the API key, if left out."`
}

type targetAddCmd struct {
	Name         string        `arg:"" help:"Name, by which receipts name the target: a lower-case letter, then lower-case letters, digits and hyphens."`
	Kind         string        `required:"" enum:"connect,webhook,logfile,retention" help:"How it is reached: connect (it implements EraserService), webhook (a signed POST), logfile (a file on the worker's machine), retention (it only forgets by itself)."`
	Order        string        `default:"after-memory" enum:"before-sessions,with-sessions,after-memory" help:"When in an erasure: before-sessions, with-sessions or after-memory."`
	BestEffort   bool          `help:"Try it and report it; an erasure is done without it. Default: it is required."`
	At           string        `placeholder:"URL" help:"Its address, for connect and webhook: https://…"`
	CallTimeout  time.Duration `help:"How long one try may take, 100ms to 60s. Default: 10s."`
	AllowPrivate bool          `help:"Its address may be private or loopback. The installation has to allow it."`
	Path         string        `help:"Its file, for logfile; its files, if it has some, for retention. The last part may have * and ?."`
	Retention    time.Duration `help:"How long it keeps things by itself, as its owner declares. For retention, 1h to 720h."`
	UserField    string        `placeholder:"FIELD" help:"Field of a log line that holds user ids in clear. Default: only memd's digests are looked for."`
	SessionField string        `placeholder:"FIELD" help:"Field that holds session ids in clear."`
	AppField     string        `placeholder:"FIELD" help:"Field that holds app names."`
	SecretFile   string        `placeholder:"FILE" help:"File with the secret that the target already has; - for standard input. Default: memd makes one."`
	tenantFlag
	outputFlags
	serverFlags
}

// Run registers the target. A secret that memd made goes to standard output, and
// that it is shown once to standard error.
func (c *targetAddCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	req := &memdv1.CreateTargetRequest{
		Tenant: c.Tenant, Name: c.Name, Kind: memdv1.TargetKind(memdv1.TargetKind_value["TARGET_KIND_"+strings.ToUpper(c.Kind)]),
		Order:      memdv1.TargetOrder(memdv1.TargetOrder_value["TARGET_ORDER_"+strings.ToUpper(strings.ReplaceAll(c.Order, "-", "_"))]),
		BestEffort: c.BestEffort, Url: c.At, AllowPrivate: c.AllowPrivate, Path: c.Path,
	}
	if c.CallTimeout != 0 {
		req.Timeout = durationpb.New(c.CallTimeout)
	}
	if c.Retention != 0 {
		req.Retention = durationpb.New(c.Retention)
	}
	if c.UserField != "" || c.SessionField != "" || c.AppField != "" {
		req.LogFields = &memdv1.LogFields{User: c.UserField, Session: c.SessionField, App: c.AppField}
	}
	if req.Secret, err = c.secret(con); err != nil {
		return err
	}
	resp, err := server.Targets.CreateTarget(ctx, req)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	if err := printTarget(con, resp.GetTarget(), resp.GetSecret()); err != nil {
		return err
	}
	if resp.GetSecret() != "" {
		con.notef("The secret is stored sealed and is not shown again. Give it to the target.")
	}
	return nil
}

// maxSecretFile is more than any secret has.
const maxSecretFile = 4 << 10

// secret reads the secret from a file, because a command line can be seen by
// others on the machine.
func (c *targetAddCmd) secret(con *console) (string, error) {
	if c.SecretFile == "" {
		return "", nil
	}
	text, err := readSecret(c.SecretFile, con)
	if err != nil {
		return "", fmt.Errorf("reading the secret: %w", err)
	}
	if text == "" {
		return "", usagef("--secret-file is empty")
	}
	return text, nil
}

type targetListCmd struct {
	tenantFlag
	outputFlags
	serverFlags
}

// Run lists the targets.
func (c *targetListCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Targets.ListTargets(ctx, &memdv1.ListTargetsRequest{Tenant: c.Tenant})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	if len(resp.GetTargets()) == 0 {
		con.notef("No purge targets.")
		return nil
	}
	t := newTable(con.Stdout, "NAME", "KIND", "ORDER", "REQUIRED", "AT", "RETENTION", "CREATED")
	for _, x := range resp.GetTargets() {
		t.row(x.GetName(), targetKindName(x), targetOrderName(x), yesNo(x.GetRequired()), placeOf(x), retentionOf(x), formatTime(x.GetCreatedAt()))
	}
	return t.close()
}

type targetTestCmd struct {
	Name string `arg:"" help:"Name of the target."`
	tenantFlag
	outputFlags
	serverFlags
}

// Run tests the target from the server. It fails when the target does.
func (c *targetTestCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Targets.TestTarget(ctx, &memdv1.TestTargetRequest{Tenant: c.Tenant, Name: c.Name})
	if err != nil {
		return err
	}
	if c.JSON {
		err = writeMessage(con.Stdout, resp)
	} else {
		count := "-"
		if resp.Count != nil {
			count = fmt.Sprint(resp.GetCount())
		}
		t := newTable(con.Stdout)
		t.row("target", c.Name)
		t.row("answer", resp.GetCode())
		t.row("count", count)
		t.row("tries", fmt.Sprint(resp.GetTries()))
		t.row("took", resp.GetTook().AsDuration().Round(time.Millisecond).String())
		err = t.close()
	}
	if err == nil && !resp.GetOk() {
		err = fmt.Errorf("the purge target does not answer as an erasure needs it: %s", resp.GetCode())
	}
	return err
}

type targetRemoveCmd struct {
	Name string `arg:"" help:"Name of the target."`
	tenantFlag
	outputFlags
	serverFlags
}

// Run forgets the target.
func (c *targetRemoveCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Targets.DeleteTarget(ctx, &memdv1.DeleteTargetRequest{Tenant: c.Tenant, Name: c.Name})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	con.notef("Removed. Revoke its secret at the target.")
	return nil
}

func printTarget(con *console, x *memdv1.Target, secret string) error {
	t := newTable(con.Stdout)
	t.row("target", x.GetName())
	t.row("tenant", x.GetTenant())
	t.row("kind", targetKindName(x))
	t.row("order", targetOrderName(x))
	t.row("required", yesNo(x.GetRequired()))
	t.row("at", placeOf(x))
	t.row("retention", retentionOf(x))
	if secret != "" {
		t.row("secret", secret)
	}
	return t.close()
}

func targetKindName(x *memdv1.Target) string { return enumName(x.GetKind(), "TARGET_KIND_", true) }

func targetOrderName(x *memdv1.Target) string { return enumName(x.GetOrder(), "TARGET_ORDER_", true) }

func placeOf(x *memdv1.Target) string { return orDash(x.GetUrl() + x.GetPath()) }

func retentionOf(x *memdv1.Target) string {
	if x.GetRetention() == nil {
		return "-"
	}
	return x.GetRetention().AsDuration().String()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// readSecret reads a file, or standard input for "-", without what surrounds it.
func readSecret(name string, con *console) (string, error) {
	in := con.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxSecretFile))
	return strings.TrimSpace(string(data)), err
}
