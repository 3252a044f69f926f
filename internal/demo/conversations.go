package demo

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// The people, their words and the addresses are made up. The file is one that
// memd import takes, too.
//
//go:embed conversations.jsonl
var conversationsFile []byte

// conversation is one session of one user.
type conversation struct {
	Tenant    string    `json:"tenant"`
	User      string    `json:"user"`
	Session   string    `json:"session"`
	StartedAt time.Time `json:"started_at"`
	Turns     []struct {
		Author string `json:"author"`
		Text   string `json:"text"`
	} `json:"turns"`
}

// spoken is when a turn was said: a second after the one before.
func (c *conversation) spoken(turn int) time.Time {
	return c.StartedAt.Add(time.Duration(turn) * time.Second)
}

// tool is the author of what a tool gave back to an agent.
const tool = "tool"

// spokenTurns counts what was said, by whomever but a tool.
func (c *conversation) spokenTurns() (n int) {
	for _, t := range c.Turns {
		if t.Author != tool {
			n++
		}
	}
	return n
}

// conversations reads the file that ships with the demo, by tenant.
func conversations() (map[string][]conversation, error) {
	out := map[string][]conversation{}
	in := json.NewDecoder(bytes.NewReader(conversationsFile))
	for {
		var c conversation
		err := in.Decode(&c)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the conversations: %w", err)
		}
		out[c.Tenant] = append(out[c.Tenant], c)
	}
}
