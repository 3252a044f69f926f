package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// erasureCmd looks at erasures, which are jobs that workers carry out.
type erasureCmd struct {
	Get     erasureGetCmd     `cmd:"" help:"Show an erasure: where it stands, its counts, steps and checks."`
	List    erasureListCmd    `cmd:"" help:"List erasures, the newest first."`
	Watch   erasureWatchCmd   `cmd:"" help:"Show the steps of an erasure as they are done."`
	DryRun  erasureDryRunCmd  `cmd:"" name:"dry-run" help:"Count what an erasure would delete. Nothing is changed."`
	Verify  erasureVerifyCmd  `cmd:"" help:"Have a worker look again whether anything is left."`
	Remove  erasureRemoveCmd  `cmd:"" help:"Have rows deleted that a failed check names, so that the erasure can go on."`
	Receipt erasureReceiptCmd `cmd:"" help:"Print the signed receipts of an erasure, as JSON."`
}

// erasureFlags name an erasure.
type erasureFlags struct {
	Request string `arg:"" name:"request-id" help:"The request id of the erasure."`
	Tenant  string `help:"With a key of the installation: the tenant."`
	serverFlags
}

type erasureGetCmd struct {
	erasureFlags
	outputFlags
}

// Run shows the erasure.
func (c *erasureGetCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Erasure.GetErasure(ctx, &memdv1.GetErasureRequest{RequestId: c.Request, Tenant: c.Tenant})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	if err := printReport(con, resp.GetReport()); err != nil {
		return err
	}
	return printSteps(con, resp.GetReport())
}

func printSteps(con *console, r *memdv1.Report) error {
	if len(r.GetSteps()) > 0 {
		fmt.Fprintln(con.Stdout)
		t := newTable(con.Stdout, "STEP", "BEGAN", "DONE")
		for _, s := range r.GetSteps() {
			t.row(s.GetName(), formatTime(s.GetStartedAt()), formatTime(s.GetFinishedAt()))
		}
		if err := t.close(); err != nil {
			return err
		}
	}
	return printChecks(con, r.GetChecks())
}

func printChecks(con *console, checks []*memdv1.ErasureCheck) error {
	if len(checks) == 0 {
		return nil
	}
	fmt.Fprintln(con.Stdout)
	t := newTable(con.Stdout, "CHECK", "RESULT", "BEFORE", "AFTER", "REASON")
	var scanned, unscanned int64
	for _, c := range checks {
		t.row(c.GetName(), c.GetResult(), fmt.Sprint(c.GetControlBefore()), fmt.Sprint(c.GetCountAfter()), orDash(c.GetReason()))
		scanned, unscanned = max(scanned, c.GetScanned()), max(unscanned, c.GetUnscanned())
	}
	if scanned > 0 {
		con.notef("The search looked at %s and left out %d.", plural(scanned, "row", "rows"), unscanned)
	}
	return t.close()
}

type erasureListCmd struct {
	State    []string `enum:"accepted,running,done,final" sep:"," help:"Only in these states: accepted, running, done, final."`
	PageSize int32    `default:"50" help:"How many."`
	Page     string   `placeholder:"TOKEN" help:"The page after the one that gave out this token."`
	Tenant   string   `help:"With a key of the installation: the tenant."`
	outputFlags
	serverFlags
}

// Run lists the erasures.
func (c *erasureListCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	req := &memdv1.ListErasuresRequest{PageSize: c.PageSize, PageToken: c.Page, Tenant: c.Tenant}
	known := map[string]memdv1.ErasureState{
		"accepted": memdv1.ErasureState_ERASURE_STATE_ACCEPTED, "running": memdv1.ErasureState_ERASURE_STATE_RUNNING,
		"done": memdv1.ErasureState_ERASURE_STATE_DONE, "final": memdv1.ErasureState_ERASURE_STATE_FINAL,
	}
	for _, s := range c.State {
		req.States = append(req.States, known[s])
	}
	resp, err := server.Erasure.ListErasures(ctx, req)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	t := newTable(con.Stdout, "REQUEST", "KIND", "STATE", "ACCEPTED", "DUE", "NOTE")
	for _, e := range resp.GetErasures() {
		t.row(e.GetRequestId(), enumName(e.GetKind(), "ERASURE_KIND_", true), enumName(e.GetState(), "ERASURE_STATE_", true),
			formatTime(e.GetAcceptedAt()), formatTime(e.GetDueAt()), orDash(erasureNote(e)))
	}
	if err := t.close(); err != nil {
		return err
	}
	if next := resp.GetNextPageToken(); next != "" {
		con.notef("More with --page=%s", next)
	}
	return nil
}

// erasureNote says why an erasure does not go on.
func erasureNote(e *memdv1.Erasure) string {
	switch {
	case e.GetHeld():
		return "held"
	case e.GetFailure() != "":
		return fmt.Sprintf("%s, %s", e.GetFailure(), plural(int64(e.GetTries()), "try", "tries"))
	}
	return ""
}

type erasureWatchCmd struct {
	UntilDone bool `help:"Leave as soon as it is done, without waiting for the second sweep."`
	erasureFlags
	outputFlags
}

// Run shows the steps until the erasure is final. A server that ends is asked
// again, and what was told already is not told twice.
func (c *erasureWatchCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	told := map[string]bool{}
	for {
		over, err := c.follow(ctx, con, server, told)
		if over || err != nil && !transient(err) {
			return err
		}
		if !pause(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

func (c *erasureWatchCmd) follow(ctx context.Context, con *console, server *clients, told map[string]bool) (over bool, err error) {
	stream, err := server.Erasure.WatchErasure(ctx, &memdv1.WatchErasureRequest{
		RequestId: c.Request, UntilDone: c.UntilDone, Tenant: c.Tenant,
	})
	if err != nil {
		return false, err
	}
	defer func() { _ = stream.Close() }() // What counts is what was received.
	for {
		event, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return over, nil
		}
		if err != nil {
			return over, err
		}
		state := event.GetErasure().GetState()
		over = state == memdv1.ErasureState_ERASURE_STATE_FINAL || c.UntilDone && state == memdv1.ErasureState_ERASURE_STATE_DONE
		if err := c.tell(con, event, told); err != nil {
			return over, err
		}
	}
}

func (c *erasureWatchCmd) tell(con *console, event *memdv1.WatchErasureResponse, told map[string]bool) error {
	line := enumName(event.GetErasure().GetState(), "ERASURE_STATE_", true)
	if s := event.GetStep(); s != nil {
		line = "  " + s.GetName() + " begins"
		if s.GetDone() {
			line = "  " + s.GetName() + " done"
		}
	} else if note := erasureNote(event.GetErasure()); note != "" {
		line += " (" + note + ")"
	}
	if told[line] {
		return nil
	}
	told[line] = true
	if !c.JSON {
		_, err := fmt.Fprintln(con.Stdout, line)
		return err
	}
	b, err := protojson.Marshal(event)
	if err == nil {
		_, err = fmt.Fprintf(con.Stdout, "%s\n", b)
	}
	return err
}
