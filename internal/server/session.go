package server

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/sessions"
)

type sessionHandler struct {
	sessions *sessions.Service
	erasure  *erasure.Service
}

var _ memdv1connect.SessionServiceHandler = (*sessionHandler)(nil)

// sessionTenantOf is the tenant of the call, as sessions wants it.
func sessionTenantOf(ctx context.Context) sessions.Tenant {
	p := principalOf(ctx)
	return sessions.Tenant{No: p.Tenant, Epoch: p.Epoch}
}

func (h *sessionHandler) CreateSession(ctx context.Context, req *memdv1.CreateSessionRequest) (*memdv1.CreateSessionResponse, error) {
	s, err := h.sessions.Create(ctx, sessionTenantOf(ctx), sessionIDFromProto(req), req.GetState(), req.GetImpersonalAppState())
	if err != nil {
		return nil, err
	}
	return &memdv1.CreateSessionResponse{Session: sessionToProto(s)}, nil
}

func (h *sessionHandler) GetSession(ctx context.Context, req *memdv1.GetSessionRequest) (*memdv1.GetSessionResponse, error) {
	q := sessions.Query{Events: memd.MaxReadEvents, Before: req.GetBeforeSequence()}
	if req.NumRecentEvents != nil {
		q.Events = int(req.GetNumRecentEvents())
	}
	var err error
	if q.Since, err = timeFromProto("after_timestamp", req.GetAfterTimestamp()); err != nil {
		return nil, err
	}
	s, err := h.sessions.Get(ctx, sessionTenantOf(ctx), sessionIDFromProto(req), q)
	if err != nil {
		return nil, err
	}
	return &memdv1.GetSessionResponse{Session: sessionToProto(s)}, nil
}

func (h *sessionHandler) ListSessions(ctx context.Context, req *memdv1.ListSessionsRequest) (*memdv1.ListSessionsResponse, error) {
	page, err := h.sessions.List(ctx, sessionTenantOf(ctx), req.GetApp(), req.GetUserId(), pageSize(req.GetPageSize()), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	res := &memdv1.ListSessionsResponse{NextPageToken: page.Next, Fenced: page.Fenced}
	for _, s := range page.Sessions {
		res.Sessions = append(res.Sessions, sessionToProto(s))
	}
	return res, nil
}

func (h *sessionHandler) AppendEvents(ctx context.Context, req *memdv1.AppendEventsRequest) (*memdv1.AppendEventsResponse, error) {
	events, err := eventsFromProto(req.GetEvents())
	if err != nil {
		return nil, err
	}
	seen, err := timeFromProto("last_update_time", req.GetLastUpdateTime())
	if err != nil {
		return nil, err
	}
	a, err := h.sessions.Append(ctx, sessionTenantOf(ctx), sessionIDFromProto(req), events, seen, req.GetImpersonalAppState())
	if err != nil {
		return nil, err
	}
	res := &memdv1.AppendEventsResponse{LastUpdateTime: timestampToProto(a.UpdatedAt), Results: make([]*memdv1.AppendResult, len(a.Events))}
	for i, p := range a.Events {
		res.Results[i] = &memdv1.AppendResult{EventId: p.EventID, Sequence: p.Seq, Status: memdv1.AppendStatus(p.Status)}
	}
	return res, nil
}

// DeleteSession is the one procedure of agents that erases. To take memories
// along is what ForgetSession does, and needs its role.
func (h *sessionHandler) DeleteSession(ctx context.Context, req *memdv1.DeleteSessionRequest) (*memdv1.DeleteSessionResponse, error) {
	if req.GetDeleteMemories() && !principalOf(ctx).Roles.Any(auth.Eraser) {
		return nil, fmt.Errorf("deleting a session's memories: %w", memd.ErrPermissionDenied)
	}
	var request uuid.UUID // none: the erasure is named after the session
	if req.GetRequestId() != "" {
		var err error
		if request, err = idFromProto("request_id", req.GetRequestId()); err != nil {
			return nil, err
		}
	}
	r, err := h.erasure.DeleteSession(ctx, callerOf(ctx), req.GetApp(), req.GetUserId(), req.GetSessionId(), req.GetDeleteMemories(), request)
	if err != nil {
		return nil, err
	}
	return &memdv1.DeleteSessionResponse{Report: reportToProto(r)}, nil
}

// sessionIDFromProto is the session that a request names.
func sessionIDFromProto(req interface {
	GetApp() string
	GetUserId() string
	GetSessionId() string
}) sessions.ID {
	return sessions.ID{App: req.GetApp(), UserID: req.GetUserId(), SessionID: req.GetSessionId()}
}

func eventsFromProto(events []*memdv1.Event) ([]sessions.Event, error) {
	out := make([]sessions.Event, len(events))
	for i, e := range events {
		at, err := timeFromProto(fmt.Sprintf("events[%d].timestamp", i), e.GetTimestamp())
		if err != nil {
			return nil, err
		}
		out[i] = sessions.Event{
			ID: e.GetId(), Author: e.GetAuthor(), Time: at, InvocationID: e.GetInvocationId(), Branch: e.GetBranch(), Content: e.GetContent(),
			StateDelta: e.GetStateDelta(), Actions: e.GetActions(), Extra: e.GetExtra(), Partial: e.GetPartial(),
		}
	}
	return out, nil
}

func sessionToProto(s sessions.Session) *memdv1.SessionRecord {
	p := &memdv1.SessionRecord{
		App: s.App, UserId: s.UserID, SessionId: s.SessionID, CreatedAt: timestampToProto(s.CreatedAt),
		LastUpdateTime: timestampToProto(s.UpdatedAt), EventCount: s.EventCount, State: s.State,
	}
	for _, e := range s.Events {
		p.Events = append(p.Events, &memdv1.Event{
			Id: e.ID, Author: e.Author, Timestamp: timestampToProto(e.Time), InvocationId: e.InvocationID, Branch: e.Branch,
			Content: e.Content, StateDelta: e.StateDelta, Actions: e.Actions, Extra: e.Extra,
			Sequence: e.Seq, AppendedAt: timestampToProto(e.AppendedAt),
		})
	}
	return p
}
