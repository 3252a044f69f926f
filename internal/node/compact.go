package node

import (
	"context"
	"fmt"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/compact"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/shred"
)

// Compaction says how a worker compacts, and builds sketches. Without a URL it does
// neither.
type Compaction struct {
	// URL reaches the database's server itself, as memd_maintain or a role that may
	// become it.
	URL string
	// Disk says where the free space of the database's disk can be seen.
	Disk compact.Disk
	// ErasureInterval is compact.Config's; zero is its default.
	ErasureInterval time.Duration
	// SketchInterval is memory.Sketcher's; zero is its default.
	SketchInterval time.Duration
}

// openCompaction opens what compacts, if there is a connection for it.
func (w *Worker) openCompaction(ctx context.Context, c WorkerConfig) error {
	if c.Compaction.URL == "" {
		return nil
	}
	maintain, err := compact.Connect(ctx, c.Compaction.URL)
	if err != nil {
		return fmt.Errorf("opening the database for compaction: %w", err)
	}
	w.closers = append(w.closers, func(context.Context) error { maintain.Close(); return nil })
	w.maintain = maintain
	w.compact, err = compact.NewRunner(compact.Config{
		Pool: w.Pool, Maintain: maintain, Disk: c.Compaction.Disk, Clock: c.Clock, Logger: c.Logger, Metrics: c.Metrics.compact(),
		ErasureInterval: c.Compaction.ErasureInterval,
	})
	return err
}

// openSketches opens what builds sketches, with the same connection.
func (w *Worker) openSketches(c WorkerConfig) error {
	if w.maintain == nil {
		return nil
	}
	w.sketcher = &memory.Sketcher{
		Pool: w.Pool, Maintain: w.maintain.Pool(), Clock: c.Clock, Logger: c.Logger,
		Interval: c.Compaction.SketchInterval,
		Keys:     func(ctx context.Context, t memd.TenantNo) (*shred.Keys, error) { return w.keyring.Keys(ctx, t, 0) },
	}
	return c.Metrics.sketches(w.sketcher.Building)
}

// compact is compaction's hook.
func (m *Metrics) compact() compact.Metrics {
	return compact.Metrics{
		Ended: func(mode compact.Mode, f compact.Failure, took, blocked time.Duration) {
			m.compactions.WithLabelValues(mode.String(), string(f)).Observe(took.Seconds())
			m.blocked.WithLabelValues(mode.String()).Set(blocked.Seconds())
			m.compacted.WithLabelValues(mode.String()).Set(1)
		},
		Progress: func(mode compact.Mode, share float64) { m.compacted.WithLabelValues(mode.String()).Set(share) },
	}
}
