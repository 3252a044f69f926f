package eraser

import (
	"context"
	"errors"
	"strings"

	"github.com/google/uuid"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// Mode says what is to be erased.
type Mode uint8

// Modes, append-only.
const (
	ModeUnknown Mode = iota
	// ModeUser: everything about a user of an app.
	ModeUser
	// ModeSession: one conversation, and everything that was derived from it.
	ModeSession
	// ModeSessionContent: one conversation. What was derived from it stays.
	ModeSessionContent
	// ModeTenant: everything of a tenant.
	ModeTenant
)

// String returns the mode's name in a webhook.
func (m Mode) String() string {
	switch m {
	case ModeUser:
		return "user"
	case ModeSession:
		return "session"
	case ModeSessionContent:
		return "session_content"
	case ModeTenant:
		return "tenant"
	}
	return "unknown"
}

// Sessions reports whether the mode is about one conversation.
func (m Mode) Sessions() bool { return m == ModeSession || m == ModeSessionContent }

// Request says what to count, erase or verify. It was validated: the ids that
// its mode needs are set and the others empty.
type Request struct {
	// ID names the erasure, the same in every call for it.
	ID   uuid.UUID
	Mode Mode
	// Tenant is the tenant's name at memd.
	Tenant    string
	App       string
	UserID    string
	SessionID string
	// Round is 1, and higher when the same erasure looks again for what arrived
	// late.
	Round int
}

// Result is what an Erase did.
type Result struct {
	// Erased counts the things that are gone by this call.
	Erased int64
	// Pending says that the rest is erased in the background. memd asks again.
	Pending bool
}

// Eraser is a store outside memd. Its methods are called by several goroutines
// at once, and again with the same Request after any failure. What is not there
// is no error.
type Eraser interface {
	// Count returns how many things Erase would erase. It changes nothing.
	Count(ctx context.Context, r Request) (int64, error)
	// Erase erases them.
	Erase(ctx context.Context, r Request) (Result, error)
	// Verify counts them in the store itself, not from what Erase remembers.
	Verify(ctx context.Context, r Request) (int64, error)
}

// Limits of a request.
const (
	maxIDBytes     = 512
	maxTenantBytes = 63
	maxRound       = 1 << 15
)

var errIncomplete = errors.New("the ids of the request do not fit its mode")

// Validate refuses a request whose ids do not fit its mode, or read like a
// pattern. The error repeats no value.
func (r Request) Validate() error {
	ids := []string{r.App, r.UserID}
	switch {
	case r.ID == uuid.Nil, r.Tenant == "", len(r.Tenant) > maxTenantBytes, r.Round < 1, r.Round > maxRound:
		return errIncomplete
	case r.Mode == ModeTenant:
		if r.App != "" || r.UserID != "" || r.SessionID != "" {
			return errIncomplete
		}
		return nil
	case r.Mode.Sessions():
		ids = append(ids, r.SessionID)
	case r.Mode != ModeUser || r.SessionID != "":
		return errIncomplete
	}
	for _, id := range ids {
		if id == "" || len(id) > maxIDBytes || strings.Trim(id, "*%") == "" {
			return errIncomplete
		}
	}
	return nil
}

// FromProto reads the subject of a call. Nil and unknown values give a Request
// that Validate refuses.
func FromProto(s *memdv1.ErasureSubject) Request {
	r := Request{
		Tenant: s.GetTenant(), App: s.GetApp(), UserID: s.GetUserId(), SessionID: s.GetSessionId(), Round: int(s.GetRound()),
	}
	if id, err := uuid.Parse(s.GetRequestId()); err == nil {
		r.ID = id
	}
	if m := s.GetMode(); m > 0 && m <= memdv1.ErasureMode(ModeTenant) {
		r.Mode = Mode(m)
	}
	return r
}

// ToProto is the inverse of FromProto.
func (r Request) ToProto() *memdv1.ErasureSubject {
	return &memdv1.ErasureSubject{
		RequestId: r.ID.String(), Mode: memdv1.ErasureMode(r.Mode), Tenant: r.Tenant,
		App: r.App, UserId: r.UserID, SessionId: r.SessionID, Round: int32(r.Round),
	}
}
