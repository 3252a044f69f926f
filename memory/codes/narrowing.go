package codes

import "math"

// Candidate is a row that may be among the nearest.
type Candidate struct {
	Row int
	// Estimate of the cosine.
	Estimate float32
}

// Narrowing is the candidates of one search, the likeliest first, and what their
// exact scores have told so far. It is not safe for concurrent use.
type Narrowing struct {
	k     int
	rest  []Candidate // a heap, the highest estimate on top
	taken int
	error regression
}

// Tolerance is the part of the nearest that is expected to be missed. Measured on
// 100,000 vectors of three shapes, as much was missed, or less.
const Tolerance = 0.003

// Bounds of a batch.
const (
	leastBatch = 48
	mostBatch  = 1024
)

// Next returns the next candidates that are worth their exact score, none when
// less than Tolerance of the k nearest is expected among the others.
// threshold is the score that a row has to reach, minus infinity as long as every
// row would do: then each batch is as large as all before it. Most searches take
// two or three: one that shows how good the estimates are, and as many as that says.
func (n *Narrowing) Next(threshold float32) []Candidate {
	missing := Tolerance * float64(n.k)
	most, expected := mostBatch, math.Inf(1)
	if math.IsInf(float64(threshold), -1) || n.taken == 0 {
		most = min(most, max(leastBatch, 2*n.k, n.taken))
	} else {
		expected = 0
		for _, c := range n.rest {
			expected += n.chance(c, threshold)
		}
	}
	var out []Candidate
	for len(n.rest) > 0 && len(out) < most && expected > missing {
		c := n.pop()
		expected -= n.chance(c, threshold)
		out = append(out, c)
	}
	for len(out) > 0 && len(out) < leastBatch && len(n.rest) > 0 {
		out = append(out, n.pop())
	}
	n.taken += len(out)
	return out
}

// Number calls f for every candidate, whose Row is what it returns from then on.
func (n *Narrowing) Number(f func(row int) int) {
	for i := range n.rest {
		n.rest[i].Row = f(n.rest[i].Row)
	}
}

// Score tells the exact score of a candidate.
func (n *Narrowing) Score(c Candidate, exact float32) {
	n.error.add(float64(c.Estimate), float64(c.Estimate-exact))
}

// chance is the probability that a row reaches the threshold.
func (n *Narrowing) chance(c Candidate, threshold float32) float64 {
	bias, deviation := n.error.at(float64(c.Estimate))
	return math.Erfc((float64(threshold)-float64(c.Estimate)+bias)/(deviation*math.Sqrt2)) / 2
}

// regression is by how much the estimates of the candidates were too high, as a
// line through what was measured, and how far from the line that was. Candidates are
// chosen for a high estimate, so they were overestimated more often than not,
// and the more, the higher: by how much depends on the data.
type regression struct {
	n, x, y, xx, xy, yy float64
}

func (r *regression) add(x, y float64) {
	r.n, r.x, r.y = r.n+1, r.x+x, r.y+y
	r.xx, r.xy, r.yy = r.xx+x*x, r.xy+x*y, r.yy+y*y
}

// few is how many measurements' worth of none a slope is held against, so that the
// first batch's is not taken for more than it is.
const few = 8

func (r *regression) at(x float64) (bias, deviation float64) {
	if r.n == 0 {
		return 0, 1
	}
	mx, my := r.x/r.n, r.y/r.n
	vx, vy, cov := r.xx/r.n-mx*mx, r.yy/r.n-my*my, r.xy/r.n-mx*my
	slope := max(0, min(1, cov/(vx+vy*few/r.n+1e-12)))
	variance := vy - 2*slope*cov + slope*slope*vx
	return my + slope*(x-mx), math.Sqrt(max(1e-12, variance))
}

func (n *Narrowing) pop() Candidate {
	top, last := n.rest[0], len(n.rest)-1
	n.rest[0] = n.rest[last]
	n.rest = n.rest[:last]
	sift(n.rest, 0)
	return top
}

func heapify(h []Candidate) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		sift(h, i)
	}
}

func sift(h []Candidate, i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h[child+1].Estimate > h[child].Estimate {
			child++
		}
		if h[i].Estimate >= h[child].Estimate {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}
