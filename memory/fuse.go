package memory

import (
	"slices"

	"github.com/google/uuid"
)

// Vectors and words find in different ways, and their scores cannot be added: a cosine
// of 0.4 may be much and a BM25 of 4 little. Their ranks can. In a fused search a row
// is worth, for each of the two, its weight divided by its rank and rankOffset
// (reciprocal rank fusion: Cormack, Clarke and Büttcher, SIGIR 2009).

const (
	// rankOffset keeps the first ranks from deciding alone.
	rankOffset = 60
	// A row has a rank among so many for each hit that is wanted, and at least.
	ranksForHit, leastRanks = 4, 100
)

// fusion is what a fused search gathers beside the nearest vectors.
type fusion struct {
	weight float32 // of words, up to 1; of vectors the rest
	query  *wording
	best   *topK // by words
	hits   int   // that are wanted in the end
}

// fused has a topK gather what fusing wants. A weight of 0 changes nothing.
func (t *topK) fused(text string, weight float32) {
	if weight == 0 || text == "" {
		return
	}
	t.fusion = &fusion{weight: weight, query: wordingOf(text), hits: t.k}
	t.k = max(leastRanks, ranksForHit*t.k)
	t.fusion.best = &topK{k: t.k, vectors: t.vectors}
}

// empty returns a topK that wants the same and has nothing.
func (t *topK) empty() topK {
	e := *t
	e.heap = nil
	if t.former != nil {
		former := t.former.empty()
		e.former = &former
	}
	if t.fusion != nil {
		f := *t.fusion
		f.best = &topK{k: t.fusion.best.k, vectors: t.vectors}
		e.fusion = &f
	}
	return e
}

// vectorsAlone forgets what was found by words: not all scopes could be asked for them.
func (t *topK) vectorsAlone() {
	if t.fusion != nil {
		t.fusion.best.heap = nil
	}
}

// fuse orders the candidates of both, best first. Those of a scope that has no words
// have their vectors' order.
func (f *fusion) fuse(vectors []candidate) []candidate {
	worth := map[uuid.UUID]float32{}
	out := vectors
	for i := range vectors {
		worth[vectors[i].entry.id] = (1 - f.weight) / float32(rankOffset+i)
	}
	for i, c := range f.best.sorted() {
		_, known := worth[c.entry.id]
		worth[c.entry.id] += f.weight / float32(rankOffset+i)
		if !known {
			c.score = c.cosine
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b candidate) int {
		switch x, y := worth[a.entry.id], worth[b.entry.id]; {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return -worse(&a, &b)
	})
	return out[:min(len(out), f.hits)]
}
