package memory

import (
	"cmp"
	"slices"

	"github.com/google/uuid"

	"forgettable.dev/memd"
)

// candidate is a hit whose columns are still sealed. Its entry has a copy of the
// vector, or none unless that is wanted.
type candidate struct {
	scope int
	owner memd.Number
	score float32
	entry entry
	bare  bool // its text and metadata are yet to be read
	// cosine of one whose score is that of words.
	cosine float32
}

// topK keeps the best candidates seen so far, the worst of them on top.
type topK struct {
	k       int
	min     *float32
	vectors bool // candidates keep their vectors
	heap    []candidate
	fusion  *fusion // nil: by vectors alone
	former  *topK   // rows of the space that the tenant is leaving; nil: it is in one
}

// usualK bounds the room that is made before there are candidates for it.
const usualK = 32

// worse orders candidates: a lower score, or the same and a larger id.
func worse(a, b *candidate) int {
	if c := cmp.Compare(a.score, b.score); c != 0 {
		return c
	}
	return -compareIDs(a.entry.id, b.entry.id)
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

// wants reports whether a score could get in.
func (t *topK) wants(score float32) bool {
	if t.min != nil && score < *t.min {
		return false
	}
	return len(t.heap) < t.k || score >= t.heap[0].score
}

func (t *topK) offer(c candidate) {
	if t.heap == nil {
		t.heap = make([]candidate, 0, min(t.k, usualK))
	}
	if len(t.heap) < t.k {
		t.heap = append(t.heap, c)
		for i := len(t.heap) - 1; i > 0; {
			up := (i - 1) / 2
			if worse(&t.heap[i], &t.heap[up]) >= 0 {
				break
			}
			t.heap[i], t.heap[up] = t.heap[up], t.heap[i]
			i = up
		}
		return
	}
	if worse(&c, &t.heap[0]) <= 0 {
		return
	}
	t.heap[0] = c
	for i := 0; ; {
		low := i
		for _, child := range []int{2*i + 1, 2*i + 2} {
			if child < len(t.heap) && worse(&t.heap[child], &t.heap[low]) < 0 {
				low = child
			}
		}
		if low == i {
			return
		}
		t.heap[i], t.heap[low] = t.heap[low], t.heap[i]
		i = low
	}
}

// keep copies a vector if candidates keep theirs.
func (t *topK) keep(unit []float32) []float32 {
	if !t.vectors {
		return nil
	}
	return slices.Clone(unit)
}

// sorted returns the candidates, best first, and leaves the topK empty.
func (t *topK) sorted() []candidate {
	out := t.heap
	t.heap = nil
	slices.SortFunc(out, func(a, b candidate) int { return -worse(&a, &b) })
	if t.former != nil {
		out = alternate(out, t.former.sorted(), t.k)
	}
	if t.fusion != nil {
		return t.fusion.fuse(out)
	}
	return out
}

// alternate returns the first k of two lists by turns. Scores of two spaces tell
// nothing about each other; ranks do: this is reciprocal rank fusion of lists that have
// nothing in common.
func alternate(a, b []candidate, k int) []candidate {
	out := make([]candidate, 0, min(k, len(a)+len(b)))
	for i := 0; len(out) < k && i < max(len(a), len(b)); i++ {
		for _, list := range [][]candidate{a, b} {
			if i < len(list) && len(out) < k {
				out = append(out, list[i])
			}
		}
	}
	return out
}
