package main

import (
	"context"
	"maps"
	"slices"

	"connectrpc.com/connect/v2"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

// fakeSessions keeps sessions in memory, by their id alone: what belongs to whom
// is the server's business, and is tested there.
type fakeSessions struct {
	memdv1connect.UnimplementedSessionServiceHandler
	kept map[string]*memdv1.SessionRecord
}

func (f *fakeSessions) CreateSession(_ context.Context, req *memdv1.CreateSessionRequest) (*memdv1.CreateSessionResponse, error) {
	s := &memdv1.SessionRecord{App: req.GetApp(), UserId: req.GetUserId(), SessionId: req.GetSessionId(), State: req.GetState()}
	if s.SessionId == "" {
		s.SessionId = "made"
	}
	if s.State == nil {
		s.State = map[string]string{}
	}
	if f.kept[s.GetSessionId()] != nil {
		return nil, reasonError(connect.CodeAlreadyExists, memdv1.Reason_REASON_EXISTS, "already exists")
	}
	f.kept[s.GetSessionId()] = s
	return &memdv1.CreateSessionResponse{Session: s}, nil
}

func (f *fakeSessions) session(id string) (*memdv1.SessionRecord, error) {
	if s := f.kept[id]; s != nil {
		return s, nil
	}
	return nil, reasonError(connect.CodeNotFound, memdv1.Reason_REASON_NOT_FOUND, "not found")
}

func (f *fakeSessions) GetSession(_ context.Context, req *memdv1.GetSessionRequest) (*memdv1.GetSessionResponse, error) {
	s, err := f.session(req.GetSessionId())
	return &memdv1.GetSessionResponse{Session: s}, err
}

// ListSessions has one session on each page.
func (f *fakeSessions) ListSessions(_ context.Context, req *memdv1.ListSessionsRequest) (*memdv1.ListSessionsResponse, error) {
	if req.GetUserId() == "fenced" {
		return &memdv1.ListSessionsResponse{Fenced: true}, nil
	}
	res := &memdv1.ListSessionsResponse{}
	for _, id := range slices.Sorted(maps.Keys(f.kept)) {
		switch {
		case id <= req.GetPageToken():
		case len(res.Sessions) > 0:
			res.NextPageToken = res.GetSessions()[0].GetSessionId()
			return res, nil
		default:
			res.Sessions = append(res.Sessions, f.kept[id])
		}
	}
	return res, nil
}

func (f *fakeSessions) AppendEvents(_ context.Context, req *memdv1.AppendEventsRequest) (*memdv1.AppendEventsResponse, error) {
	s, err := f.session(req.GetSessionId())
	if err != nil {
		return nil, err
	}
	res := &memdv1.AppendEventsResponse{}
	for _, e := range req.GetEvents() {
		status := memdv1.AppendStatus_APPEND_STATUS_REPEATED
		at := slices.IndexFunc(s.GetEvents(), func(old *memdv1.Event) bool { return old.GetId() == e.GetId() })
		if at < 0 {
			status, at = memdv1.AppendStatus_APPEND_STATUS_STORED, len(s.GetEvents())
			e.Sequence = int64(at) + 1
			s.Events, s.EventCount = append(s.Events, e), e.Sequence
			maps.Copy(s.GetState(), e.GetStateDelta())
		}
		res.Results = append(res.Results, &memdv1.AppendResult{EventId: e.GetId(), Sequence: int64(at) + 1, Status: status})
	}
	return res, nil
}

func (f *fakeSessions) DeleteSession(_ context.Context, req *memdv1.DeleteSessionRequest) (*memdv1.DeleteSessionResponse, error) {
	delete(f.kept, req.GetSessionId())
	return &memdv1.DeleteSessionResponse{Report: &memdv1.Report{RequestId: req.GetRequestId()}}, nil
}
