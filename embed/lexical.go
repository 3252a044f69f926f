package embed

import (
	"context"
	"fmt"
	"math"
	"sync"

	"forgettable.dev/memd"
)

// Lexical returns the built-in embedder for a dimension from MinDimension to
// memd.MaxDimension. It is deterministic, needs nothing outside the process and
// is fast enough to be called in a request.
//
// It is lexical: texts are near each other when they are spelt alike. It hashes
// words, pairs of neighbouring words and character n-grams into a vector, so it
// finds names, addresses, numbers and misspelt or inflected forms of them, and
// knows nothing of synonyms, other languages or what a sentence means. A cosine
// of 0.3 is a good match for a short question against a sentence; unrelated
// texts lie around 0, within about one over the root of the dimension.
//
// The vectors of one name ("lexical/1") never change; a better scheme would
// have another name.
func Lexical(dim int) (Embedder, error) {
	if err := checkDimension(dim, MinDimension); err != nil {
		return nil, err
	}
	l := &lexical{dim: dim}
	l.pool.New = func() any { return new(scratch) }
	return l, nil
}

type lexical struct {
	dim  int
	pool sync.Pool // of *scratch
}

var _ Embedder = (*lexical)(nil)

func (l *lexical) Name() string   { return NameLexical + "/1" }
func (l *lexical) Dimension() int { return l.dim }

// Embed implements Embedder. Its only errors are empty texts and the context's.
func (l *lexical) Embed(ctx context.Context, texts []string) ([][]float32, error) {
	if err := checkTexts(texts); err != nil {
		return nil, err
	}
	s := l.pool.Get().(*scratch)
	defer func() {
		if s.clear(); cap(s.features) <= maxPooledFeatures {
			l.pool.Put(s)
		}
	}()
	out := make([][]float32, len(texts))
	for i, text := range texts {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("embedding: %w", err)
		}
		s.extract(text)
		v := make([]float32, l.dim)
		project(v, s.features)
		if !normalise(v) {
			// Only control characters, or features that cancelled each other to
			// the last bit.
			return nil, &memd.InvalidError{Field: fmt.Sprintf("text %d", i), Problem: "has nothing to embed"}
		}
		out[i] = v
	}
	return out, nil
}

// maxPooledFeatures keeps the working memory of one huge text from staying
// around, and from being cleared after every small one.
const maxPooledFeatures = 1 << 14

// clear forgets the last texts: memory that waits in the pool holds nothing
// that a person said.
func (s *scratch) clear() {
	clear(s.runes[:cap(s.runes)])
	clear(s.padded[:cap(s.padded)])
	clear(s.features[:cap(s.features)])
}

// project adds each feature to two components with signs of their own, both
// taken from its hash. The signs make collisions cancel on average, and with two
// places one collision never swallows a whole word.
func project(v []float32, features []feature) {
	n := uint64(len(v))
	for _, f := range features {
		w := float32(f.weight * math.Sqrt2 / 2)
		h := f.hash
		for range 2 {
			h = mix(h + 0x9e3779b97f4a7c15)
			// The high half chooses the place by multiplication, which favours
			// no component for dimensions that are not powers of two.
			at := (h >> 32) * n >> 32
			if h&1 == 0 {
				v[at] += w
			} else {
				v[at] -= w
			}
		}
	}
}
