package memory

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
)

// Kind says what a row is.
type Kind int16

// Kinds, as stored; append only.
const (
	KindUnknown Kind = 0
	KindRaw     Kind = 1 // what was said
	KindFact    Kind = 2 // derived from one or more rows or sessions
	KindSummary Kind = 3 // likewise
)

// String returns the kind's name.
func (k Kind) String() string {
	switch k {
	case KindRaw:
		return "raw"
	case KindFact:
		return "fact"
	case KindSummary:
		return "summary"
	}
	return fmt.Sprintf("Kind(%d)", int16(k))
}

// Contributor names whose words a row holds, in a shared scope.
type Contributor struct {
	UserID    string
	SessionID string // "" for words outside any session
}

// Source is what a derived row was made from: a memory, or a session of a user
// of the same app.
type Source struct {
	MemoryID uuid.UUID // zero for a session
	// Version of the memory that was read; zero takes the current one.
	Version   int64
	UserID    string
	SessionID string
}

// Row is a row to add.
type Row struct {
	Scope memd.Scope
	// SessionID is the session of a row in a user's scope, or "".
	SessionID string
	// Contributor or Impersonal says whose words a row in a shared scope holds.
	Contributor *Contributor
	Impersonal  bool
	Kind        Kind
	Text        string
	Vector      []float32
	Metadata    map[string]string
	// EventID makes adding the same event again an upsert.
	EventID    string
	SourceTime time.Time // zero: not given
	ExpiresAt  time.Time // zero: never
	Sources    []Source
}

// Status says what Add did with a row.
type Status int

// Statuses; append only.
const (
	StatusUnknown   Status = 0
	StatusCreated   Status = 1
	StatusUpdated   Status = 2 // the event came with other content, which replaced the old
	StatusUnchanged Status = 3 // the event came with the same content
	StatusKept      Status = 4 // an Update came between, or the row is derived: not reverted
	StatusDeleted   Status = 5 // the row was deleted: not brought back
)

// Added is the outcome for one row.
type Added struct {
	ID      uuid.UUID
	Version int64 // zero when deleted
	Status  Status
}

// Memory is a stored row, opened.
type Memory struct {
	ID         uuid.UUID
	Scope      memd.Scope
	Kind       Kind
	Text       string
	Vector     []float32 // only when asked for
	Metadata   map[string]string
	SourceTime time.Time // zero: not given
	CreatedAt  time.Time
	UpdatedAt  time.Time
	ExpiresAt  time.Time // zero: never
	Version    int64
	// SessionIDs are the sessions that contributed, at most MaxSessionIDs of
	// them; Contributions counts all contributors, own scopes included.
	SessionIDs    []string
	Contributions int
}

// MaxSessionIDs bounds Memory.SessionIDs.
const MaxSessionIDs = 32

// Filter narrows Search and List. Every field that is set must match.
type Filter struct {
	Kinds []Kind
	// SessionIDs keeps rows to which one of these sessions contributed. Only in
	// a user's scope.
	SessionIDs []string
	// From (inclusive) and To (exclusive) bound the source time, or for rows
	// without one the time they were added.
	From, To time.Time
	// Metadata keeps rows that have every one of these entries.
	Metadata map[string]string
}
