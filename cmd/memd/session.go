package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// sessionCmd is about conversations that memd keeps.
type sessionCmd struct {
	Create sessionCreateCmd `cmd:"" help:"Start a conversation."`
	Get    sessionGetCmd    `cmd:"" help:"Show a conversation: its state and its newest events."`
	List   sessionListCmd   `cmd:"" help:"List the conversations of a user, or of all users of an app."`
	Append sessionAppendCmd `cmd:"" help:"Append one event to a conversation."`
	Delete sessionDeleteCmd `cmd:"" help:"Erase a conversation's events, state and artifacts, backups included."`
}

// sessionFlags name a conversation.
type sessionFlags struct {
	Session string `arg:"" name:"session-id" help:"Id of the conversation."`
	appFlag
	User string `required:"" placeholder:"ID" help:"The user."`
}

// stateFlags change state.
type stateFlags struct {
	State      map[string]string `placeholder:"KEY=JSON" mapsep:"none" help:"An entry of state, its value as JSON; app: and user: keys are shared. May be repeated."`
	Impersonal bool              `help:"app: entries are nobody's words, and no erasure of a user touches them."`
}

func (f *stateFlags) validate() error {
	for _, key := range slices.Sorted(maps.Keys(f.State)) {
		if !json.Valid([]byte(f.State[key])) {
			return usagef("--state %s: the value is no JSON; a text needs its quotes: '%s=\"text\"'", key, key)
		}
	}
	return nil
}

// sessionCreateCmd starts a conversation.
type sessionCreateCmd struct {
	Session string `arg:"" optional:"" name:"session-id" help:"Id of the conversation; the server makes one if left out."`
	appFlag
	User string `required:"" placeholder:"ID" help:"The user."`
	stateFlags
	outputFlags
	serverFlags
}

// Run makes the conversation and prints it.
func (c *sessionCreateCmd) Run(ctx context.Context, con *console) error {
	if err := c.validate(); err != nil {
		return err
	}
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Session.CreateSession(ctx, &memdv1.CreateSessionRequest{
		App: c.App, UserId: c.User, SessionId: c.Session, State: c.State, ImpersonalAppState: c.Impersonal,
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	return printSessions(con, resp.GetSession())
}

// sessionGetCmd shows a conversation.
type sessionGetCmd struct {
	sessionFlags
	Events int       `default:"20" help:"How many events at most, the newest ones."`
	After  time.Time `placeholder:"TIME" help:"Only events from this time on (RFC 3339)."`
	Full   bool      `help:"Do not cut contents to the width of the terminal."`
	outputFlags
	serverFlags
}

// Run prints state, then events.
func (c *sessionGetCmd) Run(ctx context.Context, con *console) error {
	if c.Events < 0 || c.Events > 10_000 {
		return usagef("--events must be 0 to 10000")
	}
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Session.GetSession(ctx, &memdv1.GetSessionRequest{
		App: c.App, UserId: c.User, SessionId: c.Session, NumRecentEvents: new(int32(c.Events)), AfterTimestamp: timestamp(c.After),
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	s := resp.GetSession()
	if err := printSessions(con, s); err != nil {
		return err
	}
	if len(s.GetState()) > 0 {
		fmt.Fprintln(con.Stdout)
		t := newTable(con.Stdout, "STATE", "VALUE")
		for _, key := range slices.Sorted(maps.Keys(s.GetState())) {
			t.row(key, s.GetState()[key])
		}
		if err := t.close(); err != nil {
			return err
		}
	}
	if len(s.GetEvents()) == 0 {
		return nil
	}
	fmt.Fprintln(con.Stdout)
	t := newTable(con.Stdout, "PLACE", "EVENT", "WHEN", "AUTHOR", "CONTENT")
	fitMemories(t, con, c.Full)
	for _, e := range s.GetEvents() {
		when := e.GetTimestamp()
		if when == nil {
			when = e.GetAppendedAt()
		}
		t.row(fmt.Sprint(e.GetSequence()), e.GetId(), formatTime(when), e.GetAuthor(), orDash(e.GetContent()))
	}
	return t.close()
}

// sessionListCmd lists conversations, oldest first.
type sessionListCmd struct {
	appFlag
	User string `placeholder:"ID" help:"The user; all users of the app if left out."`
	outputFlags
	serverFlags
}

// Run fetches all pages and prints them.
func (c *sessionListCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	all := &memdv1.ListSessionsResponse{}
	for first := true; first || all.NextPageToken != ""; first = false {
		resp, err := server.Session.ListSessions(ctx, &memdv1.ListSessionsRequest{
			App: c.App, UserId: c.User, PageSize: 1000, PageToken: all.NextPageToken,
		})
		if err != nil {
			return err
		}
		all.Sessions = append(all.Sessions, resp.GetSessions()...)
		all.NextPageToken, all.Fenced = resp.GetNextPageToken(), resp.GetFenced()
	}
	switch {
	case c.JSON:
		return writeMessage(con.Stdout, all)
	case all.Fenced:
		con.notef("The user is being erased: there is nothing.")
		return nil
	case len(all.Sessions) == 0:
		con.notef("No conversations.")
		return nil
	}
	return printSessions(con, all.Sessions...)
}

func printSessions(con *console, all ...*memdv1.SessionRecord) error {
	t := newTable(con.Stdout, "SESSION", "USER", "EVENTS", "CREATED", "UPDATED")
	for _, s := range all {
		t.row(s.GetSessionId(), s.GetUserId(), fmt.Sprint(s.GetEventCount()), formatTime(s.GetCreatedAt()), formatTime(s.GetLastUpdateTime()))
	}
	return t.close()
}

// sessionAppendCmd appends one event.
type sessionAppendCmd struct {
	sessionFlags
	Text      string    `arg:"" optional:"" help:"What was said. It becomes a content with one text part."`
	Content   string    `placeholder:"JSON" help:"Instead of a text: the content as it is."`
	Author    string    `default:"user" help:"Who said it: user, or the name of an agent."`
	EventID   string    `placeholder:"ID" help:"Your own id of the event. Appending it again changes nothing."`
	Timestamp time.Time `placeholder:"TIME" help:"When it happened (RFC 3339); now, if left out."`
	Seen      time.Time `placeholder:"TIME" help:"The last update of the conversation that you have seen: refused if there was another since."`
	stateFlags
	outputFlags
	serverFlags
}

// Run appends the event and prints where it is.
func (c *sessionAppendCmd) Run(ctx context.Context, con *console) error {
	event, err := c.event()
	if err != nil {
		return err
	}
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Session.AppendEvents(ctx, &memdv1.AppendEventsRequest{
		App: c.App, UserId: c.User, SessionId: c.Session, Events: []*memdv1.Event{event},
		LastUpdateTime: timestamp(c.Seen), ImpersonalAppState: c.Impersonal,
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	t := newTable(con.Stdout, "EVENT", "PLACE", "STATUS", "UPDATED")
	for _, r := range resp.GetResults() {
		t.row(r.GetEventId(), fmt.Sprint(r.GetSequence()), enumName(r.GetStatus(), "APPEND_STATUS_", true),
			resp.GetLastUpdateTime().AsTime().Format(time.RFC3339Nano))
	}
	return t.close()
}

func (c *sessionAppendCmd) event() (*memdv1.Event, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	content := c.Content
	switch {
	case c.Text != "" && content != "":
		return nil, usagef("a text and --content rule each other out")
	case content != "" && !json.Valid([]byte(content)):
		return nil, usagef("--content is no JSON")
	case c.Text != "":
		said, err := json.Marshal(strings.ToValidUTF8(c.Text, "\ufffd"))
		if err != nil {
			return nil, fmt.Errorf("writing the text as JSON: %w", err)
		}
		content = `{"role":"user","parts":[{"text":` + string(said) + `}]}`
		if c.Author != "user" {
			content = `{"role":"model","parts":[{"text":` + string(said) + `}]}`
		}
	case content == "" && len(c.State) == 0:
		return nil, usagef("there is nothing to append: say a text, --content or --state")
	}
	at := c.Timestamp
	if at.IsZero() {
		at = time.Now()
	}
	return &memdv1.Event{Id: c.EventID, Author: c.Author, Timestamp: timestamp(at), Content: content, StateDelta: c.State}, nil
}

// sessionDeleteCmd erases a conversation.
type sessionDeleteCmd struct {
	sessionFlags
	Memories  bool   `help:"Erase what memory took from it too, and everything derived from that. Needs the role eraser."`
	RequestID string `placeholder:"UUID" help:"Name of this request, to ask for it later; made from the conversation if left out."`
	outputFlags
	serverFlags
}

// Help is the longer text of --help.
func (sessionDeleteCmd) Help() string {
	return "The id of the conversation is refused for ever. State of the user and of the app stays, and so do memories, unless --memories says otherwise."
}

// Run deletes the conversation and prints the report.
func (c *sessionDeleteCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Session.DeleteSession(ctx, &memdv1.DeleteSessionRequest{
		App: c.App, UserId: c.User, SessionId: c.Session, DeleteMemories: c.Memories, RequestId: c.RequestID,
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	return printReport(con, resp.GetReport())
}
