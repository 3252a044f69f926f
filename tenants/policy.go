package tenants

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"forgettable.dev/memd"
)

// Limits of a policy.
const (
	// MinDestroyDelay and MaxDestroyDelay are Cloud KMS's own limits of
	// destroy_scheduled_duration.
	MinDestroyDelay = 24 * time.Hour
	MaxDestroyDelay = 120 * 24 * time.Hour
	// MaxIngestionDelay bounds how long an erasure stays open for its second
	// sweep, and so stays below the month in which it is due.
	MaxIngestionDelay = 30 * 24 * time.Hour
	// MaxRetention bounds how many months can be kept, unless all are.
	MaxRetention = 1200
	// MaxCalls bounds the quota of calls a second.
	MaxCalls = 1_000_000
	// MinLexicalDimension is the lexical embedder's own limit: below it, too many
	// words share a component.
	MinLexicalDimension = 64
)

// Embedders that a policy can name.
const (
	EmbedderLexical = "lexical"
	EmbedderOpenAI  = "openai"
	EmbedderNone    = "none"
)

// VectorFormat is how vectors are stored. Its numbers are stored: append only.
type VectorFormat uint8

const (
	FormatUnknown VectorFormat = iota
	Float32
	Float16
)

// IndexMode says what may be kept to make searches of very large scopes fast.
type IndexMode uint8

const (
	IndexUnknown IndexMode = iota
	// IndexAuto allows sketches, which are obfuscation and not encryption.
	IndexAuto
	// IndexSealed allows sealed vectors only.
	IndexSealed
)

// LiftMode says when the fence of an erased user is lifted.
type LiftMode uint8

const (
	LiftUnknown LiftMode = iota
	// LiftAfterErasure lets the user return as soon as the erasure is done.
	LiftAfterErasure
	// LiftAfterSweep keeps the fence up until the second sweep.
	LiftAfterSweep
)

// CompactionMode says how the bytes of deleted rows leave the tables' files.
type CompactionMode uint8

const (
	CompactionUnknown CompactionMode = iota
	// CompactionVacuum frees their space and blocks nobody; some of the sealed bytes
	// stay until they are written over.
	CompactionVacuum
	// CompactionRewrite makes the files anew, and locks the tables meanwhile.
	CompactionRewrite
)

// Policy is what a tenant decides about its memory.
type Policy struct {
	// Dimension is the number of components of every vector.
	Dimension int
	// Embedder is one of the Embedder constants.
	Embedder string
	// Space numbers what Dimension and Embedder have been, from 1. Former is the one
	// before, as long as there are rows that are yet to be embedded anew; its Number is
	// 0 otherwise. SetPolicy decides about both.
	Space  int
	Former Space
	// VectorFormat is that of vectors written from now on.
	VectorFormat VectorFormat
	// DestroyDelay is how long a destroyed key version can be restored.
	DestroyDelay time.Duration
	Index        IndexMode
	// IngestionDelay is how late words may arrive after they were spoken.
	IngestionDelay time.Duration
	// LiftFence is when an erased user may return.
	LiftFence LiftMode
	// Compaction is what the erasures of the tenant ask for.
	Compaction CompactionMode
	// Sessions and Memories say for how long what sessions hold is kept, and what
	// memory holds.
	Sessions, Memories Retention
	Quota              Quota
}

// Space is what vectors can be compared in.
type Space struct {
	Number    int
	Embedder  string
	Dimension int
}

// Retention says for how long a class of data is kept.
type Retention struct {
	// Months is how many calendar months (UTC) are kept, the current one included;
	// 0 keeps all.
	Months int
	// NotBefore is the floor: nothing of the class expires before it, whatever
	// Months says. Zero is no floor. UTC, to the second.
	NotBefore time.Time
}

// Cutoff returns the newest month that may expire now, or 0 if none may for the
// number of months and the floor. Holds are not asked.
func (r Retention) Cutoff(now time.Time) memd.Month {
	m, err := memd.MonthOf(now)
	if err != nil || r.Months == 0 || now.Before(r.NotBefore) {
		return 0
	}
	return max(0, m-memd.Month(r.Months))
}

// Retention returns what is decided for a class.
func (p Policy) Retention(c memd.Class) Retention {
	if c == memd.ClassContent {
		return p.Sessions
	}
	return p.Memories
}

// DefaultPolicy is what a tenant has that decides nothing.
func DefaultPolicy() Policy {
	return Policy{
		Dimension:      384,
		Embedder:       EmbedderLexical,
		Space:          1,
		VectorFormat:   Float32,
		DestroyDelay:   MinDestroyDelay,
		Index:          IndexAuto,
		IngestionDelay: time.Hour,
		LiftFence:      LiftAfterErasure,
		Compaction:     CompactionVacuum,
	}
}

// Change is a set of decisions. A nil field decides nothing.
type Change struct {
	Dimension      *int
	Embedder       *string
	VectorFormat   *VectorFormat
	DestroyDelay   *time.Duration
	Index          *IndexMode
	IngestionDelay *time.Duration
	LiftFence      *LiftMode
	Compaction     *CompactionMode
	// Of Sessions and Memories.
	SessionMonths, MemoryMonths       *int
	SessionNotBefore, MemoryNotBefore *time.Time
	// Of Quota.
	MaxRows, MaxBytes *int64
	MaxCalls          *int
}

// Apply returns p with the decisions of c.
func (c Change) Apply(p Policy) Policy {
	set(&p.Dimension, c.Dimension)
	set(&p.Embedder, c.Embedder)
	set(&p.VectorFormat, c.VectorFormat)
	set(&p.DestroyDelay, c.DestroyDelay)
	set(&p.Index, c.Index)
	set(&p.IngestionDelay, c.IngestionDelay)
	set(&p.LiftFence, c.LiftFence)
	set(&p.Compaction, c.Compaction)
	set(&p.Sessions.Months, c.SessionMonths)
	set(&p.Memories.Months, c.MemoryMonths)
	set(&p.Sessions.NotBefore, c.SessionNotBefore)
	set(&p.Memories.NotBefore, c.MemoryNotBefore)
	set(&p.Quota.Rows, c.MaxRows)
	set(&p.Quota.Bytes, c.MaxBytes)
	set(&p.Quota.Calls, c.MaxCalls)
	for _, r := range []*Retention{&p.Sessions, &p.Memories} {
		if !r.NotBefore.IsZero() {
			r.NotBefore = r.NotBefore.UTC().Truncate(time.Second)
		}
	}
	return p
}

func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

// Validate returns a memd.InvalidError that names the first field that is
// wrong.
func (p Policy) Validate() error {
	switch {
	case p.Dimension < 1 || p.Dimension > memd.MaxDimension:
		return invalid("policy.dimension", fmt.Sprintf("must be from 1 to %d", memd.MaxDimension))
	case p.Embedder != EmbedderLexical && p.Embedder != EmbedderOpenAI && p.Embedder != EmbedderNone:
		return invalid("policy.embedder", "must be lexical, openai or none")
	case p.Embedder == EmbedderLexical && p.Dimension < MinLexicalDimension:
		return invalid("policy.dimension", fmt.Sprintf("must be at least %d with the lexical embedder", MinLexicalDimension))
	case p.VectorFormat != Float32 && p.VectorFormat != Float16:
		return invalid("policy.vector_format", "must be float32 or float16")
	case p.DestroyDelay < MinDestroyDelay || p.DestroyDelay > MaxDestroyDelay:
		return invalid("policy.destroy_delay", "must be from 24 hours to 120 days")
	case p.DestroyDelay%time.Second != 0:
		return invalid("policy.destroy_delay", "must be whole seconds")
	case p.Index != IndexAuto && p.Index != IndexSealed:
		return invalid("policy.index", "must be auto or sealed")
	case p.IngestionDelay < 0 || p.IngestionDelay > MaxIngestionDelay:
		return invalid("policy.ingestion_delay", "must be from 0 to 30 days")
	case p.LiftFence != LiftAfterErasure && p.LiftFence != LiftAfterSweep:
		return invalid("policy.lift_fence", "must be after_erasure or after_sweep")
	case p.Compaction != CompactionVacuum && p.Compaction != CompactionRewrite:
		return invalid("policy.compaction", "must be vacuum or rewrite")
	case p.Quota.Rows < 0:
		return invalid("policy.quota.rows", "must not be negative; 0 is no limit")
	case p.Quota.Bytes < 0:
		return invalid("policy.quota.bytes", "must not be negative; 0 is no limit")
	case p.Quota.Calls < 0 || p.Quota.Calls > MaxCalls:
		return invalid("policy.quota.calls_per_second", fmt.Sprintf("must be from 0, which is no limit, to %d", MaxCalls))
	}
	for field, r := range map[string]Retention{"policy.session_retention": p.Sessions, "policy.memory_retention": p.Memories} {
		switch {
		case r.Months < 0 || r.Months > MaxRetention:
			return invalid(field+".months", fmt.Sprintf("must be from 0, which keeps all, to %d", MaxRetention))
		case !r.NotBefore.IsZero() && (r.NotBefore.Year() < 1970 || r.NotBefore.Year() > 9999):
			return invalid(field+".not_before", "must be in the years 1970 to 9999")
		}
	}
	return nil
}

// replaces refuses what cannot change, and has another embedder or dimension be
// another space: they decide what a vector means, and two of them are never
// compared. The key service fixes the delay with the key.
func (p Policy) replaces(old Policy) (Policy, error) {
	if p.DestroyDelay != old.DestroyDelay {
		return p, invalid("policy.destroy_delay", "cannot be changed; make another tenant")
	}
	if p.Dimension == old.Dimension && p.Embedder == old.Embedder {
		return p, nil
	}
	field := "policy.embedder"
	if p.Embedder == old.Embedder {
		field = "policy.dimension"
	}
	switch {
	case p.Embedder == EmbedderNone:
		return p, invalid(field, "cannot be changed where no embedder could make the vectors anew; make another tenant")
	case old.Former.Number != 0:
		return p, invalid(field, "cannot be changed while rows are embedded anew for the last change; wait until that is done")
	case old.Space >= MaxSpaces:
		return p, invalid(field, "was changed too often; make another tenant")
	}
	p.Former, p.Space = Space{old.Space, old.Embedder, old.Dimension}, old.Space+1
	return p, nil
}

// MaxSpaces bounds how often a tenant changes its embedder or dimension.
const MaxSpaces = 30_000

func invalid(field, problem string) error {
	return &memd.InvalidError{Field: field, Problem: problem}
}

var formatNames = [...]string{"unknown", "float32", "float16"}

// String returns the format's name in lower case.
func (f VectorFormat) String() string { return name(formatNames[:], int(f), "VectorFormat") }

// ParseVectorFormat is the inverse of String.
func ParseVectorFormat(s string) (VectorFormat, error) {
	return parse[VectorFormat](formatNames[:], s, "policy.vector_format")
}

var indexNames = [...]string{"unknown", "auto", "sealed"}

// String returns the mode's name in lower case.
func (m IndexMode) String() string { return name(indexNames[:], int(m), "IndexMode") }

// ParseIndexMode is the inverse of String.
func ParseIndexMode(s string) (IndexMode, error) {
	return parse[IndexMode](indexNames[:], s, "policy.index")
}

var liftNames = [...]string{"unknown", "after_erasure", "after_sweep"}

// String returns the mode's name in lower case.
func (m LiftMode) String() string { return name(liftNames[:], int(m), "LiftMode") }

// ParseLiftMode is the inverse of String.
func ParseLiftMode(s string) (LiftMode, error) {
	return parse[LiftMode](liftNames[:], s, "policy.lift_fence")
}

var compactionNames = [...]string{"unknown", "vacuum", "rewrite"}

// String returns the mode's name in lower case.
func (m CompactionMode) String() string { return name(compactionNames[:], int(m), "CompactionMode") }

// ParseCompactionMode is the inverse of String.
func ParseCompactionMode(s string) (CompactionMode, error) {
	return parse[CompactionMode](compactionNames[:], s, "policy.compaction")
}

func name(names []string, i int, kind string) string {
	if i < len(names) {
		return names[i]
	}
	return kind + "(" + strconv.Itoa(i) + ")"
}

func parse[E ~uint8](names []string, s, field string) (E, error) {
	for i, known := range names[1:] {
		if s == known {
			return E(i + 1), nil
		}
	}
	return 0, invalid(field, "must be one of "+fmt.Sprint(names[1:]))
}

// stored is the form in the database. Names and not numbers, so that a person
// can read it; a key that this release does not know stays where it is.
// memd.month_refusal reads those of retention, memd.is_full those of quotas.
type stored struct {
	Dimension        int       `json:"dimension"`
	Embedder         string    `json:"embedder"`
	Space            int       `json:"space"`
	FormerSpace      int       `json:"former_space"`
	FormerEmbedder   string    `json:"former_embedder"`
	FormerDimension  int       `json:"former_dimension"`
	VectorFormat     string    `json:"vector_format"`
	DestroyDelay     string    `json:"destroy_delay"`
	Index            string    `json:"index"`
	IngestionDelay   string    `json:"ingestion_delay"`
	LiftFence        string    `json:"lift_fence"`
	Compaction       string    `json:"compaction"`
	SessionMonths    int       `json:"session_months"`
	SessionNotBefore time.Time `json:"session_not_before"`
	MemoryMonths     int       `json:"memory_months"`
	MemoryNotBefore  time.Time `json:"memory_not_before"`
	MaxRows          int64     `json:"max_rows"`
	MaxBytes         int64     `json:"max_bytes"`
	MaxCalls         int       `json:"max_calls"`
}

func (p Policy) stored() stored {
	return stored{
		p.Dimension, p.Embedder, p.Space, p.Former.Number, p.Former.Embedder, p.Former.Dimension, p.VectorFormat.String(), p.DestroyDelay.String(), p.Index.String(), p.IngestionDelay.String(), p.LiftFence.String(),
		p.Compaction.String(),
		p.Sessions.Months, p.Sessions.NotBefore, p.Memories.Months, p.Memories.NotBefore,
		p.Quota.Rows, p.Quota.Bytes, p.Quota.Calls,
	}
}

// MarshalJSON implements json.Marshaler.
func (p Policy) MarshalJSON() ([]byte, error) { return json.Marshal(p.stored()) }

// UnmarshalJSON implements json.Unmarshaler. What is missing has its default.
func (p *Policy) UnmarshalJSON(data []byte) error {
	s := DefaultPolicy().stored()
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("%w: decoding a policy", memd.ErrCorrupt)
	}
	format, err1 := ParseVectorFormat(s.VectorFormat)
	index, err2 := ParseIndexMode(s.Index)
	destroy, err3 := time.ParseDuration(s.DestroyDelay)
	ingestion, err4 := time.ParseDuration(s.IngestionDelay)
	lift, err5 := ParseLiftMode(s.LiftFence)
	compaction, err6 := ParseCompactionMode(s.Compaction)
	for _, err := range []error{err1, err2, err3, err4, err5, err6} {
		if err != nil {
			return fmt.Errorf("%w: decoding a policy: %v", memd.ErrCorrupt, err)
		}
	}
	*p = Policy{
		s.Dimension, s.Embedder, s.Space, Space{s.FormerSpace, s.FormerEmbedder, s.FormerDimension}, format, destroy, index, ingestion, lift, compaction,
		Retention{s.SessionMonths, s.SessionNotBefore.UTC()}, Retention{s.MemoryMonths, s.MemoryNotBefore.UTC()},
		Quota{s.MaxRows, s.MaxBytes, s.MaxCalls},
	}
	return nil
}
