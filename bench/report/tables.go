package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"forgettable.dev/memd/bench"
)

// tables are those that a document can ask for.
var tables = map[string]func(bench.Report) string{
	"machine": machine,
	"figures": figures,
	"search":  search,
	"storage": storage,
	"writes":  writes,
}

func machine(r bench.Report) string {
	m := r.Machine
	return fmt.Sprintf("%d cores, %d GiB of memory, Go %s, PostgreSQL %s, pgvector %s.\n", m.Cores, m.MemoryGiB, m.Go, m.Server, m.Extension)
}

// table lays out rows below a head.
func table(head string, rows [][]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|%s\n", head, strings.Repeat("---|", strings.Count(head, "|")+1))
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	return b.String()
}

func figures(r bench.Report) string {
	var rows [][]string
	for _, f := range r.Figures {
		peer, met := "", "met"
		if f.PeerName != "" {
			peer = fmt.Sprintf("%s: %s", f.PeerName, number(f.Peer))
		}
		if !f.Met {
			met = "**missed**"
		}
		rows = append(rows, []string{f.Name, strings.TrimSpace(number(f.Ours) + " " + f.Unit), peer, f.Must + ": " + met, f.Note})
	}
	return table("what | memd | peer | must | note", rows)
}

func search(r bench.Report) string {
	var rows [][]string
	for _, c := range r.Tiers {
		rows = append(rows, []string{data(c), count(c.Rows), system(c), fmt.Sprintf("%.4f", c.Recall), number(c.P50), number(c.P95), number(c.QPS), number(c.QPS8), number(c.P95At8)})
	}
	return table("data | rows | store | recall@10 | p50, ms | p95, ms | searches/s | with 8 clients | p95 then, ms", rows)
}

func storage(r bench.Report) string {
	var rows [][]string
	for _, c := range r.Tiers {
		if c.Disk+c.Memory > 0 {
			rows = append(rows, []string{data(c), count(c.Rows), c.System, number(c.Disk), number(c.Memory), number(c.Built), number(c.Cold)})
		}
	}
	rows = slices.CompactFunc(rows, slices.Equal) // one index, searched with several settings
	return table("data | rows | store | bytes on disk | in memory | index built, s | cold search, s", rows)
}

func writes(r bench.Report) string {
	var rows [][]string
	for _, c := range r.Tiers {
		if c.AddBatch > 0 {
			rows = append(rows, []string{data(c), count(c.Rows), c.System, number(c.AddOne), number(c.AddBatch), number(c.ForgetSome), number(c.ForgetAll)})
		}
	}
	rows = slices.CompactFunc(rows, slices.Equal) // one index, searched with several settings
	return table("data | rows | store | add one, p50, ms | batches of 256, rows/s | forget 1,000, s | forget all, s", rows)
}

func data(c bench.Cell) string { return fmt.Sprintf("%s, %d-d", c.Data, c.Dimension) }

func system(c bench.Cell) string { return strings.TrimSpace(c.System + " " + c.Setting) }

// number writes three digits; nothing for what was not measured.
func number(x float64) string {
	switch a := math.Abs(x); {
	case a == 0:
		return ""
	case a >= 100:
		return count(int(math.Round(x)))
	case a >= 10:
		return fmt.Sprintf("%.1f", x)
	case a >= 1:
		return fmt.Sprintf("%.2f", x)
	default:
		return fmt.Sprintf("%.3f", x)
	}
}

// count writes a number with commas.
func count(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
