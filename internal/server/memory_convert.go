package server

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/memory"
)

// The enums of the domain have the numbers of the API's; a test compares their
// names.

func scopeFromProto(s *memdv1.Scope) memd.Scope {
	if u := s.GetUser(); u != nil {
		return memd.Scope{App: u.GetApp(), UserID: u.GetUserId()}
	}
	return memd.Scope{App: s.GetShared().GetApp()}
}

func scopeToProto(s memd.Scope) *memdv1.Scope {
	if s.Shared() {
		return &memdv1.Scope{Owner: &memdv1.Scope_Shared{Shared: &memdv1.SharedScope{App: s.App}}}
	}
	return &memdv1.Scope{Owner: &memdv1.Scope_User{User: &memdv1.UserScope{App: s.App, UserId: s.UserID}}}
}

func rowsFromProto(rows []*memdv1.Row) ([]memory.Row, error) {
	out := make([]memory.Row, len(rows))
	for i, r := range rows {
		at := fmt.Sprintf("rows[%d].", i)
		row := memory.Row{
			Scope:      scopeFromProto(r.GetScope()),
			SessionID:  r.GetSessionId(),
			Impersonal: r.GetImpersonal(),
			Kind:       memory.Kind(r.GetKind()),
			Text:       r.GetText(),
			Vector:     r.GetVector(),
			Metadata:   r.GetMetadata(),
			EventID:    r.GetEventId(),
		}
		if c := r.GetContributor(); c != nil {
			row.Contributor = &memory.Contributor{UserID: c.GetUserId(), SessionID: c.GetSessionId()}
		}
		var err error
		if row.SourceTime, err = timeFromProto(at+"source_time", r.GetSourceTime()); err != nil {
			return nil, err
		}
		if row.ExpiresAt, err = timeFromProto(at+"expires_at", r.GetExpiresAt()); err != nil {
			return nil, err
		}
		if row.Sources, err = sourcesFromProto(at, row.Scope, r.GetSources()); err != nil {
			return nil, err
		}
		out[i] = row
	}
	return out, nil
}

// sourcesFromProto names the scope's user where a session leaves the user out.
func sourcesFromProto(at string, scope memd.Scope, sources []*memdv1.Source) ([]memory.Source, error) {
	var out []memory.Source
	for i, s := range sources {
		one := memory.Source{Version: s.GetVersion()}
		if session := s.GetSession(); session != nil {
			one.UserID, one.SessionID = session.GetUserId(), session.GetSessionId()
			if one.UserID == "" {
				one.UserID = scope.UserID
			}
		} else {
			var err error
			if one.MemoryID, err = idFromProto(fmt.Sprintf("%ssources[%d].memory_id", at, i), s.GetMemoryId()); err != nil {
				return nil, err
			}
		}
		out = append(out, one)
	}
	return out, nil
}

func filterFromProto(f *memdv1.Filter) (memory.Filter, error) {
	out := memory.Filter{SessionIDs: f.GetSessionIds(), Metadata: f.GetMetadata()}
	for _, k := range f.GetKinds() {
		out.Kinds = append(out.Kinds, memory.Kind(k))
	}
	var err error
	if out.From, err = timeFromProto("filter.source_time.from", f.GetSourceTime().GetFrom()); err != nil {
		return out, err
	}
	out.To, err = timeFromProto("filter.source_time.to", f.GetSourceTime().GetTo())
	return out, err
}

// changeFromProto takes the fields that the mask names, or, without a mask,
// those that are set. A field that is named and not set is cleared.
func changeFromProto(req *memdv1.UpdateRequest) (memory.Change, error) {
	c := memory.Change{Expected: req.GetExpectedVersion(), Impersonal: req.GetImpersonal()}
	masked := req.GetUpdateMask() != nil
	named := func(field string, set bool) bool {
		return masked && slices.Contains(req.GetUpdateMask().GetPaths(), field) || !masked && set
	}
	if named("text", req.GetText() != "") {
		c.Text = new(req.GetText())
	}
	if named("vector", len(req.GetVector()) > 0) {
		c.Vector = new(req.GetVector())
	}
	if named("metadata", len(req.GetMetadata()) > 0) {
		c.Metadata = new(req.GetMetadata())
	}
	if named("source_time", req.GetSourceTime() != nil) {
		t, err := timeFromProto("source_time", req.GetSourceTime())
		if err == nil && t.IsZero() {
			err = &memd.InvalidError{Field: "source_time", Problem: "cannot be cleared"}
		}
		if err != nil {
			return c, err
		}
		c.SourceTime = &t
	}
	if named("expires_at", req.GetExpiresAt() != nil) {
		t, err := timeFromProto("expires_at", req.GetExpiresAt())
		if err != nil {
			return c, err
		}
		c.ExpiresAt = &t
	}
	var err error
	c.Sources, err = sourcesFromProto("", scopeFromProto(req.GetScope()), req.GetSources())
	return c, err
}

func memoryToProto(m memory.Memory) *memdv1.Memory {
	return memoryInScope(&m, scopeToProto(m.Scope))
}

// memoryInScope takes the scope as it is, so that many memories can share one.
func memoryInScope(m *memory.Memory, scope *memdv1.Scope) *memdv1.Memory {
	return &memdv1.Memory{
		MemoryId:          m.ID.String(),
		Scope:             scope,
		Kind:              memdv1.Kind(m.Kind),
		Text:              m.Text,
		Vector:            m.Vector,
		Metadata:          m.Metadata,
		SourceTime:        timestampToProto(m.SourceTime),
		CreatedAt:         timestampToProto(m.CreatedAt),
		UpdatedAt:         timestampToProto(m.UpdatedAt),
		ExpiresAt:         timestampToProto(m.ExpiresAt),
		Version:           m.Version,
		SessionIds:        m.SessionIDs,
		ContributionCount: int32(m.Contributions),
	}
}

func idFromProto(field, s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil || id == uuid.Nil {
		return uuid.Nil, &memd.InvalidError{Field: field, Problem: "must be a UUID"}
	}
	return id, nil
}

// timeFromProto returns the zero time for a timestamp that is not set, and cuts
// one that is to the microsecond, which is what the database keeps.
func timeFromProto(field string, t *timestamppb.Timestamp) (time.Time, error) {
	if t == nil {
		return time.Time{}, nil
	}
	if t.CheckValid() != nil {
		return time.Time{}, &memd.InvalidError{Field: field, Problem: "must be a time from year 1 to 9999"}
	}
	return t.AsTime().Truncate(time.Microsecond), nil
}
