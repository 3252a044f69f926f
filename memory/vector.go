package memory

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/x448/float16"

	"forgettable.dev/memd"
)

// VectorFormat is how the components of a sealed vector are stored.
type VectorFormat int16

// Formats, as stored; append only.
const (
	FormatUnknown VectorFormat = 0
	FormatFloat32 VectorFormat = 1
	FormatFloat16 VectorFormat = 2 // half the bytes; a score differs by less than 0.001
)

// normalise returns v scaled to length one, and its length. It refuses a vector
// that has none: zero, infinite or not a number.
func normalise(v []float32) ([]float32, float32, error) {
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	norm := math.Sqrt(sum)
	if norm == 0 || math.IsNaN(norm) || norm > math.MaxFloat32 || float32(norm) == 0 {
		return nil, 0, &memd.InvalidError{Field: "vector", Problem: "must have a finite length above zero"}
	}
	unit := make([]float32, len(v))
	for i, x := range v {
		unit[i] = float32(float64(x) / norm)
	}
	return unit, float32(norm), nil
}

// encodeVector lays out the norm, then the components, little-endian.
func encodeVector(unit []float32, norm float32, f VectorFormat) []byte {
	b := make([]byte, 0, 4+4*len(unit))
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(norm))
	for _, x := range unit {
		if f == FormatFloat16 {
			b = binary.LittleEndian.AppendUint16(b, float16.Fromfloat32(x).Bits())
		} else {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
	}
	return b
}

// decodeVector appends the components to dst, whose last len(dst)+dimension
// elements they become, and returns the norm.
func decodeVector(dst []float32, b []byte, dimension int, f VectorFormat) ([]float32, float32, error) {
	width := 4
	if f == FormatFloat16 {
		width = 2
	}
	if len(b) != 4+width*dimension || f < FormatFloat32 || f > FormatFloat16 {
		return dst, 0, fmt.Errorf("decoding a vector: %w", memd.ErrCorrupt)
	}
	norm := math.Float32frombits(binary.LittleEndian.Uint32(b))
	at := len(dst)
	dst = room(dst, dimension)
	out := dst[at:]
	if f == FormatFloat16 {
		for i, b := 0, b[4:]; i < len(out); i++ {
			out[i] = float16.Frombits(binary.LittleEndian.Uint16(b[2*i:])).Float32()
		}
		return dst, norm, nil
	}
	b = b[4:]
	for ; len(out) >= 4 && len(b) >= 16; out, b = out[4:], b[16:] { // four at a time: a cold scope has 384,000
		out[0] = math.Float32frombits(binary.LittleEndian.Uint32(b[0:4]))
		out[1] = math.Float32frombits(binary.LittleEndian.Uint32(b[4:8]))
		out[2] = math.Float32frombits(binary.LittleEndian.Uint32(b[8:12]))
		out[3] = math.Float32frombits(binary.LittleEndian.Uint32(b[12:16]))
	}
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return dst, norm, nil
}

// room lengthens v by n, and wipes the old block when it has to move.
func room(v []float32, n int) []float32 {
	if len(v)+n <= cap(v) {
		return v[:len(v)+n]
	}
	bigger := make([]float32, len(v)+n, max(2*cap(v), len(v)+n))
	copy(bigger, v)
	clear(v)
	return bigger
}

// scaled returns the vector as it was given: the unit vector times its norm.
func scaled(unit []float32, norm float32) []float32 {
	out := make([]float32, len(unit))
	for i, x := range unit {
		out[i] = x * norm
	}
	return out
}
