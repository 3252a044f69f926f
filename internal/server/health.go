package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	connectv1 "connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"

	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

// readyTimeout bounds one look at what the server depends on.
const readyTimeout = 2 * time.Second

var services = []string{
	memdv1connect.MemoryServiceName, memdv1connect.SessionServiceName, memdv1connect.ArtifactServiceName,
	memdv1connect.ErasureServiceName, memdv1connect.AdminServiceName, memdv1connect.TargetServiceName,
}

// health answers whether calls would succeed: for a load balancer, which needs
// no API key to ask. What makes the process ready is Config.Ready's to say.
type health struct {
	ready   func(context.Context) error
	leaving atomic.Bool
}

func (h *health) serving(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return !h.leaving.Load() && h.ready(ctx) == nil
}

// Check implements grpchealth.Checker.
func (h *health) Check(ctx context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if req.Service != "" && !slices.Contains(services, req.Service) {
		return nil, connectv1.NewError(connectv1.CodeNotFound, errors.New("no such service"))
	}
	if !h.serving(ctx) {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}

// mount adds health and reflection. Both come from packages of Connect's first
// version, which bring handlers of their own: they share the port and nothing
// else, neither keys nor metrics.
func (h *health) mount(mux *http.ServeMux) {
	limit := connectv1.WithReadMaxBytes(64 << 10)
	mux.Handle(grpchealth.NewHandler(h, limit))
	reflector := grpcreflect.NewStaticReflector(append([]string{grpchealth.HealthV1ServiceName}, services...)...)
	mux.Handle(grpcreflect.NewHandlerV1(reflector, limit))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector, limit))

	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if !h.serving(r.Context()) {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
}
