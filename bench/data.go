package bench

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"

	"github.com/viterin/vek/vek32"

	"forgettable.dev/memd/embed"
)

// dataset is unit vectors to store and others like them to search for.
type dataset struct {
	Name      string
	Dimension int
	rows      [][]float32
	texts     []string // of the rows; none: all say text
	queries   [][]float32
	truth     []float32 // of each query the score of the last of its true hits
}

// maxQueries is how many different queries a dataset has.
const maxQueries = 100

func (d *dataset) text(row int) string {
	if d.texts == nil {
		return text
	}
	return d.texts[row]
}

// synthetic draws n vectors and queries in the same way, always the same ones.
// draw fills a vector; its length does not matter.
func synthetic(name string, dimension, n int, draw func(v []float32)) *dataset {
	d := &dataset{Name: name, Dimension: dimension}
	all := make([]float32, (n+maxQueries)*dimension) // one piece: a million of their own would be garbage to look through
	for len(all) > 0 {
		v := all[:dimension:dimension]
		all = all[dimension:]
		draw(v)
		vek32.DivNumber_Inplace(v, vek32.Norm(v))
		d.rows = append(d.rows, v)
	}
	d.queries, d.rows = d.rows[n:], d.rows[:n]
	return d
}

// isotropic vectors have no direction that they prefer: every component is drawn
// from the same normal distribution. Everything is about as far from everything
// else, which is the worst case for whoever searches without reading all.
func isotropic(dimension, n int) *dataset {
	r := rand.New(rand.NewPCG(3, uint64(dimension)))
	return synthetic("isotropic", dimension, n, func(v []float32) {
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
	})
}

// Of clustered vectors.
const (
	// clusters is how many there are.
	clusters = 50
	// scatter is how far a vector is from the centre of its cluster, whose length is one.
	scatter = 0.7
	// falling is by which power of its number a direction of a cluster is thinner: its
	// variance is inverse to its number, as is usual of embeddings.
	falling = -0.5
)

// clustered vectors are like embeddings of conversations about many things: there
// are 50 clusters, whose centres are isotropic, and a vector is a centre and 0.7 of
// a normal one whose i-th component has a variance of 1/i, a different order of the
// components in each cluster.
func clustered(dimension, n int) *dataset {
	r := rand.New(rand.NewPCG(4, uint64(dimension)))
	type cluster struct {
		centre []float32
		order  []int
	}
	width, sum := make([]float64, dimension), 0.0
	for i := range width {
		width[i] = math.Pow(float64(i+1), falling)
		sum += width[i] * width[i]
	}
	for i := range width {
		width[i] *= scatter / math.Sqrt(sum)
	}
	all := make([]cluster, clusters)
	for c := range all {
		centre := make([]float32, dimension)
		for i := range centre {
			centre[i] = float32(r.NormFloat64())
		}
		vek32.DivNumber_Inplace(centre, vek32.Norm(centre))
		all[c] = cluster{centre, r.Perm(dimension)}
	}
	return synthetic("clustered", dimension, n, func(v []float32) {
		c := &all[r.IntN(len(all))]
		for i, at := range c.order {
			v[at] = c.centre[at] + float32(width[i]*r.NormFloat64())
		}
	})
}

// spoken is the first n turns of a file of conversations, shuffled, embedded by the
// built-in embedder; others are the queries. It is smaller when the file is.
func spoken(ctx context.Context, file string, dimension, n int) (*dataset, error) {
	texts, err := turnsOf(file)
	if err != nil {
		return nil, err
	}
	rand.New(rand.NewPCG(5, 6)).Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
	texts = texts[:min(len(texts), n+maxQueries)]
	e, err := embed.New(embed.NameLexical, dimension, embed.Config{})
	if err != nil {
		return nil, err
	}
	d := &dataset{Name: "conversations", Dimension: dimension}
	for part := range slices.Chunk(texts, 256) {
		vectors, err := e.Embed(ctx, part)
		if err != nil {
			return nil, fmt.Errorf("embedding conversations: %w", err)
		}
		for i, v := range vectors {
			if norm := vek32.Norm(v); norm > 0 { // else nothing to find it by
				vek32.DivNumber_Inplace(v, norm)
				d.rows, d.texts = append(d.rows, v), append(d.texts, part[i])
			}
		}
	}
	if len(d.rows) <= maxQueries {
		return nil, fmt.Errorf("%s has only %d turns", file, len(d.rows))
	}
	n = len(d.rows) - maxQueries
	d.queries, d.rows, d.texts = d.rows[n:], d.rows[:n], d.texts[:n]
	return d, nil
}

func turnsOf(file string) (texts []string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var line struct {
			Turns []struct {
				Text string `json:"text"`
			} `json:"turns"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
		for _, t := range line.Turns {
			texts = append(texts, t.Text)
		}
	}
	return texts, lines.Err()
}

// solve finds the true hits, by reading everything.
func (d *dataset) solve() {
	d.truth = make([]float32, len(d.queries))
	var group sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		group.Go(func() {
			scores := make([]float32, len(d.rows))
			for q := w; q < len(d.queries); q += workers {
				for i, v := range d.rows {
					scores[i] = vek32.Dot(d.queries[q], v)
				}
				slices.SortFunc(scores, func(a, b float32) int { return -cmp.Compare(a, b) })
				d.truth[q] = scores[min(hits, len(scores))-1]
			}
		})
	}
	group.Wait()
}

// rounding is by how much two ways to compute a score may differ.
const rounding = 2e-6

// recall is the part of the true hits of a query that were found. Of rows that are
// equally near, any will do.
func (d *dataset) recall(query int, found []int) float64 {
	n := 0
	for _, row := range found {
		if vek32.Dot(d.queries[query], d.rows[row]) >= d.truth[query]-rounding {
			n++
		}
	}
	return float64(min(n, hits)) / hits
}
