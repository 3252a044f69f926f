package server

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"unicode"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/sessions"
)

// metadataAuthor is under what a row of an event says whose words it holds.
const metadataAuthor = "author"

// AddSession goes through the session's events, a batch at a time, and adds a
// row for each that has text.
func (h *memoryHandler) AddSession(ctx context.Context, req *memdv1.AddSessionRequest) (*memdv1.AddSessionResponse, error) {
	in := ingestion{h: h, t: tenantOf(ctx), id: sessionIDFromProto(req), res: &memdv1.AddSessionResponse{}}
	if len(req.GetEvents()) > 0 {
		events, err := eventsFromProto(req.GetEvents())
		if err != nil {
			return nil, err
		}
		for ; err == nil && len(events) > 0; events = events[min(len(events), memd.MaxBatch):] {
			err = in.take(ctx, events[:min(len(events), memd.MaxBatch)])
		}
		return in.res, err
	}
	for after := int64(0); ; {
		events, err := h.sessions.Events(ctx, sessionTenantOf(ctx), in.id, after, memd.MaxBatch)
		if err != nil || len(events) == 0 {
			return in.res, err
		}
		after = events[len(events)-1].Seq
		if err := in.take(ctx, events); err != nil {
			return nil, err
		}
	}
}

// ingestion is one AddSession under way.
type ingestion struct {
	h   *memoryHandler
	t   memory.Tenant
	id  sessions.ID
	res *memdv1.AddSessionResponse
}

// take adds the rows of up to memd.MaxBatch events and counts what became of
// them.
func (in *ingestion) take(ctx context.Context, events []sessions.Event) error {
	var rows []memory.Row
	named := map[string]bool{}
	for _, e := range events {
		text := textOf(e.Content)
		switch {
		case text == "" || e.Partial:
			in.res.Skipped++
		case len(text) > memd.MaxTextBytes:
			in.res.Refused++
		case named[e.ID]:
			in.res.Unchanged++ // twice in one request
		default:
			named[e.ID] = true
			row := memory.Row{
				Scope: memd.Scope{App: in.id.App, UserID: in.id.UserID}, SessionID: in.id.SessionID,
				Kind: memory.KindRaw, Text: text, EventID: e.ID, SourceTime: e.Time,
			}
			if e.Author != "" {
				row.Metadata = map[string]string{metadataAuthor: e.Author}
			}
			rows = append(rows, row)
		}
	}
	return in.add(ctx, rows)
}

// add adds rows. Those that are older than the user's last erasure are refused,
// and the others are not for their sake: a batch with such is halved.
func (in *ingestion) add(ctx context.Context, rows []memory.Row) error {
	if len(rows) == 0 {
		return nil
	}
	added, err := in.h.memory.Add(ctx, in.t, rows)
	switch {
	case errors.Is(err, memd.ErrErasedBefore) && len(rows) == 1:
		in.res.Refused++
		return nil
	case errors.Is(err, memd.ErrErasedBefore):
		if err := in.add(ctx, rows[:len(rows)/2]); err != nil {
			return err
		}
		return in.add(ctx, rows[len(rows)/2:])
	case err != nil:
		return err
	}
	for _, a := range added {
		switch a.Status {
		case memory.StatusCreated:
			in.res.Added++
		case memory.StatusUpdated:
			in.res.Updated++
		case memory.StatusDeleted:
			in.res.Refused++
		default:
			in.res.Unchanged++
		}
	}
	return nil
}

// textOf returns what was said in an event's content: its text parts, a line
// each, without the model's thoughts. Content of any other form has none.
func textOf(content string) string {
	var c struct {
		Parts []struct {
			Text    string `json:"text"`
			Thought bool   `json:"thought"`
		} `json:"parts"`
	}
	if json.Unmarshal([]byte(content), &c) != nil {
		return ""
	}
	var lines []string
	for _, p := range c.Parts {
		if !p.Thought && strings.ContainsFunc(p.Text, func(r rune) bool { return unicode.IsGraphic(r) && !unicode.IsSpace(r) }) {
			lines = append(lines, p.Text)
		}
	}
	return strings.Join(lines, "\n")
}
