package server

import (
	"context"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/prometheus/client_golang/prometheus"

	"forgettable.dev/memd"
)

// latencyBuckets go from an answer out of memory to an erasure.
var latencyBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 120}

// callMetrics counts calls. Its labels are the procedures of the API and the
// codes: a bounded number, and nothing about anybody.
type callMetrics struct {
	calls    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	inFlight prometheus.Gauge
	panics   prometheus.Counter
}

func newCallMetrics(r prometheus.Registerer) (*callMetrics, error) {
	m := &callMetrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "memd_calls_total", Help: "Calls of the API that have ended, by procedure and code.",
		}, []string{"procedure", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "memd_call_seconds", Help: "Time from a call's headers to its answer, by procedure and code.", Buckets: latencyBuckets,
		}, []string{"procedure", "code"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "memd_calls_in_flight", Help: "Calls of the API that have not ended.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "memd_panics_total", Help: "Calls that ended in a panic.",
		}),
	}
	for _, c := range []prometheus.Collector{m.calls, m.seconds, m.inFlight, m.panics} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *callMetrics) interceptor(clock memd.Clock) connect.ServerInterceptor {
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			start := clock.Now()
			m.inFlight.Inc()
			defer m.inFlight.Dec()
			err := next(ctx, spec, stream)
			m.count(spec.Procedure, err, clock.Now().Sub(start))
			return err
		}
	}
}

func (m *callMetrics) count(procedure string, err error, took time.Duration) {
	code := "ok"
	if err != nil {
		code = connect.CodeOf(err).String()
	}
	m.calls.WithLabelValues(procedure, code).Inc()
	m.seconds.WithLabelValues(procedure, code).Observe(took.Seconds())
}
