package embed

import (
	"context"
	"fmt"
	"math"
	"strings"

	"forgettable.dev/memd"
)

// Embedder turns texts into vectors of one dimension and unit length. It is
// safe for concurrent use.
type Embedder interface {
	// Name identifies the vector space: vectors of the same name and dimension
	// can be compared, others cannot.
	Name() string
	// Dimension is the number of components of every vector.
	Dimension() int
	// Embed returns one vector for each text, in order. It returns all of them
	// or an error: memd.ErrEmbedderUnavailable when the embedder could not be
	// asked or gave a useless answer (safe to repeat), a memd.InvalidError when
	// a text is at fault, or the context's own error.
	Embed(ctx context.Context, texts []string) ([][]float32, error)
}

// Names of the embedders that a tenant's policy can choose.
const (
	NameLexical = "lexical"
	NameOpenAI  = "openai"
	NameNone    = "none"
)

// MinDimension is the smallest dimension of the lexical embedder. With fewer
// components, hashing throws too many different words together.
const MinDimension = 64

// New returns the embedder that a policy names. Config is read only for
// NameOpenAI; its Dimension is replaced by dim.
func New(name string, dim int, cfg Config) (Embedder, error) {
	switch name {
	case NameLexical:
		return Lexical(dim)
	case NameOpenAI:
		cfg.Dimension = dim
		return OpenAI(cfg)
	case NameNone:
		return None(dim)
	}
	return nil, &memd.InvalidError{Field: "embedder", Problem: "must be lexical, openai or none"}
}

// None returns an embedder for tenants whose agents bring their own vectors. It
// refuses every text.
func None(dim int) (Embedder, error) {
	if err := checkDimension(dim, 1); err != nil {
		return nil, err
	}
	return none{dim: dim}, nil
}

type none struct{ dim int }

var _ Embedder = none{}

func (none) Name() string     { return NameNone }
func (n none) Dimension() int { return n.dim }

func (none) Embed(_ context.Context, texts []string) ([][]float32, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	return nil, &memd.InvalidError{Field: "vector", Problem: "is required, because the tenant has no embedder"}
}

func checkDimension(dim, least int) error {
	if dim < least || dim > memd.MaxDimension {
		return &memd.InvalidError{
			Field:   "dimension",
			Problem: fmt.Sprintf("must be between %d and %d", least, memd.MaxDimension),
		}
	}
	return nil
}

// checkTexts refuses what has no direction in any space. It names the position
// of the offender, never its content.
func checkTexts(texts []string) error {
	for i, t := range texts {
		if strings.TrimSpace(t) == "" {
			return &memd.InvalidError{Field: fmt.Sprintf("text %d", i), Problem: "is empty"}
		}
	}
	return nil
}

// normalise scales v to unit length. It reports false for a vector that has no
// direction: all zero, or not finite.
func normalise(v []float32) bool {
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if sum == 0 || math.IsNaN(sum) || math.IsInf(sum, 0) {
		return false
	}
	inv := 1 / math.Sqrt(sum)
	for i, x := range v {
		v[i] = float32(float64(x) * inv)
	}
	return true
}
