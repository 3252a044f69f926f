package memory

import (
	"fmt"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/memory/codes"
	"forgettable.dev/memd/shred"
)

// A row's code is sealed with the row's own key, as its vector is: it says what
// the vector is like, so it must die with every contributor to the row. The
// rotation is the scope's, one for all rows, or codes could not be compared; it
// dies with the scope's owner.

// rotation returns the rotation of a scope's vectors.
func rotation(k *shred.Keys, owner memd.Number, dimension int) (*codes.Rotation, error) {
	seed, err := k.Rotation(owner)
	if err != nil {
		return nil, err
	}
	defer clear(seed[:])
	return codes.NewRotation(dimension, seed), nil
}

// sealCode codes a vector and seals the code with the row's Sealer.
func sealCode(k *shred.Keys, s *shred.Sealer, owner memd.Number, id uuid.UUID, unit []float32) ([]byte, error) {
	r, err := rotation(k, owner, len(unit))
	if err != nil {
		return nil, fmt.Errorf("deriving a rotation: %w", err)
	}
	defer r.Zero()
	code := r.Encode(unit)
	defer clear(code)
	sealed, err := s.SealFast(code, shred.AADMemoryCode(k.Tenant(), owner, id))
	if err != nil {
		return nil, fmt.Errorf("sealing a code: %w", err)
	}
	return sealed, nil
}

// openCode returns a row's code, or makes it from the vector where there is none. It
// opens in buffer, which grows as needed, so the code is good until the next one; the
// caller wipes it.
func (r *stored) openCode(k *shred.Keys, s *shred.Sealer, rotation *codes.Rotation, buffer *[]byte) ([]byte, error) {
	if r.code == nil {
		unit, _, err := r.openVector(k, s, make([]float32, 0, r.dimension), buffer)
		if err != nil {
			return nil, err
		}
		defer clear(unit)
		return rotation.Encode(unit), nil
	}
	if cap(*buffer) < len(r.code) {
		*buffer = make([]byte, 0, len(r.code))
	}
	b, err := s.OpenIn(*buffer, r.code, shred.AADMemoryCode(k.Tenant(), r.owner, r.id))
	if err != nil {
		return nil, fmt.Errorf("opening a code: %w", err)
	}
	return b, nil
}
