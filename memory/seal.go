package memory

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// content is what is sealed of a row.
type content struct {
	text     string
	unit     []float32 // nil: no vector
	norm     float32
	embedded bool // the vector was made of the text
	metadata map[string]string
}

// sealed is a content, sealed: nil where there was nothing.
type sealed struct {
	text, vector, metadata, code, digest []byte
}

// seal seals all columns of a row with the key of its month and contributions.
func seal(k *shred.Keys, owner memd.Number, id uuid.UUID, m memd.Month, cs []memd.Contribution, c content, f VectorFormat) (sealed, error) {
	var out sealed
	s, err := k.Row(m, cs)
	if err != nil {
		return out, fmt.Errorf("deriving a row key: %w", err)
	}
	var vector, metadata []byte
	if c.unit != nil {
		vector = encodeVector(c.unit, c.norm, f)
		if out.vector, err = s.SealFast(vector, shred.AADMemoryVector(k.Tenant(), owner, id)); err != nil {
			return out, fmt.Errorf("sealing a vector: %w", err)
		}
		if out.code, err = sealCode(k, s, owner, id, c.unit); err != nil {
			return out, err
		}
	}
	if c.text != "" {
		if out.text, err = s.Seal([]byte(c.text), shred.AADMemoryText(k.Tenant(), owner, id)); err != nil {
			return out, fmt.Errorf("sealing a text: %w", err)
		}
	}
	if len(c.metadata) > 0 {
		metadata = encodeMetadata(c.metadata)
		if out.metadata, err = s.Seal(metadata, shred.AADMemoryMetadata(k.Tenant(), owner, id)); err != nil {
			return out, fmt.Errorf("sealing metadata: %w", err)
		}
	}
	// The digest tells whether an event came again with the same content. A vector that
	// was made of the text is none of its own: another embedder changes nothing. Its
	// key is the row's, so nobody can test a guess once the row is forgotten.
	if c.embedded {
		vector = nil
	}
	d := s.Digest([]byte(c.text), vector, metadata)
	out.digest = d[:]
	return out, nil
}

// stored is a row as the database has it.
type stored struct {
	id            uuid.UUID
	owner         memd.Number
	kind          Kind
	month         memd.Month
	contributions []memd.Contribution // at least one, the inline one first
	space         int16               // that the vector is of
	dimension     int
	format        VectorFormat
	sealed
}

// opened opens a row's columns. vector says whether the vector is wanted too.
func (r *stored) open(k *shred.Keys, vector bool) (content, error) {
	var c content
	s, err := k.Row(r.month, r.contributions)
	if err != nil {
		return c, fmt.Errorf("deriving a row key: %w", err)
	}
	if r.text != nil {
		b, err := s.Open(r.text, shred.AADMemoryText(k.Tenant(), r.owner, r.id))
		if err != nil {
			return c, fmt.Errorf("opening a text: %w", err)
		}
		c.text = string(b)
	}
	if r.metadata != nil {
		if c.metadata, err = r.openMetadata(k, s); err != nil {
			return c, err
		}
	}
	if vector && r.vector != nil {
		if c.unit, c.norm, err = r.openVector(k, s, make([]float32, 0, r.dimension), new([]byte)); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (r *stored) openMetadata(k *shred.Keys, s *shred.Sealer) (map[string]string, error) {
	b, err := s.Open(r.metadata, shred.AADMemoryMetadata(k.Tenant(), r.owner, r.id))
	if err != nil {
		return nil, fmt.Errorf("opening metadata: %w", err)
	}
	m := map[string]string{}
	if err := eachEntry(b, func(k, v []byte) { m[string(k)] = string(v) }); err != nil {
		return nil, fmt.Errorf("decoding metadata: %w", err)
	}
	return m, nil
}

// hashMetadata returns the hashes of the metadata's entries.
func (r *stored) hashMetadata(k *shred.Keys, s *shred.Sealer) ([]uint64, error) {
	b, err := s.Open(r.metadata, shred.AADMemoryMetadata(k.Tenant(), r.owner, r.id))
	if err != nil {
		return nil, fmt.Errorf("opening metadata: %w", err)
	}
	var out []uint64
	if err := eachEntry(b, func(k, v []byte) { out = append(out, hashEntry(k, v)) }); err != nil {
		return nil, fmt.Errorf("decoding metadata: %w", err)
	}
	clear(b)
	return out, nil
}

// openVector appends the unit vector to dst. It opens it in buffer, which grows
// as needed and is left wiped.
func (r *stored) openVector(k *shred.Keys, s *shred.Sealer, dst []float32, buffer *[]byte) ([]float32, float32, error) {
	if cap(*buffer) < len(r.vector) {
		*buffer = make([]byte, 0, len(r.vector))
	}
	b, err := s.OpenIn(*buffer, r.vector, shred.AADMemoryVector(k.Tenant(), r.owner, r.id))
	if err != nil {
		return dst, 0, fmt.Errorf("opening a vector: %w", err)
	}
	dst, norm, err := decodeVector(dst, b, r.dimension, r.format)
	clear(b)
	return dst, norm, err
}

// contributionsOf joins the inline contribution and the further ones, which
// come as one array: subject, session, subject, session.
func contributionsOf(first memd.Contribution, more []int64) []memd.Contribution {
	out := make([]memd.Contribution, 1, 1+len(more)/2)
	out[0] = first
	return append(out, contributionPairs(more)...)
}

// closure sorts contributions and drops repetitions.
func closure(cs []memd.Contribution) ([]memd.Contribution, error) {
	slices.SortFunc(cs, memd.Contribution.Compare)
	cs = slices.Compact(cs)
	if len(cs) > memd.MaxContributions {
		return nil, memd.ErrTooManyContributions
	}
	return cs, nil
}

// eventKey names an event inside its session: the same event may be kept in
// the user's scope and in a shared one.
func eventKey(owner memd.Number, event string) string {
	var b strings.Builder
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(owner))
	b.Write(n[:])
	b.WriteString(event)
	return b.String()
}
