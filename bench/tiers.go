package bench

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"time"
)

// The rows in a scope that are measured, and with what vectors.
var (
	sizes      = []int{1_000, 10_000, 100_000, 1_000_000}
	dimensions = []int{384, 1024}
)

const (
	// mostRows of the larger dimension, of the isotropic data's index and of the
	// part of an hour: the others would take hours, or more disk than most have.
	mostRows = 100_000
	// equalRecall is what pgvector's index is brought to before its times are
	// compared with memd's, or to memd's own recall if that is less.
	equalRecall = 0.99
)

// tiers measures stores beside each other, in scopes of every size.
func tiers(ctx context.Context, l *lab) (figures []Figure, err error) {
	for _, dimension := range dimensions {
		for _, name := range []string{"conversations", "clustered", "isotropic"} {
			for _, n := range sizes {
				if n < l.c.TierFrom || n > l.c.TierRows || n > mostRows && (dimension > dimensions[0] || name != "clustered") ||
					name == "conversations" && (l.c.Conversations == "" || n > 10_000 || dimension > dimensions[0]) {
					continue
				}
				if dimension > dimensions[0] && !l.c.AllTiers || name == "isotropic" && n < mostRows && !l.c.AllTiers {
					continue
				}
				cells, err := l.compare(ctx, name, dimension, n)
				if err != nil {
					return figures, fmt.Errorf("%s, %d-d, %d rows: %w", name, dimension, n, err)
				}
				l.cells = append(l.cells, cells...)
				figures = append(figures, figuresOf(cells)...)
				for _, c := range cells {
					fmt.Fprintf(l.c.Log, "  %s %s: recall %.4f, p50 %s ms, p95 %s ms, %s searches/s with 8 clients\n", c.System, c.Setting, c.Recall, short(c.P50), short(c.P95), short(c.QPS8))
				}
			}
		}
	}
	return figures, nil
}

func (l *lab) compare(ctx context.Context, name string, dimension, n int) (cells []Cell, err error) {
	began := time.Now()
	var d *dataset
	switch name {
	case "conversations":
		d, err = spoken(ctx, l.c.Conversations, dimension, n)
	case "clustered":
		d = clustered(dimension, n)
	default:
		d = isotropic(dimension, n)
	}
	if err != nil {
		return nil, err
	}
	d.solve()
	defer debug.FreeOSMemory() // A dataset has gigabytes.
	step := func(what string) {
		fmt.Fprintf(l.c.Log, "  %s, %d-d, %d rows: %s after %s\n", name, dimension, n, what, time.Since(began).Round(time.Second))
	}
	step("drawn")
	ours, err := l.compareOurs(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("memd: %w", err)
	}
	step("memd")
	plain, err := l.comparePlain(ctx, d, min(equalRecall, ours.Recall), name != "isotropic" || n <= mostRows)
	if err != nil {
		return nil, fmt.Errorf("pgvector: %w", err)
	}
	step("pgvector")
	other, err := l.compareChromem(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("chromem-go: %w", err)
	}
	step("chromem-go")
	return slices.Concat([]Cell{ours}, plain, []Cell{other}), nil
}

// figuresOf are those that the design asks for, of one dataset's cells.
func figuresOf(cells []Cell) (out []Figure) {
	ours := cells[0]
	if ours.Dimension != 384 || ours.Data == "conversations" {
		return nil
	}
	var index *Cell
	for i := range cells {
		if cells[i].System == systemHNSW {
			index = &cells[i] // the last is that of equal recall
		}
	}
	name := func(s string) string { return fmt.Sprintf("%s, %d rows, %s", s, ours.Rows, ours.Data) }
	atLeast := func(what, unit string, x, least float64) Figure {
		return Figure{Name: name(what), Unit: unit, Ours: x, Must: fmt.Sprintf("at least %g", least), Met: x >= least}
	}
	switch ours.Rows {
	case 10_000:
		out = append(out, atLeast("recall@10", "", ours.Recall, 1), bounded(name("search p50"), "ms", ours.P50, 1.5))
	case 100_000:
		out = append(out, atLeast("recall@10", "", ours.Recall, 0.995), bounded(name("search p50"), "ms", ours.P50, 4),
			bounded(name("cold search"), "s", ours.Cold, 3))
	case 1_000_000:
		out = append(out, atLeast("recall@10", "", ours.Recall, 0.99),
			bounded(name("forget all"), "s", ours.ForgetAll, 60), bounded(name("forget 1,000 rows"), "s", ours.ForgetSome, 2))
		if index != nil {
			f := against(name("search p95"), "ms", ours.P95, systemHNSW, index.P95, "at most the peer", func(r float64) bool { return r <= 1 })
			f.Note = fmt.Sprintf("%s, recall %.4f; memd's %.4f", index.Setting, index.Recall, ours.Recall)
			out = append(out, f)
		}
	}
	if ours.Rows >= 100_000 && index != nil {
		out = append(out, against(name("add, batches of 256"), "rows/s", ours.AddBatch, systemHNSW, index.AddBatch,
			"at least 5 times the peer", func(r float64) bool { return r >= 5 }))
	}
	if ours.Rows > 50_000 {
		f := against(name("memory of a row"), "bytes", ours.Memory, "its float32 vector", float64(4*ours.Dimension),
			"code alone at most 1/20 of the peer", func(float64) bool { return 68*20 <= 4*ours.Dimension })
		f.Note = "the code is 68 bytes; the rest are id, index, time, version and whose the row is"
		out = append(out, f)
	}
	return out
}
