package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// logFlags say how a process logs. Logs hold ids as keyed digests only, and
// never content.
type logFlags struct {
	LogLevel  string `default:"info" enum:"debug,info,warn,error" help:"Least level that is logged: debug, info, warn or error."`
	LogFormat string `default:"json" enum:"json,text" help:"Format of the log on standard error: json or text."`
}

func (f logFlags) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.LogLevel)); err != nil {
		level = slog.LevelInfo // kong has checked it
	}
	options := &slog.HandlerOptions{Level: level}
	if f.LogFormat == "text" {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

// tracer exports spans over OTLP when the standard variables name an endpoint
// (opentelemetry.io/docs/specs/otel/protocol/exporter), and makes none
// otherwise. Spans hold procedures, codes and sizes; no ids and no content.
func tracer(ctx context.Context, getenv func(string) string) (*sdktrace.TracerProvider, error) {
	if getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return nil, nil
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("setting up traces: %w", err)
	}
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter)), nil
}
