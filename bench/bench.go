// Package bench measures memd beside its peers: on one machine, in one run, on
// the same data, medians of several. It starts a memd of its own (package dev),
// so that what is measured is what runs, sealing, guard and durability included.
//
// The peer of a search is pgvector's exact scan over plain vectors, and that of
// a write is a bare INSERT of the same bytes, both in the same cluster.
package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Config says what to measure.
type Config struct {
	// Dir is an empty folder for the run's data. Required.
	Dir string
	// PlainRows is the size of pgvector's table. Zero means 200,000.
	PlainRows int
	// Runs is how often each figure is taken; the median counts. Zero means 3.
	Runs int
	// Million also loads 1,000,000 rows, to forget a user among them.
	Million bool
	// RestoreRows is the size of the dump that is restored. Zero means 100,000.
	RestoreRows int
	// Conversations is a file for memd import and for fused searches, or "" to leave
	// those figures out; Import imports it and returns the number of turns.
	Conversations string
	Import        func(ctx context.Context, url, key, file string) (int, error)
	// Worker returns memd worker as a process that is not started, with what is to be
	// in its environment. Nil leaves out the purge whose worker is killed.
	Worker func(ctx context.Context, env ...string) (*exec.Cmd, error)
	// TierFrom and TierRows bound the rows of a scope in the comparison of stores;
	// zero means 1,000 and 100,000. AllTiers also compares them with longer vectors and with fewer
	// isotropic ones.
	TierFrom int
	TierRows int
	AllTiers bool
	// Only runs the measurements whose name contains it.
	Only string
	// Log is told what is going on.
	Log io.Writer
}

// Figure is one measured figure.
type Figure struct {
	Name string  `json:"name"`
	Unit string  `json:"unit"`
	Ours float64 `json:"ours"`
	// Peer and PeerName are what it is measured against, in the same unit; none
	// for figures with a fixed bound.
	Peer     float64 `json:"peer,omitempty"`
	PeerName string  `json:"peer_name,omitempty"`
	// Ratio is Ours / Peer, Must the bound, in words, and Met whether it holds.
	Ratio float64 `json:"ratio,omitempty"`
	Must  string  `json:"must"`
	Met   bool    `json:"met"`
	Note  string  `json:"note,omitempty"`
}

// Report is what one run measured.
type Report struct {
	Machine Machine  `json:"machine"`
	Figures []Figure `json:"figures"`
	Tiers   []Cell   `json:"tiers,omitempty"`
}

// against makes a figure with a peer. met decides from ours/peer.
func against(name, unit string, ours float64, peerName string, peer float64, must string, met func(ratio float64) bool) Figure {
	r := ours / peer
	return Figure{Name: name, Unit: unit, Ours: ours, Peer: peer, PeerName: peerName, Ratio: r, Must: must, Met: met(r)}
}

// bounded makes a figure with a fixed bound that it must not exceed.
func bounded(name, unit string, ours, most float64) Figure {
	return Figure{Name: name, Unit: unit, Ours: ours, Must: fmt.Sprintf("at most %g %s", most, unit), Met: ours <= most}
}

// measurement takes one group of figures.
type measurement struct {
	name string
	run  func(ctx context.Context, l *lab) ([]Figure, error)
}

var measurements = []measurement{
	{"keytree", keyTree},
	{"search", searches},
	{"memory", residentMemory},
	{"tiers", tiers},
	{"add", adds},
	{"session", conversations},
	{"forget", forgets},
	{"erase", erasures},
	{"export", exports},
	{"import", imports},
	{"fused", fused},
	{"million", million},
	{"kills", kills},      // Ends the worker of the run.
	{"restore", rollback}, // Ends the memd of the run.
}

// Run takes every figure that is asked for.
func Run(ctx context.Context, c Config) (r Report, err error) {
	if c.PlainRows == 0 {
		c.PlainRows = 200_000
	}
	if c.Runs == 0 {
		c.Runs = 3
	}
	if c.TierRows == 0 {
		c.TierRows = 100_000
	}
	if c.RestoreRows == 0 {
		c.RestoreRows = 100_000
	}
	l, err := open(ctx, c)
	if err != nil {
		return r, err
	}
	defer func() {
		r.Tiers = l.cells
		if e := l.close(); err == nil {
			err = e
		}
	}()
	if r.Machine, err = l.machine(ctx); err != nil {
		return r, err
	}
	for _, m := range measurements {
		if !strings.Contains(m.name, c.Only) || m.name == "million" && !c.Million || (m.name == "import" || m.name == "fused") && c.Conversations == "" || m.name == "kills" && c.Worker == nil {
			continue
		}
		began := time.Now()
		fmt.Fprintf(c.Log, "measuring %s\n", m.name)
		got, err := m.run(ctx, l)
		if err != nil {
			return r, fmt.Errorf("measuring %s: %w", m.name, err)
		}
		r.Figures = append(r.Figures, got...)
		fmt.Fprintf(c.Log, "measured %s in %s\n", m.name, time.Since(began).Round(time.Second))
	}
	return r, nil
}

// WriteTable writes a report for people.
func WriteTable(w io.Writer, r Report) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "FIGURE\tMEMD\tPEER\tRATIO\tMUST\t")
	for _, f := range r.Figures {
		peer, ratio, verdict := "", "", "met"
		if f.PeerName != "" {
			peer, ratio = fmt.Sprintf("%s %s (%s)", short(f.Peer), f.Unit, f.PeerName), fmt.Sprintf("%.2f", f.Ratio)
		}
		if !f.Met {
			verdict = "MISSED"
		}
		fmt.Fprintf(t, "%s\t%s %s\t%s\t%s\t%s: %s\t%s\n", f.Name, short(f.Ours), f.Unit, peer, ratio, f.Must, verdict, f.Note)
	}
	if len(r.Tiers) > 0 {
		fmt.Fprintln(t, "\nSTORE\tDATA\tROWS\tRECALL\tP50\tP95\tQUERIES/S\t8 CLIENTS\t")
	}
	for _, c := range r.Tiers {
		fmt.Fprintf(t, "%s %s\t%s, %d-d\t%d\t%.4f\t%s ms\t%s ms\t%s\t%s\t\n", c.System, c.Setting, c.Data, c.Dimension, c.Rows,
			c.Recall, short(c.P50), short(c.P95), short(c.QPS), short(c.QPS8))
	}
	return t.Flush()
}

// WriteJSON writes a report for programs.
func WriteJSON(w io.Writer, r Report) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

func short(x float64) string {
	switch a := math.Abs(x); {
	case a >= 100:
		return fmt.Sprintf("%.0f", x)
	case a >= 1:
		return fmt.Sprintf("%.2f", x)
	default:
		return fmt.Sprintf("%.3f", x)
	}
}

func median(xs []float64) float64 { return quantile(xs, 0.5) }

func quantile(xs []float64, q float64) float64 {
	s := slices.Clone(xs)
	slices.Sort(s)
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

// latencies runs f n times, one after the other, and returns milliseconds.
func latencies(n int, f func(i int) error) ([]float64, error) {
	out := make([]float64, n)
	for i := range out {
		began := time.Now()
		if err := f(i); err != nil {
			return nil, err
		}
		out[i] = float64(time.Since(began)) / 1e6
	}
	return out, nil
}

// turns has ours and the peer take turns, call by call, n times a run, and
// returns the medians but for the first calls: for what waits for a disk, whose
// moods meet both alike.
func (l *lab) turns(warm, n int, ours, peer func(i int) error) (float64, float64, error) {
	var a, b []float64
	for i := range l.c.Runs * n {
		x, err := latencies(1, func(int) error { return ours(i) })
		if err != nil {
			return 0, 0, err
		}
		y, err := latencies(1, func(int) error { return peer(i) })
		if err != nil {
			return 0, 0, err
		}
		if i >= warm {
			a, b = append(a, x...), append(b, y...)
		}
	}
	return median(a), median(b), nil
}

// alternate takes ours and the peer's value runs times in turn and returns the
// medians.
func (l *lab) alternate(ours, peer func() (float64, error)) (float64, float64, error) {
	var a, b []float64
	for range l.c.Runs {
		x, err := ours()
		if err != nil {
			return 0, 0, err
		}
		y, err := peer()
		if err != nil {
			return 0, 0, err
		}
		a, b = append(a, x), append(b, y)
	}
	return median(a), median(b), nil
}
