package main

import (
	"bytes"
	"fmt"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"forgettable.dev/memd/bench"
)

// A chart shows one value of every store by the rows in a scope.
type chart struct {
	file, title, axis string
	value             func(bench.Cell) float64
}

var charts = []chart{
	{"search-p50.svg", "A search with one client, p50", "milliseconds", func(c bench.Cell) float64 { return c.P50 }},
	{"search-p95.svg", "A search with one client, p95", "milliseconds", func(c bench.Cell) float64 { return c.P95 }},
	{"throughput.svg", "Searches with eight clients", "searches a second", func(c bench.Cell) float64 { return c.QPS8 }},
	{"memory.svg", "What a row takes in memory", "bytes", func(c bench.Cell) float64 { return c.Memory }},
	{"adds.svg", "Adding batches of 256 rows, one client", "rows a second", func(c bench.Cell) float64 { return c.AddBatch }},
}

// The data that charts are of: what real embeddings are most like, and there is of
// every size.
const (
	chartData      = "clustered"
	chartDimension = 384
)

// Colours that people who see few can tell apart (Okabe and Ito).
var colours = []color.Color{
	color.RGBA{0, 114, 178, 255}, color.RGBA{213, 94, 0, 255}, color.RGBA{0, 158, 115, 255}, color.RGBA{204, 121, 167, 255},
}

// drawAll draws every chart, by the name of its file.
func drawAll(r bench.Report) (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, c := range charts {
		svg, err := c.draw(r)
		if err != nil {
			return nil, fmt.Errorf("drawing %s: %w", c.file, err)
		}
		out[c.file] = svg
	}
	return out, nil
}

func (c chart) draw(r bench.Report) ([]byte, error) {
	p := plot.New()
	p.Title.Text, p.Title.Padding = c.title, vg.Points(8)
	p.X.Label.Text, p.Y.Label.Text = "rows in the scope", c.axis
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	var systems []string
	points := map[string]plotter.XYs{}
	for _, cell := range r.Tiers {
		v := c.value(cell)
		if cell.Data != chartData || cell.Dimension != chartDimension || v == 0 {
			continue
		}
		if !slices.Contains(systems, cell.System) {
			systems = append(systems, cell.System)
		}
		at, xys := float64(cell.Rows), points[cell.System]
		if n := len(xys); n > 0 && xys[n-1].X == at { // of an index with several settings the last: that of equal recall
			xys = xys[:n-1]
		}
		points[cell.System] = append(xys, plotter.XY{X: at, Y: v})
	}
	if len(systems) == 0 {
		return nil, fmt.Errorf("nothing was measured with %s data of %d components", chartData, chartDimension)
	}
	for i, s := range systems {
		line, dots, err := plotter.NewLinePoints(points[s])
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = colours[i%len(colours)], vg.Points(2)
		dots.Color, dots.Shape = line.Color, draw.CircleGlyph{}
		p.Add(line, dots)
		p.Legend.Add(s, line, dots)
	}
	canvas := vgsvg.New(15*vg.Centimeter, 9*vg.Centimeter)
	p.Draw(draw.New(canvas))
	var b bytes.Buffer
	_, err := canvas.WriteTo(&b)
	return b.Bytes(), err
}
