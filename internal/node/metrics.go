package node

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/export"
	"forgettable.dev/memd/purge"
)

// Metrics are what both processes count. Labels are methods, kinds and
// outcomes; never a tenant's user.
type Metrics struct {
	Registry *prometheus.Registry

	kms       *prometheus.HistogramVec
	rows      *prometheus.CounterVec
	epochs    prometheus.Counter
	erasures  *prometheus.HistogramVec
	failures  *prometheus.CounterVec
	open      *prometheus.GaugeVec
	rotations prometheus.Counter
	purges    *prometheus.HistogramVec
	exports   *prometheus.CounterVec

	compactions        *prometheus.HistogramVec
	blocked, compacted *prometheus.GaugeVec
}

// NewMetrics registers the metrics.
func NewMetrics(r *prometheus.Registry) (*Metrics, error) {
	m := &Metrics{
		Registry: r,
		kms: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "memd_kms_call_seconds", Help: "Calls to the key service, retries included one by one.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}, []string{"identity", "method", "outcome"}),
		rows: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "memd_rows_total", Help: "Rows that were added, updated, deleted, or swept after they expired.",
		}, []string{"change"}),
		epochs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "memd_key_epochs_dropped_total", Help: "Key epochs that this process let go of because a newer one exists.",
		}),
		erasures: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "memd_erasure_seconds", Help: "Finished erasures, from acceptance to the end.",
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 16),
		}, []string{"kind"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "memd_erasure_failures_total", Help: "Tries of an erasure that did not end it. It is tried again.",
		}, []string{"kind"}),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "memd_erasures_open", Help: "Erasures that are not finished: all that are not done, those that wait for their second sweep, those past their time of one month, those under a legal hold, and those that stopped at their last try.",
		}, []string{"which"}),
		rotations: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "memd_key_rotations_total", Help: "Key trees that were rotated, each destroying one key version.",
		}),
	}
	m.purges = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "memd_purge_call_seconds", Help: "Calls of purge targets, retries included, by how they ended.",
		Buckets: prometheus.ExponentialBuckets(0.005, 2, 15),
	}, []string{"kind", "op", "code"})
	m.exports = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "memd_export_written_total", Help: "What was written into archives of exports: parts, their bytes, and subjects in them. Parts that were made anew count again.",
	}, []string{"what"})
	m.compactions = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "memd_compaction_seconds", Help: "Compactions that ended, by mode and by the failure of the first table that failed, empty if none did.",
		Buckets: prometheus.ExponentialBuckets(0.1, 4, 10),
	}, []string{"mode", "failure"})
	m.blocked = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "memd_compaction_blocked_seconds", Help: "The longest time for which the newest compaction of a mode locked a table.",
	}, []string{"mode"})
	m.compacted = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "memd_compaction_progress", Help: "What share of the bytes the newest compaction of a mode has been through, from 0 to 1.",
	}, []string{"mode"})
	for _, c := range []prometheus.Collector{m.exports, m.compactions, m.blocked, m.compacted, m.purges, m.kms, m.rows, m.epochs, m.erasures, m.failures, m.open, m.rotations} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) kmsCall(identity, method string, err error, d time.Duration) {
	outcome := "ok"
	switch {
	case errors.Is(err, memd.ErrShredded):
		outcome = "shredded"
	case errors.Is(err, memd.ErrKeyUnavailable):
		outcome = "unavailable"
	case errors.Is(err, memd.ErrPermissionDenied):
		outcome = "denied"
	case err != nil:
		outcome = "error"
	}
	m.kms.WithLabelValues(identity, method, outcome).Observe(d.Seconds())
}

// changed is memory's hook.
func (m *Metrics) changed(change string, rows int) {
	m.rows.WithLabelValues(change).Add(float64(rows))
}

// worker is erasure's hook.
func (m *Metrics) worker() erasure.Metrics {
	return erasure.Metrics{
		Done: func(kind erasure.Kind, took time.Duration) {
			m.erasures.WithLabelValues(kind.String()).Observe(took.Seconds())
		},
		Failed: func(kind erasure.Kind) { m.failures.WithLabelValues(kind.String()).Inc() },
		Open: func(b erasure.Backlog) {
			m.open.WithLabelValues("all").Set(float64(b.Open))
			m.open.WithLabelValues("sweeping").Set(float64(b.Sweeping))
			m.open.WithLabelValues("overdue").Set(float64(b.Overdue))
			m.open.WithLabelValues("held").Set(float64(b.Held))
			m.open.WithLabelValues("failing").Set(float64(b.Failing))
		},
		Swept: func(rows int64) { m.changed("swept", int(rows)) },
	}
}

// purged is the hook of calls of purge targets.
func (m *Metrics) purged(k purge.Kind, op purge.Op, code purge.Code, took time.Duration) {
	m.purges.WithLabelValues(k.String(), op.String(), string(code)).Observe(took.Seconds())
}

// exported is the hook of parts of exports.
func (m *Metrics) exported(size int64, c export.Counts) {
	m.exports.WithLabelValues("parts").Inc()
	m.exports.WithLabelValues("bytes").Add(float64(size))
	m.exports.WithLabelValues("subjects").Add(float64(c.Subjects))
}

// rotated is the rotator's hook.
func (m *Metrics) rotated(memd.TenantNo, int64) { m.rotations.Inc() }

// residents reports what searches keep in memory, and what of it is being read.
func (m *Metrics) residents(size func() (scopes int, bytes int64), loading func() (scopes, rows int64)) error {
	var err error
	for _, g := range []struct {
		name, help string
		value      func() float64
	}{
		{"memd_resident_scopes", "Scopes whose vectors, or codes of them, are in memory.", func() float64 { n, _ := size(); return float64(n) }},
		{"memd_resident_bytes", "Memory that those scopes take.", func() float64 { _, b := size(); return float64(b) }},
		{"memd_loading_scopes", "Large scopes whose codes are being read into memory.", func() float64 { n, _ := loading(); return float64(n) }},
		{"memd_loading_rows", "Rows of those scopes that have been read so far.", func() float64 { _, n := loading(); return float64(n) }},
	} {
		err = errors.Join(err, m.Registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.name, Help: g.help}, g.value)))
	}
	return err
}

// sketches reports what is built for scopes too large for memory.
func (m *Metrics) sketches(building func() (inUse, asked, rows int64)) error {
	var err error
	for _, g := range []struct {
		name, help string
		value      func() int64
	}{
		{"memd_sketch_tables", "Large scopes whose sketches are in use or being built.", func() int64 { n, _, _ := building(); return n }},
		{"memd_sketch_asked", "Large scopes that are scanned until their sketches are there.", func() int64 { _, n, _ := building(); return n }},
		{"memd_sketch_rows", "Rows of the scope whose sketches are being built that are there so far.", func() int64 { _, _, n := building(); return n }},
	} {
		err = errors.Join(err, m.Registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.name, Help: g.help}, func() float64 { return float64(g.value()) })))
	}
	return err
}

// cachedTenants reports how many tenants' keys are in memory.
func (m *Metrics) cachedTenants(kind string, cached func() int) error {
	return m.Registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "memd_key_tenants", Help: "Tenants whose key tree is in memory.",
		ConstLabels: prometheus.Labels{"process": kind},
	}, func() float64 { return float64(cached()) }))
}
