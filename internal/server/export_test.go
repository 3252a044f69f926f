package server

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/prometheus/client_golang/prometheus"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
)

// Paced is the pacing of a handler of some procedures.
func Paced(next http.Handler, idle time.Duration, streams map[string]connect.StreamType) http.Handler {
	return (&pace{idle: idle, streams: streams}).wrap(next)
}

// LimitOf is how long a procedure may take.
func LimitOf(procedure string) time.Duration { return rules[procedure].limit }

// Check is the table of roles alone.
func Check(procedure string, p auth.Principal) error { return check(procedure, p) }

// Procedures returns the procedures that the table of roles knows.
func Procedures() []string {
	var all []string
	for p := range rules {
		all = append(all, p)
	}
	return all
}

// Durability says whether the table of what waits for the ledgers has a
// procedure, and whether its plain answer waits.
func Durability(procedure string) (waits, known bool) {
	f, known := durability[procedure]
	return known && f(nil), known
}

// Outcomes returns the sentinels that the map of errors knows.
func Outcomes() []error {
	var all []error
	for _, o := range outcomes {
		all = append(all, o.err)
	}
	return all
}

// ConnectError is the map of errors.
func ConnectError(ctx context.Context, err error) (*connect.Error, memdv1.Reason) {
	return connectError(ctx, err)
}

// OpenChain is the chain without authorisation, for handlers of a test's own.
func OpenChain(l *slog.Logger, r prometheus.Registerer) []connect.ServerInterceptor {
	m, err := newCallMetrics(r)
	if err != nil {
		panic(err)
	}
	v, err := validation()
	if err != nil {
		panic(err)
	}
	return []connect.ServerInterceptor{
		m.interceptor(memd.SystemClock{}), answers(l, memd.SystemClock{}), panics(l, m.panics), v,
	}
}
