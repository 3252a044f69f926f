package server

import (
	"context"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/proto"

	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
)

// rider authenticates a call by a statement that the call makes anyway. It goes
// on with what the key was when this process last asked, on the premise that it
// still is, and the call's own statement says whether that holds. Until then
// nothing is answered, neither a result nor an error. A call that ends without
// having been told so is authenticated as every other call is and made again,
// so only calls that change nothing may ride.
//
// Another round trip and another statement take longer than the search between
// them. What every call is promised remains true: a key that was revoked, a
// tenant that was suspended, a policy that was changed count from the next call
// on, on every replica.
func rider(a *auth.Authenticator, next, asking connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
		p, premise, ok := a.Recall(bearer(ctx))
		if !ok || check(spec.Procedure, p) != nil {
			return asking(ctx, spec, stream)
		}
		s := &ridingStream{ServerStream: stream, premise: premise}
		err := admit(ctx, spec, s, admitted{Principal: p, premise: premise}, next)
		if premise.Held() {
			a.Confirmed(p)
			return err
		}
		s.premise = nil
		return asking(ctx, spec, s)
	}
}

// ridingStream is the stream of a unary call. It sends nothing while the premise
// has not been found to hold, and gives the request to whoever asks for it
// after the first.
type ridingStream struct {
	connect.ServerStream
	premise *pg.Premise // nil: the caller is authenticated

	received bool
	request  proto.Message
	failed   error
}

// Receive implements connect.ServerStream.
func (s *ridingStream) Receive(msg any) error {
	if !s.received {
		s.received, s.failed = true, s.ServerStream.Receive(msg)
		s.request, _ = msg.(proto.Message)
		return s.failed
	}
	if s.failed != nil {
		return s.failed
	}
	into, ok := msg.(proto.Message)
	if !ok || s.request == nil {
		return connect.Errorf(connect.CodeInternal, "a message of type %T", msg)
	}
	proto.Reset(into)
	proto.Merge(into, s.request)
	return nil
}

// SendHeaders implements connect.ServerStream.
func (s *ridingStream) SendHeaders() error {
	if s.premise != nil && !s.premise.Held() {
		return pg.ErrPremise
	}
	return s.ServerStream.SendHeaders()
}

// Send implements connect.ServerStream.
func (s *ridingStream) Send(msg any) error {
	if s.premise != nil && !s.premise.Held() {
		return pg.ErrPremise
	}
	return s.ServerStream.Send(msg)
}
