package codes_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/viterin/vek/vek32"

	"forgettable.dev/memd/memory/codes"
)

const dimension = 384

func gaussian(r *rand.Rand) []float32 {
	v := make([]float32, dimension)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

func normalised(v []float32) []float32 {
	vek32.DivNumber_Inplace(v, vek32.Norm(v))
	return v
}

// shapes of data: how a vector is drawn.
var shapes = map[string]func(r *rand.Rand) func() []float32{
	"isotropic": func(r *rand.Rand) func() []float32 {
		return func() []float32 { return normalised(gaussian(r)) }
	},
	"falling spectrum": func(r *rand.Rand) func() []float32 {
		return func() []float32 {
			v := gaussian(r)
			for i := range v {
				v[i] *= float32(math.Pow(float64(i+1), -0.35))
			}
			return normalised(v)
		}
	},
	"clustered": func(r *rand.Rand) func() []float32 {
		centres := make([][]float32, 50)
		for i := range centres {
			centres[i] = normalised(gaussian(r))
		}
		return func() []float32 {
			v := normalised(gaussian(r))
			for i, c := range centres[r.IntN(len(centres))] {
				v[i] = c + 0.7*v[i]
			}
			return normalised(v)
		}
	},
}

// world is a set and the vectors that it was made of.
type world struct {
	rotation *codes.Rotation
	set      *codes.Set
	rows     [][]float32
}

func newWorld(t testing.TB, n int, draw func() []float32) *world {
	w := &world{rotation: codes.NewRotation(dimension, [32]byte{7}), set: codes.NewSet(dimension)}
	for range n {
		v := draw()
		w.rows = append(w.rows, v)
		if err := w.set.Append(w.rotation.Encode(v)); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

type scored struct {
	row   int
	score float32
}

func best(s []scored, k int) []scored {
	slices.SortFunc(s, func(a, b scored) int { return cmp.Or(-cmp.Compare(a.score, b.score), cmp.Compare(a.row, b.row)) })
	return s[:min(k, len(s))]
}

func (w *world) exact(q []float32, k int, admits func(int) bool) []scored {
	var all []scored
	for i, v := range w.rows {
		if admits == nil || admits(i) {
			all = append(all, scored{i, vek32.Dot(q, v)})
		}
	}
	return best(all, k)
}

// nearest is how a search uses a Narrowing.
func (w *world) nearest(q []float32, k int, admits func(int) bool) (top []scored, read int) {
	n := w.set.Narrow(w.rotation.Query(q), codes.Wanted{K: k, Least: -1, Admits: admits})
	threshold := float32(math.Inf(-1))
	for {
		batch := n.Next(threshold)
		if len(batch) == 0 {
			return top, read
		}
		read += len(batch)
		for _, c := range batch {
			s := vek32.Dot(q, w.rows[c.Row])
			n.Score(c, s)
			top = append(top, scored{c.Row, s})
		}
		if top = best(top, k); len(top) == k {
			threshold = top[k-1].score
		}
	}
}

// The floor of recall, on data of every shape, with and without a filter that
// keeps a tenth. Everything is drawn from fixed seeds.
func TestNarrow_recall(t *testing.T) {
	const k, queries = 10, 40
	for shape, drawer := range shapes {
		for filter, admits := range map[string]func(int) bool{"all": nil, "a tenth": func(row int) bool { return row%10 == 3 }} {
			t.Run(fmt.Sprint(shape, ", ", filter), func(t *testing.T) {
				draw := drawer(rand.New(rand.NewPCG(1, 2)))
				w := newWorld(t, 9000, draw)
				found, read := 0, 0
				for range queries {
					q := draw()
					top, n := w.nearest(q, k, admits)
					read += n
					if len(top) != k {
						t.Fatalf("%d rows", len(top))
					}
					for _, want := range w.exact(q, k, admits) {
						if slices.Contains(top, want) {
							found++
						}
					}
				}
				recall := float64(found) / (k * queries)
				t.Logf("recall %.4f, %d candidates a search", recall, read/queries)
				if recall < 0.99 {
					t.Errorf("recall %.4f, at least 0.99 is wanted", recall)
				}
			})
		}
	}
}

// An estimate is right on average, and its error is as large as is said.
func TestNarrow_unbiased(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	a, b := normalised(gaussian(r)), normalised(gaussian(r))
	for i := range b {
		b[i] = a[i] + b[i]
	}
	normalised(b)
	want := float64(vek32.Dot(a, b))
	const trials = 400
	var sum, squares float64
	for i := range trials {
		rotation, set := codes.NewRotation(dimension, [32]byte{byte(i), byte(i >> 8), 1}), codes.NewSet(dimension)
		if err := set.Append(rotation.Encode(a)); err != nil {
			t.Fatal(err)
		}
		e := float64(set.Narrow(rotation.Query(b), codes.Wanted{K: 1, Least: -1}).Next(float32(math.Inf(-1)))[0].Estimate) - want
		sum, squares = sum+e, squares+e*e
	}
	mean, deviation := sum/trials, math.Sqrt(squares/trials)
	said := 0.755 / math.Sqrt(511) * math.Sqrt(1-want*want)
	t.Logf("mean error %.5f, deviation %.5f, said %.5f", mean, deviation, said)
	if math.Abs(mean) > 4*said/math.Sqrt(trials) || deviation > 1.15*said || deviation < 0.85*said {
		t.Errorf("mean error %.5f, deviation %.5f instead of %.5f", mean, deviation, said)
	}
}

// Everything is a candidate when everything is wanted, and equal rows come
// together.
func TestNarrow_all(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	draw := shapes["isotropic"](r)
	same := draw()
	w := newWorld(t, 300, func() []float32 {
		if r.IntN(2) == 0 {
			return same
		}
		return draw()
	})
	top, read := w.nearest(same, 300, nil)
	if len(top) != 300 || read != 300 {
		t.Errorf("%d rows of %d candidates", len(top), read)
	}
	equal := 0
	for _, v := range w.rows {
		if &v[0] == &same[0] {
			equal++
		}
	}
	if _, read := w.nearest(same, 1, nil); read < equal {
		t.Errorf("%d candidates, and %d rows are equally near", read, equal)
	}
}

func TestSet_Move(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	w := newWorld(t, 9000, shapes["isotropic"](r))
	for len(w.rows) > 100 {
		i := r.IntN(len(w.rows))
		w.set.Move(i)
		w.rows[i] = w.rows[len(w.rows)-1]
		w.rows = w.rows[:len(w.rows)-1]
	}
	if err := w.set.Put(3, w.rotation.Encode(w.rows[4])); err != nil {
		t.Fatal(err)
	}
	w.rows[3] = w.rows[4]
	for i, v := range w.rows {
		top, _ := w.nearest(v, 1, func(row int) bool { return row == i || row%7 == 0 })
		if len(top) != 1 || top[0].score < 0.999 {
			t.Errorf("row %d: %v", i, top)
		}
	}
	if w.set.Append([]byte("not a code")) == nil || w.set.Append(make([]byte, codes.Bytes(dimension))) == nil {
		t.Error("what is no code was taken")
	}
	if w.set.Len() != 100 {
		t.Errorf("%d codes", w.set.Len())
	}
}

// BenchmarkSet_Narrow is what a search does in memory.
func BenchmarkSet_Narrow(b *testing.B) {
	for shape, drawer := range shapes {
		b.Run(shape, func(b *testing.B) {
			draw := drawer(rand.New(rand.NewPCG(1, 2)))
			w := newWorld(b, 100_000, draw)
			q := w.rotation.Query(draw())
			for b.Loop() {
				w.set.Narrow(q, codes.Wanted{K: 10, Least: -1})
			}
		})
	}
}

// BenchmarkRotation_Encode is what adding a row takes.
func BenchmarkRotation_Encode(b *testing.B) {
	v, r := shapes["isotropic"](rand.New(rand.NewPCG(1, 2)))(), codes.NewRotation(dimension, [32]byte{1})
	for b.Loop() {
		r.Encode(v)
	}
}
