package main

import (
	"context"

	"github.com/google/uuid"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// holdCmd sets and releases legal holds.
type holdCmd struct {
	Set     holdSetCmd     `cmd:"" help:"Keep a user, a conversation or the whole tenant from being erased. What is under way stops between two steps."`
	Release holdReleaseCmd `cmd:"" help:"End a hold: what it kept goes on."`
	List    holdListCmd    `cmd:"" help:"List the holds."`
}

type holdSetCmd struct {
	User    string `arg:"" optional:"" name:"user-id" help:"The user. Left out: the whole tenant."`
	Session string `placeholder:"ID" help:"Only this conversation of the user, and with it the user as a whole."`
	Reason  string `required:"" help:"Why. Stored sealed."`
	HoldID  string `placeholder:"UUID" help:"Name of the hold. A new one, if left out."`
	appFlag
	outputFlags
	serverFlags
}

// Run sets the hold and shows what it pauses.
func (c *holdSetCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	if c.HoldID == "" {
		c.HoldID = uuid.NewString()
	}
	req := &memdv1.HoldRequest{HoldId: c.HoldID, Reason: c.Reason}
	if c.User != "" {
		req.App, req.UserId, req.SessionId = c.App, c.User, c.Session
	} else if c.Session != "" {
		return usagef("--session needs the user")
	}
	resp, err := server.Erasure.Hold(ctx, req)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	if err := printHolds(con, []*memdv1.LegalHold{resp.GetHold()}); err != nil {
		return err
	}
	for _, e := range resp.GetPaused() {
		con.notef("It pauses erasure %s, which is %s.", e.GetRequestId(), enumName(e.GetState(), "ERASURE_STATE_", true))
	}
	return nil
}

type holdReleaseCmd struct {
	Hold string `arg:"" name:"hold-id" help:"The hold."`
	outputFlags
	serverFlags
}

// Run releases the hold.
func (c *holdReleaseCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Erasure.ReleaseHold(ctx, &memdv1.ReleaseHoldRequest{HoldId: c.Hold})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	return printHolds(con, []*memdv1.LegalHold{resp.GetHold()})
}

type holdListCmd struct {
	Released bool `help:"Those that were released, too."`
	outputFlags
	serverFlags
}

// Run lists the holds.
func (c *holdListCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Erasure.ListHolds(ctx, &memdv1.ListHoldsRequest{Released: c.Released})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	return printHolds(con, resp.GetHolds())
}

func printHolds(con *console, holds []*memdv1.LegalHold) error {
	t := newTable(con.Stdout, "HOLD", "ON", "SET", "RELEASED", "REASON")
	for _, h := range holds {
		t.row(h.GetHoldId(), enumName(h.GetKind(), "ERASURE_KIND_", true), formatTime(h.GetCreatedAt()),
			formatTime(h.GetReleasedAt()), orDash(oneLine(h.GetReason())))
	}
	return t.close()
}
