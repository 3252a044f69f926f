package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// exportCmd hands out what memd keeps.
type exportCmd struct {
	Start  exportStartCmd  `cmd:"" help:"Have an archive made of a tenant that is being exported, or of one user, sealed to the customer's age key."`
	Status exportStatusCmd `cmd:"" help:"Show how far an export is, and its links."`
	List   exportListCmd   `cmd:"" help:"List a tenant's exports, the newest first."`
	Link   exportLinkCmd   `cmd:"" help:"Make a link to a ready archive, and print it, once."`
	Revoke exportRevokeCmd `cmd:"" help:"Take a link back."`
	Delete exportDeleteCmd `cmd:"" help:"End an export: its links die at once, its files are deleted soon after."`
	Fetch  exportFetchCmd  `cmd:"" help:"Download an archive from a link. Needs no API key; goes on where it was broken off."`
	Verify exportVerifyCmd `cmd:"" help:"Check archives, offline, with an identity of the customer's: that they are whole, and as they were made."`
	Open   exportOpenCmd   `cmd:"" help:"Check an archive and write its files into a folder."`
}

type exportStartCmd struct {
	Recipient []string      `required:"" placeholder:"age1…" help:"The customer's age public key, age1… or age1pq1…. May be repeated; not both kinds. memd cannot open the archive."`
	User      string        `placeholder:"ID" help:"Only this user's data, of the app of --app. Left out: the whole tenant, which must be exporting."`
	App       string        `placeholder:"NAME" help:"The app of the user."`
	Life      time.Duration `help:"How long the archive is kept. Default: 336h, 14 days; at most 2160h."`
	ExportID  string        `placeholder:"UUID" help:"Name of the export: repeating it with the same is safe. A new one, if left out."`
	Wait      bool          `help:"Wait until it is ready."`
	tenantFlag
	outputFlags
	serverFlags
}

// Run starts the export.
func (c *exportStartCmd) Run(ctx context.Context, con *console) error {
	if (c.User == "") != (c.App == "") {
		return usagef("--user and --app belong together")
	}
	server, err := c.connect()
	if err != nil {
		return err
	}
	if c.ExportID == "" {
		c.ExportID = uuid.NewString()
	}
	req := &memdv1.StartExportRequest{Tenant: c.Tenant, ExportId: c.ExportID, App: c.App, UserId: c.User, Recipients: c.Recipient}
	if c.Life != 0 {
		req.Life = durationpb.New(c.Life)
	}
	resp, err := server.Exports.StartExport(ctx, req)
	if err != nil {
		return err
	}
	e := resp.GetExport()
	if c.Wait {
		con.notef("Export %s is being made.", c.ExportID)
		if e, err = awaitExport(ctx, server, c.Tenant, c.ExportID); err != nil {
			return err
		}
	}
	return printExport(con, c.JSON, e)
}

// exportPoll is how often the state of an export is asked for.
const exportPoll = 500 * time.Millisecond

// awaitExport returns an export that is not being made any more.
func awaitExport(ctx context.Context, server *clients, tenant, id string) (*memdv1.Export, error) {
	tick := time.NewTicker(exportPoll)
	defer tick.Stop()
	for {
		resp, err := server.Exports.GetExport(ctx, &memdv1.GetExportRequest{Tenant: tenant, ExportId: id})
		if err != nil || resp.GetExport().GetState() != memdv1.ExportState_EXPORT_STATE_MAKING {
			return resp.GetExport(), err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

type exportStatusCmd struct {
	Export string `arg:"" name:"export-id" help:"The export."`
	tenantFlag
	outputFlags
	serverFlags
}

// Run shows the export.
func (c *exportStatusCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Exports.GetExport(ctx, &memdv1.GetExportRequest{Tenant: c.Tenant, ExportId: c.Export})
	if err != nil {
		return err
	}
	return printExport(con, c.JSON, resp.GetExport())
}

type exportListCmd struct {
	tenantFlag
	outputFlags
	serverFlags
}

// Run lists the exports.
func (c *exportListCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Exports.ListExports(ctx, &memdv1.ListExportsRequest{Tenant: c.Tenant})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	t := newTable(con.Stdout, "EXPORT", "OF", "STATE", "WRITTEN", "BYTES", "REQUESTED", "EXPIRES")
	for _, e := range resp.GetExports() {
		t.row(e.GetExportId(), exportOf(e), exportState(e), exportProgress(e), fmt.Sprint(e.GetBytes()),
			formatTime(e.GetRequestedAt()), formatTime(e.GetExpiresAt()))
	}
	return t.close()
}

func exportOf(e *memdv1.Export) string {
	if e.GetOfUser() {
		return "a user"
	}
	return "the tenant"
}

func exportState(e *memdv1.Export) string {
	state := enumName(e.GetState(), "EXPORT_STATE_", true)
	if e.GetEndReason() != "" {
		state += " (" + e.GetEndReason() + ")"
	}
	if e.GetFailure() != "" {
		state += fmt.Sprintf(" (failed %s: %s)", plural(int64(e.GetTries()), "time", "times"), e.GetFailure())
	}
	return state
}

func exportProgress(e *memdv1.Export) string {
	return fmt.Sprintf("%d of %d subjects", e.GetCounts().GetSubjects(), e.GetSubjects())
}

func printExport(con *console, asJSON bool, e *memdv1.Export) error {
	if asJSON {
		return writeMessage(con.Stdout, e)
	}
	t := newTable(con.Stdout, "EXPORT", e.GetExportId())
	c := e.GetCounts()
	t.row("of", exportOf(e))
	t.row("state", exportState(e))
	t.row("written", exportProgress(e))
	t.row("counts", fmt.Sprintf("%d sessions, %d events, %d state, %d artifacts, %d memories",
		c.GetSessions(), c.GetEvents(), c.GetState(), c.GetArtifacts(), c.GetMemories()))
	if c.GetUnreadable() > 0 {
		t.row("unreadable", fmt.Sprint(c.GetUnreadable()))
	}
	t.row("bytes", fmt.Sprintf("%d in %s", e.GetBytes(), plural(e.GetParts(), "part", "parts")))
	if e.GetRebuilt() > 0 {
		t.row("made anew", plural(e.GetRebuilt(), "part", "parts"))
	}
	for _, key := range e.GetRecipients() {
		t.row("sealed to", shortKey(key))
	}
	t.row("expires", formatTime(e.GetExpiresAt()))
	if e.GetManifestSha256() != "" {
		t.row("manifest", e.GetManifestSha256())
	}
	if e.GetDeletedAt() != nil {
		t.row("deleted", fmt.Sprintf("%s, %s", formatTime(e.GetDeletedAt()), plural(e.GetFilesDeleted(), "file", "files")))
	}
	for _, l := range e.GetLinks() {
		state := "until " + formatTime(l.GetExpiresAt())
		if l.GetRevokedAt() != nil {
			state = "revoked " + formatTime(l.GetRevokedAt())
		}
		t.row("link", fmt.Sprintf("%s %s, used %s", l.GetLinkId(), state, plural(l.GetUses(), "time", "times")))
	}
	return t.close()
}

// shortKey leaves out the middle of a post-quantum key, which has two thousand
// characters; --json has it.
func shortKey(key string) string {
	const ends = 24
	if len(key) <= 4*ends {
		return key
	}
	return key[:ends] + "…" + key[len(key)-ends:]
}

type exportLinkCmd struct {
	Export string        `arg:"" name:"export-id" help:"The export."`
	Life   time.Duration `help:"How long it leads there, 1m to 168h. Default: 24h."`
	tenantFlag
	outputFlags
	serverFlags
}

// Run makes the link. It goes to standard output, and what to know of it to
// standard error.
func (c *exportLinkCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	req := &memdv1.CreateExportLinkRequest{Tenant: c.Tenant, ExportId: c.Export}
	if c.Life != 0 {
		req.Life = durationpb.New(c.Life)
	}
	resp, err := server.Exports.CreateExportLink(ctx, req)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	con.notef("Link %s leads to the archive until %s, and is shown once.", resp.GetLink().GetLinkId(), formatTime(resp.GetLink().GetExpiresAt()))
	_, err = fmt.Fprintln(con.Stdout, strings.TrimRight(c.URL, "/")+resp.GetPath())
	return err
}

type exportRevokeCmd struct {
	Link string `arg:"" name:"link-id" help:"The link."`
	tenantFlag
	serverFlags
}

// Run revokes the link.
func (c *exportRevokeCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	_, err = server.Exports.RevokeExportLink(ctx, &memdv1.RevokeExportLinkRequest{Tenant: c.Tenant, LinkId: c.Link})
	if err == nil {
		con.notef("Link %s leads nowhere any more.", c.Link)
	}
	return err
}

type exportDeleteCmd struct {
	Export string `arg:"" name:"export-id" help:"The export."`
	tenantFlag
	outputFlags
	serverFlags
}

// Run ends the export.
func (c *exportDeleteCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Exports.DeleteExport(ctx, &memdv1.DeleteExportRequest{Tenant: c.Tenant, ExportId: c.Export})
	if err != nil {
		return err
	}
	return printExport(con, c.JSON, resp.GetExport())
}
