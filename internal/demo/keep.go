package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// An agent keeps three things beside what memory takes: the events of a
// conversation, what it has noted about it and its user, and files.

// noted is the state that an agent kept of a user, by key: JSON, as ADK has it.
// The key with "app:" is the whole app's, and in Mara's words.
var noted = map[string]map[string]string{
	mara: {
		"user:home_address": `"14 Tannery Lane, Millbrook"`, "user:household": `{"daughter":"Ida","spirometry":"amber"}`,
		"app:counter_notice": `"Inhalers for Tannery Lane leave before four."`,
	},
	jonas: {"user:pickup": `"Thursdays, after the physiotherapist"`},
}

// paper is the file of a user that is nobody's conversation's.
const (
	paperName = "user:care-plan.txt"
	paperOf   = "Care plan of %s: spirometry every half-year, cat dander avoided."
)

// transcript is the file of a conversation: its name and what it says.
func (c *conversation) transcript() (name, text string) {
	for _, t := range c.Turns {
		text += t.Author + ": " + t.Text + "\n"
	}
	return "transcript-" + c.Session + ".txt", text
}

// events are the turns of a conversation, as an agent's framework has them.
func (c *conversation) events() []*memdv1.Event {
	var out []*memdv1.Event
	for i, t := range c.Turns {
		e := &memdv1.Event{
			Id: strconv.Itoa(i), Author: t.Author, Timestamp: timestamppb.New(c.spoken(i)), Content: content(t.Author, t.Text),
			StateDelta: map[string]string{"last_word": quote(t.Text)},
		}
		if i == 0 {
			for key, value := range noted[c.User] {
				e.StateDelta[key] = value
			}
		}
		out = append(out, e)
	}
	return out
}

// content is what ADK has as an event's content: what was said, or what a tool
// gave back, which is kept and not taken into memory.
func content(author, text string) string {
	if author == tool {
		return fmt.Sprintf(`{"role":"user","parts":[{"functionResponse":{"name":"run_command","response":{"output":%s}}}]}`, quote(text))
	}
	return fmt.Sprintf(`{"role":%s,"parts":[{"text":%s}]}`, quote(author), quote(text))
}

// quote writes a text as JSON.
func quote(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // no text does that
	}
	return string(b)
}

// keepOwn keeps a file of each user's own, and notes what memory made of their
// conversations.
func (c *customer) keepOwn(ctx context.Context) error {
	for _, user := range c.users() {
		err := c.save(ctx, c.api, &memdv1.ArtifactOwner{App: c.app, UserId: user}, paperName, fmt.Sprintf(paperOf, user))
		if err == nil {
			err = c.recall(ctx, user)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *customer) keep(ctx context.Context, api API, talk *conversation) error {
	_, err := api.Session.CreateSession(ctx, &memdv1.CreateSessionRequest{App: c.app, UserId: talk.User, SessionId: talk.Session})
	if err != nil {
		return err
	}
	events := talk.events()
	_, err = api.Session.AppendEvents(ctx, &memdv1.AppendEventsRequest{
		App: c.app, UserId: talk.User, SessionId: talk.Session, Events: events,
	})
	if err != nil {
		return err
	}
	for _, e := range events {
		c.said = append(c.said, e.GetContent())
		for _, value := range e.GetStateDelta() {
			c.said = append(c.said, value)
		}
	}
	name, text := talk.transcript()
	if err := c.save(ctx, api, &memdv1.ArtifactOwner{App: c.app, UserId: talk.User, SessionId: talk.Session}, name, text); err != nil {
		return err
	}
	_, err = api.Memory.AddSession(ctx, &memdv1.AddSessionRequest{App: c.app, UserId: talk.User, SessionId: talk.Session})
	return err
}

// mimeType is that of all files here.
const mimeType = "text/x-pharmacy-note"

func (c *customer) save(ctx context.Context, api API, owner *memdv1.ArtifactOwner, name, text string) error {
	c.said = append(c.said, name, text, mimeType)
	_, err := api.Artifacts.SaveArtifactInline(ctx, &memdv1.SaveArtifactInlineRequest{
		Header: &memdv1.SaveArtifactHeader{Owner: owner, Name: name, MimeType: mimeType}, Data: []byte(text),
	})
	return err
}

// recall notes the ids of the rows that memory made of a user's conversations.
func (c *customer) recall(ctx context.Context, user string) error {
	rows, err := c.list(ctx, user)
	if err != nil {
		return err
	}
	slices.SortFunc(rows, func(a, b *memdv1.Memory) int { return a.GetSourceTime().AsTime().Compare(b.GetSourceTime().AsTime()) })
	for _, m := range rows {
		c.texts[m.GetMemoryId()] = m.GetText()
		for _, session := range m.GetSessionIds() {
			c.added[session] = append(c.added[session], m.GetMemoryId())
		}
	}
	for i := range c.talks {
		talk := &c.talks[i]
		if talk.User == user && len(c.added[talk.Session]) != talk.spokenTurns() {
			return fmt.Errorf("memory has %d of the %d turns of a conversation of %s", len(c.added[talk.Session]), talk.spokenTurns(), c.name)
		}
	}
	return nil
}

// keptView is what a user's agent sees of what was kept.
type keptView struct {
	events, state, files []string
	missing              int // conversations that are not found
}

func (v keptView) String() string {
	return fmt.Sprintf("%d events, %d entries of state, %d files", len(v.events), len(v.state), len(v.files))
}

func (v keptView) total() int { return len(v.events) + len(v.state) + len(v.files) }

// kept looks at a user's conversations, their state, and files. State of the
// app is left out, because it is everybody's.
func (d *demo) kept(ctx context.Context, c *customer, user string) (v keptView, err error) {
	for i := range c.talks {
		talk := &c.talks[i]
		if talk.User != user {
			continue
		}
		got, err := c.api.Session.GetSession(ctx, &memdv1.GetSessionRequest{App: c.app, UserId: user, SessionId: talk.Session})
		switch {
		case err != nil && d.c.Reason(err) == memdv1.Reason_REASON_NOT_FOUND:
			v.missing++
		case err != nil:
			return v, fmt.Errorf("reading a conversation of %s: %w", c.name, err)
		}
		for _, e := range got.GetSession().GetEvents() {
			v.events = append(v.events, e.GetId()+" "+e.GetContent())
		}
		for key, value := range got.GetSession().GetState() {
			if !strings.HasPrefix(key, "app:") {
				v.state = append(v.state, key+" "+value)
			}
		}
		files, err := c.api.Artifacts.ListArtifacts(ctx, &memdv1.ListArtifactsRequest{
			Owner: &memdv1.ArtifactOwner{App: c.app, UserId: user, SessionId: talk.Session},
		})
		if err != nil {
			return v, fmt.Errorf("listing files of %s: %w", c.name, err)
		}
		for _, f := range files.GetArtifacts() {
			v.files = append(v.files, f.GetName())
		}
	}
	for _, list := range []*[]string{&v.events, &v.state, &v.files} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return v, nil
}
