package eraser

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Op is what is asked of a store.
type Op uint8

// Ops, append-only.
const (
	OpUnknown Op = iota
	OpCount
	OpErase
	OpVerify
)

// String returns the op's name.
func (o Op) String() string {
	switch o {
	case OpCount:
		return "count"
	case OpErase:
		return "erase"
	case OpVerify:
		return "verify"
	}
	return "unknown"
}

// typePrefix begins the type of every webhook of memd's.
const typePrefix = "memd.erasure."

// MessageID is the webhook-id: the same for every try of one operation of one
// round, and another for the next round, which a receiver must carry out again.
func MessageID(op Op, r Request) string {
	return fmt.Sprintf("msg_%s_%s_%d", strings.ReplaceAll(r.ID.String(), "-", ""), op, r.Round)
}

// message is the body of a webhook.
type message struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Data      subject   `json:"data"`
}

type subject struct {
	RequestID uuid.UUID `json:"request_id"`
	Mode      string    `json:"mode"`
	Tenant    string    `json:"tenant"`
	App       string    `json:"app,omitempty"`
	UserID    string    `json:"user_id,omitempty"`
	SessionID string    `json:"session_id,omitempty"`
	Round     int       `json:"round"`
}

// EncodeMessage returns the body of a webhook. at is when it was first meant,
// not when this try is made.
func EncodeMessage(op Op, r Request, at time.Time) ([]byte, error) {
	return json.Marshal(message{Type: typePrefix + op.String(), Timestamp: at.UTC(), Data: subject{
		RequestID: r.ID, Mode: r.Mode.String(), Tenant: r.Tenant,
		App: r.App, UserID: r.UserID, SessionID: r.SessionID, Round: r.Round,
	}})
}

var errMessage = errors.New("body is not a webhook of memd's")

// DecodeMessage reads a body and validates the request. It refuses fields that
// it does not know: what is not understood must not be half obeyed.
func DecodeMessage(body []byte) (Op, Request, error) {
	var m message
	if err := decodeStrict(body, &m); err != nil {
		return OpUnknown, Request{}, errMessage
	}
	op := OpUnknown
	for _, o := range []Op{OpCount, OpErase, OpVerify} {
		if m.Type == typePrefix+o.String() {
			op = o
		}
	}
	if op == OpUnknown {
		return op, Request{}, errMessage
	}
	r := Request{
		ID: m.Data.RequestID, Tenant: m.Data.Tenant,
		App: m.Data.App, UserID: m.Data.UserID, SessionID: m.Data.SessionID, Round: m.Data.Round,
	}
	for mode := ModeUser; mode <= ModeTenant; mode++ {
		if m.Data.Mode == mode.String() {
			r.Mode = mode
		}
	}
	return op, r, r.Validate()
}

// Answer is what a webhook's receiver may say in its body, in JSON. All of it is
// optional: an empty body with a status of 2xx acknowledges.
type Answer struct {
	// Count answers count, Erased answers erase, Remaining answers verify.
	Count     *int64 `json:"count,omitempty"`
	Erased    *int64 `json:"erased,omitempty"`
	Remaining *int64 `json:"remaining,omitempty"`
	// Pending says that the store erases in the background.
	Pending bool `json:"pending,omitempty"`
}

// DecodeAnswer reads the body of an answer. Fields that are unknown, negative or
// of another operation, and anything after the object, are refused.
func DecodeAnswer(op Op, body []byte) (Answer, error) {
	var a Answer
	if len(bytes.TrimSpace(body)) == 0 {
		return a, nil
	}
	if err := decodeStrict(body, &a); err != nil {
		return Answer{}, errAnswer
	}
	for of, n := range map[Op]*int64{OpCount: a.Count, OpErase: a.Erased, OpVerify: a.Remaining} {
		if n != nil && (of != op || *n < 0) {
			return Answer{}, errAnswer
		}
	}
	if a.Pending && op != OpErase {
		return Answer{}, errAnswer
	}
	return a, nil
}

var errAnswer = errors.New("answer is not what a webhook's receiver may say")

func decodeStrict(body []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errMessage
	}
	return nil
}
