package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// store is one of those that are compared. Rows are named by their numbers in the
// dataset.
type store interface {
	// add adds rows in one step, durably where the store can be.
	add(ctx context.Context, from, to int) error
	// search returns the nearest rows, best first. It is safe for concurrent use.
	search(ctx context.Context, query []float32) ([]int, error)
}

// Cell is what was measured of one store with one dataset. Zero is what was not.
type Cell struct {
	Data      string `json:"data"`
	Dimension int    `json:"dimension"`
	Rows      int    `json:"rows"`
	System    string `json:"system"`
	Setting   string `json:"setting,omitempty"`

	// Of searches for ten hits: recall against the true ten; milliseconds with one
	// client; searches a second with one and with eight, and their p95 then.
	Recall  float64 `json:"recall"`
	P50     float64 `json:"p50_ms"`
	P95     float64 `json:"p95_ms"`
	QPS     float64 `json:"qps"`
	QPS8    float64 `json:"qps_8_clients"`
	P95At8  float64 `json:"p95_ms_8_clients"`
	Samples int     `json:"samples"`

	// Bytes that a row takes.
	Disk   float64 `json:"disk_bytes_per_row,omitempty"`
	Memory float64 `json:"memory_bytes_per_row,omitempty"`

	// Milliseconds to add one row, and rows a second in batches of 256, one client.
	AddOne   float64 `json:"add_one_p50_ms,omitempty"`
	AddBatch float64 `json:"add_rows_per_second,omitempty"`
	// Seconds: to build the index; until a search of what nobody has in memory is
	// answered; to forget 1,000 rows of many, and all.
	Built      float64 `json:"build_s,omitempty"`
	Cold       float64 `json:"cold_s,omitempty"`
	ForgetSome float64 `json:"forget_1000_s,omitempty"`
	ForgetAll  float64 `json:"forget_all_s,omitempty"`
}

// How long is measured at most; the number of samples is noted.
const (
	latencyTime = 4 * time.Second
	leastSample = 10
	mostSamples = 400
	warmSearch  = 10
	oneByOne    = 60
	batches     = 12
	batchRows   = 256
)

// measureSearch fills in the search figures of a cell.
func (c *Cell) measureSearch(ctx context.Context, d *dataset, s store) error {
	found := 0.0
	for i, q := range d.queries {
		rows, err := s.search(ctx, q)
		if err != nil {
			return err
		}
		found += d.recall(i, rows)
		if i+1 == len(d.queries) || i+1 >= leastSample && c.slow(len(d.rows)) {
			c.Recall = found / float64(i+1)
			break
		}
	}
	var took []float64
	for began := time.Now(); len(took) < mostSamples && (time.Since(began) < latencyTime || len(took) < leastSample); {
		xs, err := latencies(1, func(int) error {
			_, err := s.search(ctx, d.queries[len(took)%len(d.queries)])
			return err
		})
		if err != nil {
			return err
		}
		took = append(took, xs...)
	}
	c.P50, c.P95, c.Samples = median(took), quantile(took, 0.95), len(took)
	sum := 0.0
	for _, ms := range took {
		sum += ms
	}
	c.QPS = 1000 * float64(len(took)) / sum
	var err error
	c.QPS8, c.P95At8, err = crowded(func(i int) error {
		_, err := s.search(ctx, d.queries[i%len(d.queries)])
		return err
	})
	return err
}

// slow is whether a store reads every row of so many for each search, and is asked
// less often for it.
func (c *Cell) slow(rows int) bool {
	return rows > 200_000 && (c.System == systemExact || c.System == systemChromem)
}

// crowded runs f with eight clients for a while, and returns how often a second, and
// the p95 in milliseconds.
func crowded(f func(i int) error) (rate, p95 float64, err error) {
	var failure atomic.Value
	var group sync.WaitGroup
	took := make([][]float64, clients)
	began := time.Now()
	for c := range clients {
		group.Go(func() {
			for i := c; time.Since(began) < throughput; i += clients {
				xs, err := latencies(1, func(int) error { return f(i) })
				if err != nil {
					failure.Store(err)
					return
				}
				took[c] = append(took[c], xs...)
			}
		})
	}
	group.Wait()
	if err, ok := failure.Load().(error); ok {
		return 0, 0, err
	}
	seconds := time.Since(began).Seconds()
	var all []float64
	for _, xs := range took {
		all = append(all, xs...)
	}
	return float64(len(all)) / seconds, quantile(all, 0.95), nil
}

// measureAdds fills in what adding takes to a store that has the dataset already:
// its first rows are added again.
func (c *Cell) measureAdds(ctx context.Context, d *dataset, s store) error {
	n := min(oneByOne, len(d.rows))
	took, err := latencies(n, func(i int) error { return s.add(ctx, i, i+1) })
	if err != nil {
		return fmt.Errorf("adding one: %w", err)
	}
	c.AddOne = median(took)
	size := min(batchRows, len(d.rows))
	rates := make([]float64, batches)
	for i := range rates {
		from := i * size % (len(d.rows) - size + 1)
		began := time.Now()
		if err := s.add(ctx, from, from+size); err != nil {
			return fmt.Errorf("adding a batch: %w", err)
		}
		rates[i] = float64(size) / time.Since(began).Seconds()
	}
	c.AddBatch = median(rates)
	return nil
}
