package codes

import (
	"cmp"
	"math"
	"runtime"
	"slices"
	"sync"
)

// Bounds of Narrow, in standard deviations of the errors that codes make. A row
// whose error is larger than that is lost: of the rows that just belong among the
// best, one in 700, and of the better ones fewer.
const (
	// distanceSigmas is for distances, whose error is the larger one.
	distanceSigmas = 3
	// estimateSigmas is for the estimate of one row against the best of many, of
	// which some were overestimated.
	estimateSigmas = 4
	// provisionalSigmas bounds from below what the best of a first look score.
	provisionalSigmas = 2
	// firstLook is the least number of rows, nearest by distance, whose estimates
	// tell how near the best are.
	firstLook = 512
)

// refused is the distance of a row that is not admitted.
const refused = math.MaxUint16

// Wanted says what a search is for.
type Wanted struct {
	// K is the number of rows, and Least the score that they have to reach.
	K     int
	Least float32
	// Admits, if set, says which rows count. It is called from several goroutines.
	Admits func(row int) bool
	// All makes a candidate of every row that counts: for those who drop some by
	// what only they know.
	All bool
}

// Narrow returns those rows of the set that may be among the nearest to the query.
func (s *Set) Narrow(q *Query, w Wanted) *Narrowing {
	k := w.K
	distances, counts := s.distances(q, w.Admits)
	admitted := 0
	for _, n := range counts {
		admitted += n
	}
	n := &Narrowing{k: k}
	if w.All || k >= admitted {
		n.rest = s.estimates(q, distances, 64*s.words, math.Inf(-1))
		heapify(n.rest)
		return n
	}
	// A first look: the nearest by distance.
	look, within := 0, 0
	for within < len(counts)-1 && look+counts[within] < max(firstLook, 4*k) {
		look += counts[within]
		within++
	}
	first := s.estimates(q, distances, within, math.Inf(-1))
	slices.SortFunc(first, func(a, b Candidate) int { return -cmp.Compare(a.Estimate, b.Estimate) })
	best := float64(first[min(k, len(first))-1].Estimate)
	// What the k-th best of all scores at least, most likely.
	floor := max(best-provisionalSigmas*spread(64*s.words, factorOfMost, best), float64(w.Least))
	p := math.Acos(max(-1, min(1, floor))) / math.Pi
	far := float64(64*s.words)*p + distanceSigmas*math.Sqrt(float64(64*s.words)*p*(1-p))
	if int(far) < within {
		far = float64(within)
	}
	n.rest = s.estimates(q, distances, int(far), max(best, float64(w.Least)))
	heapify(n.rest)
	return n
}

const (
	// factorOfMost is the factor of nearly every row, that of a random direction:
	// sqrt(2/pi).
	factorOfMost = 0.798
	// leastFactor is below that of any row, but for short vectors.
	leastFactor = 0.75
)

// distances returns each row's, and how many rows there are at each.
func (s *Set) distances(q *Query, admits func(int) bool) (distances []uint16, counts []int) {
	distances, counts = make([]uint16, s.n), make([]int, 64*s.words+1)
	var mu sync.Mutex
	s.inParallel(func(b, from, to int) {
		mine := make([]int, len(counts))
		part := distances[from:to]
		q.distances(part, s.blocks[b].bits)
		for i, d := range part {
			if admits != nil && !admits(from+i) {
				part[i] = refused
				continue
			}
			mine[d]++
		}
		mu.Lock()
		defer mu.Unlock()
		for i, n := range mine {
			counts[i] += n
		}
	})
	return distances, counts
}

// estimates returns the rows within a distance whose estimate, with the largest
// error that it may have, reaches floor.
func (s *Set) estimates(q *Query, distances []uint16, within int, floor float64) []Candidate {
	var mu sync.Mutex
	var out []Candidate
	least := float32(floor - estimateSigmas*spread(64*s.words, leastFactor, 0))
	s.inParallel(func(b, from, to int) {
		var mine []Candidate
		block := s.blocks[b]
		for row := from; row < to; row++ {
			if int(distances[row]) > within {
				continue
			}
			i := (row - from) * s.words
			factor := block.factors[row-from]
			e := q.estimate(block.bits[i:i+s.words:i+s.words], factor)
			if e >= least {
				mine = append(mine, Candidate{Row: row, Estimate: e})
			}
		}
		mu.Lock()
		defer mu.Unlock()
		out = append(out, mine...)
	})
	return out
}

// inParallel calls f with every block and the rows that it has, on all cores.
func (s *Set) inParallel(f func(b, from, to int)) {
	next := make(chan int, len(s.blocks))
	for b := range s.blocks {
		if b*blockRows < s.n {
			next <- b
		}
	}
	close(next)
	work := func() {
		for b := range next {
			f(b, b*blockRows, min(s.n, (b+1)*blockRows))
		}
	}
	var group sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(next)) - 1 {
		group.Go(work)
	}
	work()
	group.Wait()
}

// spread is the standard deviation of the error of an estimate.
func spread(bits int, factor, estimate float64) float64 {
	f := factor * factor
	s := min(1, math.Abs(estimate))
	return math.Sqrt(max(0, 1-f) / f * (1 - s*s) / float64(bits-1))
}
