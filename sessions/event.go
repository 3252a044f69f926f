package sessions

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// Event is one thing that happened in a session, as ADK has it. Fields that are
// JSON are kept byte for byte.
type Event struct {
	// ID names the event within its session. Append gives one to an event that
	// has none.
	ID     string
	Author string
	// Time is when it happened; zero: not said.
	Time         time.Time
	InvocationID string
	Branch       string
	// Content is a JSON value, the model's content; empty: none.
	Content string
	// StateDelta has, for each key that the event changed, its value as JSON.
	StateDelta map[string]string
	// Actions is a JSON object of the event's other actions, and Extra one of
	// everything else that it has. Empty: none.
	Actions, Extra string
	// Partial events are pieces of one that is still to come. They are not stored.
	Partial bool

	// Seq is the event's place in its session, from 1 and rising, though not
	// without gaps; AppendedAt is when it got there. Both are set by reading.
	Seq        int64
	AppendedAt time.Time
}

// eventFormat is the version of an event's encoding, its first byte.
const eventFormat = 1

// texts are the fields that are encoded, in order; append only.
func (e *Event) texts() []*string {
	return []*string{&e.ID, &e.Author, &e.InvocationID, &e.Branch, &e.Content, &e.Actions, &e.Extra}
}

// encode returns what is sealed of an event: no temp: state, and no times,
// which are columns.
func (e *Event) encode() []byte {
	size := 16
	for _, s := range e.texts() {
		size += len(*s) + binary.MaxVarintLen32
	}
	for k, v := range e.StateDelta {
		size += len(k) + len(v) + 2*binary.MaxVarintLen32
	}
	b := make([]byte, 1, size)
	b[0] = eventFormat
	for _, s := range e.texts() {
		b = appendText(b, *s)
	}
	for _, k := range slices.Sorted(maps.Keys(e.StateDelta)) {
		if kindOf(k) != kindTemp {
			b = appendText(appendText(b, k), e.StateDelta[k])
		}
	}
	return b
}

// decodeEvent reads what encode wrote.
func decodeEvent(b []byte) (Event, error) {
	var e Event
	if len(b) == 0 || b[0] != eventFormat {
		return e, fmt.Errorf("decoding an event: %w", memd.ErrCorrupt)
	}
	b = b[1:]
	var err error
	for _, s := range e.texts() {
		if *s, b, err = cutText(b); err != nil {
			return e, err
		}
	}
	for len(b) > 0 {
		var key, value string
		if key, b, err = cutText(b); err != nil {
			return e, err
		}
		if value, b, err = cutText(b); err != nil {
			return e, err
		}
		if e.StateDelta == nil {
			e.StateDelta = map[string]string{}
		}
		e.StateDelta[key] = value
	}
	return e, nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func cutText(b []byte) (string, []byte, error) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)-used) {
		return "", nil, fmt.Errorf("decoding a sealed value: %w", memd.ErrCorrupt)
	}
	end := used + int(n)
	return string(b[used:end]), b[end:], nil
}

// digestEvent is by what an event is found within its session.
func digestEvent(s *shred.Sealer, id string) [16]byte {
	return s.Digest([]byte("event"), []byte(id))
}

// size is what memd.MaxEventBytes bounds.
func (e *Event) size() int {
	n := 0
	for _, s := range e.texts() {
		n += len(*s)
	}
	for k, v := range e.StateDelta {
		n += len(k) + len(v)
	}
	return n
}

func (e *Event) validate(now time.Time) error {
	for _, f := range []struct{ name, value string }{
		{"id", e.ID}, {"author", e.Author}, {"invocation_id", e.InvocationID}, {"branch", e.Branch},
	} {
		if len(f.value) > memd.MaxIDBytes {
			return invalid(f.name, "is longer than %d bytes", memd.MaxIDBytes)
		}
	}
	switch {
	case e.Author == "":
		return invalid("author", "is required: \"user\", or the agent's name")
	case e.size() > memd.MaxEventBytes:
		return invalid("content", "and the rest of the event are larger than %d bytes", memd.MaxEventBytes)
	case e.Content != "" && !validJSON(e.Content):
		return invalid("content", "must be JSON")
	}
	if err := validateRest("actions", e.Actions, "state_delta", "stateDelta"); err != nil {
		return err
	}
	if err := validateRest("extra", e.Extra, "actions", "state_delta", "stateDelta"); err != nil {
		return err
	}
	if !e.Time.IsZero() {
		if e.Time.After(now.Add(memd.MaxClockSkew)) {
			return invalid("timestamp", "lies more than %s in the future", memd.MaxClockSkew)
		}
		if _, err := memd.MonthOf(e.Time); err != nil {
			return invalid("timestamp", "is outside the years 1970 to 9999")
		}
	}
	return validateDelta("state_delta", e.StateDelta)
}

// validateRest checks a JSON object of what else an event has. State in it would
// be stored unseen, temp: keys included.
func validateRest(field, text string, reserved ...string) error {
	if text == "" {
		return nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &object); err != nil || object == nil {
		return invalid(field, "must be a JSON object")
	}
	for _, key := range reserved {
		if _, ok := object[key]; ok {
			return invalid(field, "must not hold %s, which has a field of its own", key)
		}
	}
	return nil
}

func invalid(field, format string, args ...any) error {
	return &memd.InvalidError{Field: field, Problem: fmt.Sprintf(format, args...)}
}
