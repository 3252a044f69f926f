package main

import (
	"context"
	"time"

	"github.com/google/uuid"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// forgetCmd erases, and asks first.
type forgetCmd struct {
	User    forgetUserCmd    `cmd:"" help:"Erase a user: every row their words went into, and then the keys."`
	Session forgetSessionCmd `cmd:"" help:"Erase one conversation of a user in the same way."`
	Tenant  forgetTenantCmd  `cmd:"" help:"Erase a whole tenant that is drained and approved, its last key included."`
}

// forgetFlags are common to both erasures.
type forgetFlags struct {
	appFlag
	Yes       bool          `help:"Do not ask. Required where there is no terminal."`
	RequestID string        `placeholder:"UUID" help:"Name of the request: the same one again waits for, and returns, the same report. A new one, if left out."`
	Wait      time.Duration `default:"15m" help:"How long to wait for the report. The erasure goes on without anybody waiting."`
	outputFlags
	serverFlags
}

// Pauses between two questions for a report that is not there yet. They are
// short, because the server waits with the answer anyway.
const (
	firstPollPause = 100 * time.Millisecond
	maxPollPause   = 5 * time.Second
)

type forgetUserCmd struct {
	User string `arg:"" name:"user-id" help:"The user, exactly as they were stored."`
	forgetFlags
}

// Run erases the user and prints the report.
func (c *forgetUserCmd) Run(ctx context.Context, con *console) error {
	question := "This erases user " + oneLine(c.User) + " of app " + oneLine(c.App) +
		": all their memories, every summary and fact that they are in, and the keys, so that no backup can be read either. It cannot be undone."
	return c.forget(ctx, con, question, func(ctx context.Context, server *clients) (reported, error) {
		return server.Erasure.ForgetUser(ctx, &memdv1.ForgetUserRequest{App: c.App, UserId: c.User, RequestId: c.RequestID})
	})
}

type forgetSessionCmd struct {
	User    string `arg:"" name:"user-id" help:"The user, exactly as they were stored."`
	Session string `arg:"" name:"session-id" help:"The conversation, exactly as it was stored."`
	forgetFlags
}

// Run erases the conversation and prints the report.
func (c *forgetSessionCmd) Run(ctx context.Context, con *console) error {
	question := "This erases conversation " + oneLine(c.Session) + " of user " + oneLine(c.User) + " of app " + oneLine(c.App) +
		": every row that it went into, and its keys, so that no backup can be read either. It cannot be undone."
	return c.forget(ctx, con, question, func(ctx context.Context, server *clients) (reported, error) {
		return server.Erasure.ForgetSession(ctx, &memdv1.ForgetSessionRequest{
			App: c.App, UserId: c.User, SessionId: c.Session, RequestId: c.RequestID,
		})
	})
}

// forget asks the person, then the server until it has a report. The request
// has one id throughout, so asking again never erases twice.
func (c *forgetFlags) forget(ctx context.Context, con *console, question string, call func(context.Context, *clients) (reported, error)) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	if c.RequestID == "" {
		c.RequestID = uuid.NewString()
	} else if _, err := uuid.Parse(c.RequestID); err != nil {
		return usagef("--request-id must be a UUID")
	}
	if !c.Yes {
		if err := con.confirm(ctx, question); err != nil {
			return err
		}
	}
	resp, err := c.await(ctx, con, func(ctx context.Context) (reported, error) { return call(ctx, server) })
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	return printReport(con, resp.GetReport())
}

// await repeats the call while the erasure is unfinished or the server is in
// passing trouble.
func (c *forgetFlags) await(ctx context.Context, con *console, call func(context.Context) (reported, error)) (reported, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	wait := firstPollPause
	for told := false; ; told = true {
		resp, err := call(ctx)
		if err == nil {
			return resp, nil
		}
		// A server that has never answered has accepted nothing: say so at once
		// instead of after --wait.
		again := transient(err) && (told || reasonOf(err) != memdv1.Reason_REASON_UNSPECIFIED)
		if again && !told {
			text, _ := explain(err)
			con.notef("Waiting (request %s): %s", c.RequestID, text)
		}
		if !again && ctx.Err() == nil {
			return nil, err
		}
		if !pause(ctx, wait) {
			return nil, &hintedError{err: err, hint: "Once accepted, the erasure goes on by itself. Repeat the command with --request-id=" + c.RequestID + " for its report."}
		}
		wait = min(2*wait, maxPollPause)
	}
}

// pause waits, and reports false when the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
