package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
)

// call collects, on the way in, what the way out logs and counts.
type call struct {
	principal auth.Principal
	reason    memdv1.Reason
}

type callKey struct{}

func withCall(ctx context.Context) (context.Context, *call) {
	c := &call{}
	return context.WithValue(ctx, callKey{}, c), c
}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// answers turns every error into what the caller is told, and logs the call.
func answers(logger *slog.Logger, clock memd.Clock) connect.ServerInterceptor {
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			ctx, c := withCall(ctx)
			start := clock.Now()
			err := next(ctx, spec, stream)
			took := clock.Now().Sub(start)
			if err == nil {
				logCall(ctx, logger, spec, c, took, nil, nil)
				return nil
			}
			answer, reason := connectError(ctx, err)
			c.reason = reason
			logCall(ctx, logger, spec, c, took, answer, err)
			return answer
		}
	}
}

// logCall writes one line a call: faults of ours as errors with their chain,
// troubles that pass as warnings, refusals as information, the rest for
// debugging only.
func logCall(ctx context.Context, l *slog.Logger, spec connect.Spec, c *call, took time.Duration, answer *connect.Error, err error) {
	level := slog.LevelDebug
	code := "ok"
	if answer != nil {
		level, code = levelOf(answer.Code(), c.reason), answer.Code().String()
	}
	if !l.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("procedure", spec.Procedure), slog.String("code", code), slog.Duration("took", took),
	}
	if answer != nil {
		attrs = append(attrs, slog.String("reason", reasonName(c.reason)))
	}
	if c.principal.Roles != 0 {
		attrs = append(attrs, slog.String("key", c.principal.Key.String()), slog.String("tenant", c.principal.TenantName))
	}
	if s := trace.SpanContextFromContext(ctx); s.IsValid() {
		attrs = append(attrs, slog.String("trace", s.TraceID().String()))
	}
	// A refusal's chain may quote the request that was refused.
	if level >= slog.LevelWarn {
		attrs = append(attrs, slog.Any("error", err))
	}
	l.LogAttrs(ctx, level, "call", attrs...)
}

func levelOf(code connect.Code, reason memdv1.Reason) slog.Level {
	switch reason {
	case memdv1.Reason_REASON_TOO_MANY_CALLS: // As many as somebody likes: they are counted.
		return slog.LevelDebug
	case memdv1.Reason_REASON_QUOTA_REACHED:
		return slog.LevelInfo
	}
	switch code {
	case connect.CodeInternal, connect.CodeUnknown, connect.CodeDataLoss:
		return slog.LevelError
	case connect.CodeUnavailable, connect.CodeResourceExhausted:
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// panicError is all that is left of a panic for the answer and its log line.
type panicError struct{ kind string }

func (e panicError) Error() string { return "panic of type " + e.kind }

// panics turns a panic into an error. Its value is not kept: it may hold
// content.
func panics(logger *slog.Logger, count prometheus.Counter) connect.ServerInterceptor {
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) (err error) {
			defer func() {
				v := recover()
				if v == nil {
					return
				}
				if v == http.ErrAbortHandler {
					panic(v) // net/http's own way to end a response.
				}
				count.Inc()
				err = panicError{fmt.Sprintf("%T", v)}
				logger.LogAttrs(ctx, slog.LevelError, "panic", slog.String("procedure", spec.Procedure),
					slog.String("type", fmt.Sprintf("%T", v)), slog.String("stack", string(debug.Stack())))
			}()
			return next(ctx, spec, stream)
		}
	}
}
