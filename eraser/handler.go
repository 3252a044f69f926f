package eraser

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

// maxRequestBytes bounds a request: three ids of 512 bytes and little else.
const maxRequestBytes = 64 << 10

// Option configures a Handler.
type Option func(*handler) error

// WithToken admits calls of EraserService that bring one of the tokens. Two are
// for the time in which one is being replaced.
func WithToken(tokens ...string) Option {
	return func(h *handler) error {
		for _, t := range tokens {
			if len(t) < 16 {
				return errors.New("eraser: a token must have at least 16 characters")
			}
			h.tokens = append(h.tokens, sha256.Sum256([]byte(t)))
		}
		return nil
	}
}

// WithKey admits webhooks that are signed with one of the keys ("whsec_…").
func WithKey(keys ...string) Option {
	return func(h *handler) (err error) {
		h.verifier, err = NewVerifier(keys...)
		return err
	}
}

// WithClock replaces the system's clock, for tests.
func WithClock(now func() time.Time) Option {
	return func(h *handler) error { h.now = now; return nil }
}

type handler struct {
	memdv1connect.UnimplementedEraserServiceHandler

	store    Eraser
	tokens   [][sha256.Size]byte
	verifier *Verifier
	now      func() time.Time
	seen     seen
	rpc      *http.ServeMux
}

// Handler serves a store to memd: EraserService below
// /memd.v1.EraserService/ for WithToken, and webhooks, POSTed to any other path,
// for WithKey. At least one of the two is needed, because nobody but memd may
// erase. Serve it with TLS.
func Handler(store Eraser, options ...Option) (http.Handler, error) {
	h := &handler{store: store, now: time.Now, rpc: http.NewServeMux()}
	for _, o := range options {
		if err := o(h); err != nil {
			return nil, err
		}
	}
	switch {
	case store == nil:
		return nil, errors.New("eraser: no store is given")
	case len(h.tokens) == 0 && h.verifier == nil:
		return nil, errors.New("eraser: neither WithToken nor WithKey is given: anybody could erase")
	}
	server := connect.NewServer(h.authenticate)
	memdv1connect.RegisterEraserServiceHandler(server, h)
	connecthttp.Mount(h.rpc, server, connecthttp.WithReadMaxBytes(maxRequestBytes))
	return h, nil
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/"+memdv1connect.EraserServiceName+"/") {
		h.rpc.ServeHTTP(w, r)
		return
	}
	h.webhook(w, r)
}

// authenticate admits a call before its message is read.
func (h *handler) authenticate(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
		info, ok := connect.CallInfoForServerContext(ctx)
		if !ok || !h.knows(info.RequestHeader().Get("Authorization")) {
			return connect.NewError(connect.CodeUnauthenticated, "not authenticated")
		}
		return next(ctx, spec, stream)
	}
}

// knows compares with every token, in a time that does not tell which.
func (h *handler) knows(header string) bool {
	token, ok := strings.CutPrefix(header, "Bearer ")
	sum := sha256.Sum256([]byte(token))
	found := 0
	for _, t := range h.tokens {
		found |= subtle.ConstantTimeCompare(t[:], sum[:])
	}
	return ok && found == 1
}

// Errors of a store are not sent: they may hold what was asked for.
var (
	errRefused = connect.NewError(connect.CodeInvalidArgument, "the request is incomplete")
	errFailed  = connect.NewError(connect.CodeUnavailable, "the store failed; try again")
)

func (h *handler) Count(ctx context.Context, req *memdv1.CountRequest) (*memdv1.CountResponse, error) {
	r := FromProto(req.GetSubject())
	if r.Validate() != nil {
		return nil, errRefused
	}
	n, err := h.store.Count(ctx, r)
	if err != nil {
		return nil, errFailed
	}
	return &memdv1.CountResponse{Count: n}, nil
}

func (h *handler) Erase(ctx context.Context, req *memdv1.EraseRequest) (*memdv1.EraseResponse, error) {
	r := FromProto(req.GetSubject())
	if r.Validate() != nil {
		return nil, errRefused
	}
	res, err := h.store.Erase(ctx, r)
	if err != nil {
		return nil, errFailed
	}
	return &memdv1.EraseResponse{Erased: res.Erased, Pending: res.Pending}, nil
}

func (h *handler) Verify(ctx context.Context, req *memdv1.VerifyRequest) (*memdv1.VerifyResponse, error) {
	r := FromProto(req.GetSubject())
	if r.Validate() != nil {
		return nil, errRefused
	}
	n, err := h.store.Verify(ctx, r)
	if err != nil {
		return nil, errFailed
	}
	return &memdv1.VerifyResponse{Remaining: n}, nil
}
