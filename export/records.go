package export

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/sessions"
)

// The lines of the files in a part. Fields are added, never changed: Format says
// which set it is. Times are RFC 3339, UTC. What is JSON already stays JSON.

// SubjectRecord describes whose folder it is: a user's, or an app's shared scope.
type SubjectRecord struct {
	// Number is memd's for it; it is in the folder's name.
	Number     string    `json:"number"`
	App        string    `json:"app"`
	UserID     string    `json:"user_id,omitempty"`
	Shared     bool      `json:"shared,omitempty"`
	AdmittedAt time.Time `json:"admitted_at"`
}

// SessionRecord is a line of sessions.jsonl.
type SessionRecord struct {
	SessionID string    `json:"session_id"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	Events    int64     `json:"events"`
}

// EventRecord is a line of events.jsonl, in the order of its session.
type EventRecord struct {
	SessionID    string                     `json:"session_id"`
	Sequence     int64                      `json:"sequence"`
	ID           string                     `json:"id"`
	Author       string                     `json:"author"`
	Time         time.Time                  `json:"time,omitzero"`
	AppendedAt   time.Time                  `json:"appended_at"`
	InvocationID string                     `json:"invocation_id,omitempty"`
	Branch       string                     `json:"branch,omitempty"`
	Content      json.RawMessage            `json:"content,omitempty"`
	StateDelta   map[string]json.RawMessage `json:"state_delta,omitempty"`
	Actions      json.RawMessage            `json:"actions,omitempty"`
	Extra        json.RawMessage            `json:"extra,omitempty"`
}

// StateRecord is a line of state.jsonl. SessionID is empty for state of the user
// or the app, as the key's prefix says.
type StateRecord struct {
	SessionID string          `json:"session_id,omitempty"`
	Key       string          `json:"key"`
	Value     json.RawMessage `json:"value"`
}

// ArtifactRecord is a line of artifacts.jsonl: one version, and the file that
// holds its bytes.
type ArtifactRecord struct {
	Name       string            `json:"name"`
	SessionID  string            `json:"session_id,omitempty"`
	Version    int64             `json:"version"`
	MimeType   string            `json:"mime_type,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	SourceTime time.Time         `json:"source_time,omitzero"`
	CreatedAt  time.Time         `json:"created_at"`
	Size       int64             `json:"size"`
	SHA256     string            `json:"sha256"`
	File       string            `json:"file"`
	// Damaged: what was kept does not verify from some byte on; zeros follow.
	Damaged bool `json:"damaged,omitempty"`
}

// MemoryRecord is a line of memories.jsonl, and of memories-elsewhere.jsonl, which
// has what is in the scopes of others, App saying in which.
type MemoryRecord struct {
	ID         string            `json:"id"`
	App        string            `json:"app,omitempty"`
	Kind       string            `json:"kind"`
	Text       string            `json:"text,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	SourceTime time.Time         `json:"source_time,omitzero"`
	CreatedAt  time.Time         `json:"created_at"`
	UpdatedAt  time.Time         `json:"updated_at"`
	ExpiresAt  time.Time         `json:"expires_at,omitzero"`
	Version    int64             `json:"version"`
	// Vector is base64 of float32s, little-endian.
	Vector string `json:"vector,omitempty"`
	// From is whose words are in it; DerivedFrom what it was made from directly.
	From        []OriginRecord `json:"from"`
	DerivedFrom []OriginRecord `json:"derived_from,omitempty"`
}

// OriginRecord names a memory by its id, or a session by its user and id. Without
// a user it is the shared scope, without a session what belongs to none.
type OriginRecord struct {
	MemoryID  string `json:"memory_id,omitempty"`
	UserID    string `json:"user_id,omitempty"`
	SessionID string `json:"session_id,omitempty"`
}

func eventRecord(session string, e sessions.Event) EventRecord {
	r := EventRecord{
		SessionID: session, Sequence: e.Seq, ID: e.ID, Author: e.Author, Time: e.Time, AppendedAt: e.AppendedAt,
		InvocationID: e.InvocationID, Branch: e.Branch,
		Content: json.RawMessage(e.Content), Actions: json.RawMessage(e.Actions), Extra: json.RawMessage(e.Extra),
	}
	for k, v := range e.StateDelta {
		if r.StateDelta == nil {
			r.StateDelta = make(map[string]json.RawMessage, len(e.StateDelta))
		}
		r.StateDelta[k] = json.RawMessage(v)
	}
	return r
}

func artifactRecord(session string, v artifacts.Version) ArtifactRecord {
	return ArtifactRecord{
		Name: v.Name, SessionID: session, Version: v.Number, MimeType: v.MimeType, Metadata: v.Metadata,
		SourceTime: v.SourceTime, CreatedAt: v.CreatedAt, Size: v.Size,
	}
}

// names are whose words a memory is of, in the customer's ids.
type names struct {
	scopes   map[memd.Number]memd.Scope
	sessions map[memd.Contribution]string
}

func (n names) origin(c memd.Contribution) OriginRecord {
	return OriginRecord{UserID: n.scopes[c.Subject].UserID, SessionID: n.sessions[c]}
}

func memoryRecord(m memory.Exported, n names) MemoryRecord {
	r := MemoryRecord{
		ID: m.ID.String(), Kind: m.Kind.String(), Text: m.Text, Metadata: m.Metadata, SourceTime: m.SourceTime,
		CreatedAt: m.CreatedAt, UpdatedAt: m.UpdatedAt, ExpiresAt: m.ExpiresAt, Version: m.Version, Vector: encodeVector(m.Vector),
	}
	for _, c := range m.From {
		r.From = append(r.From, n.origin(c))
	}
	for _, s := range m.DerivedFrom {
		if s.Session == (memd.Contribution{}) {
			r.DerivedFrom = append(r.DerivedFrom, OriginRecord{MemoryID: s.Memory.String()})
		} else if o := n.origin(s.Session); o != (OriginRecord{}) {
			r.DerivedFrom = append(r.DerivedFrom, o)
		}
	}
	return r
}

func encodeVector(v []float32) string {
	if v == nil {
		return ""
	}
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(b)
}
