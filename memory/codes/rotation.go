package codes

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
)

const (
	// rounds of sign flips and transforms. Three are as good as a rotation drawn
	// from all of them.
	rounds = 3
	// leastBits is the size of the code of a short vector: a word.
	leastBits = 64
)

// Bits returns the number of bits in the code of a vector: its dimension, padded.
func Bits(dimension int) int {
	return max(leastBits, 1<<bits.Len(uint(dimension-1)))
}

// Bytes returns the size of an encoded code.
func Bytes(dimension int) int { return Bits(dimension)/8 + 4 }

// Rotation is a secret rotation of vectors of one dimension. It is safe for
// concurrent use until Zero.
type Rotation struct {
	dimension, padded int
	flips             [rounds][]uint32 // the sign bit of each component
}

// NewRotation returns the rotation of a seed: always the same, on every machine.
func NewRotation(dimension int, seed [32]byte) *Rotation {
	r := &Rotation{dimension: dimension, padded: Bits(dimension)}
	random := rand.NewChaCha8(seed)
	for i := range r.flips {
		flips := make([]uint32, r.padded)
		for j := 0; j < len(flips); j += 64 {
			word := random.Uint64()
			for b := range 64 {
				flips[j+b] = uint32(word>>b) << 31
			}
		}
		r.flips[i] = flips
	}
	return r
}

// Zero overwrites the rotation.
func (r *Rotation) Zero() {
	for _, f := range r.flips {
		clear(f)
	}
}

// rotate returns v, padded and rotated. Its length is v's.
func (r *Rotation) rotate(v []float32) []float32 {
	x := make([]float32, r.padded)
	copy(x, v)
	scale := float32(1 / math.Sqrt(float64(r.padded)))
	for _, flips := range r.flips {
		for i, f := range flips {
			x[i] = math.Float32frombits(math.Float32bits(x[i])^f) * scale
		}
		transform(x)
	}
	return x
}

// transform is the fast Walsh-Hadamard transform, in place. Its first two levels
// are one: half of the time went into short loops.
func transform(x []float32) {
	for q := x; len(q) >= 4; q = q[4:] {
		a, b, c, d := q[0]+q[1], q[0]-q[1], q[2]+q[3], q[2]-q[3]
		q[0], q[1], q[2], q[3] = a+c, b+d, a-c, b-d
	}
	for h := 4; h < len(x); h *= 2 {
		for i := 0; i < len(x); i += 2 * h {
			a, b := x[i:i+h], x[i+h:i+2*h]
			for j, u := range a {
				v := b[j]
				a[j], b[j] = u+v, u-v
			}
		}
	}
}

// Encode returns the code of a unit vector: its bits, then its factor,
// little-endian; Bytes of them.
func (r *Rotation) Encode(unit []float32) []byte {
	x := r.rotate(unit)
	out := make([]byte, 0, r.padded/8+4)
	for _, word := range signs(x) {
		out = binary.LittleEndian.AppendUint64(out, word)
	}
	var sum float64
	for _, c := range x {
		sum += math.Abs(float64(c))
	}
	clear(x)
	factor := float32(sum / math.Sqrt(float64(r.padded)))
	return binary.LittleEndian.AppendUint32(out, math.Float32bits(factor))
}

// SketchOf returns the bits of a code, without its factor: what a Hamming distance can
// be told from.
func SketchOf(code []byte) []byte { return code[:len(code)-4] }

// signs has a bit for each component: whether it is not negative.
func signs(x []float32) []uint64 {
	out := make([]uint64, len(x)/64)
	for i, c := range x {
		if c >= 0 {
			out[i/64] |= 1 << (i % 64)
		}
	}
	return out
}

// planes is the number of bits to which a query's components are rounded. The
// error that rounding to five makes is a tenth of that of the codes themselves.
const planes = 5

// Query is a rotated query.
type Query struct {
	signs []uint64
	// planes are the bits of the components as they were rounded, the lowest
	// first, word by word.
	planes     []uint64
	step, base float32 // what a rounded component stands for: base + step*bits
	sum        float32 // of the components as they were rounded
	scale      float32
}

// Query rotates a unit vector.
func (r *Rotation) Query(unit []float32) *Query {
	x := r.rotate(unit)
	low, high := x[0], x[0]
	for _, c := range x {
		low, high = min(low, c), max(high, c)
	}
	q := &Query{signs: signs(x), planes: make([]uint64, len(x)/64*planes), base: low, step: max((high-low)/(1<<planes-1), math.SmallestNonzeroFloat32)}
	q.scale = float32(1 / math.Sqrt(float64(len(x))))
	for i, c := range x {
		rounded := uint64((c-low)/q.step + 0.5)
		for b := range planes {
			q.planes[i/64*planes+b] |= rounded >> b & 1 << (i % 64)
		}
		q.sum += low + q.step*float32(rounded)
	}
	clear(x)
	return q
}

// estimate returns the cosine between the query and the vector of a code, about.
func (q *Query) estimate(code []uint64, factor float32) float32 {
	var ones, c0, c1, c2, c3, c4 int
	p := q.planes[:planes*len(code)]
	for _, word := range code {
		ones += bits.OnesCount64(word)
		c0 += bits.OnesCount64(word & p[0])
		c1 += bits.OnesCount64(word & p[1])
		c2 += bits.OnesCount64(word & p[2])
		c3 += bits.OnesCount64(word & p[3])
		c4 += bits.OnesCount64(word & p[4])
		p = p[planes:]
	}
	positive := q.base*float32(ones) + q.step*float32(c0+c1<<1+c2<<2+c3<<3+c4<<4)
	return (2*positive - q.sum) * q.scale / factor
}

// distances sets the Hamming distances of codes that lie one behind the other.
func (q *Query) distances(out []uint16, codes []uint64) {
	clear(out)
	s := q.signs
	if len(s)%8 != 0 {
		for i := range out {
			code := codes[i*len(s):][:len(s)]
			for w, word := range code {
				out[i] += uint16(bits.OnesCount64(word ^ s[w]))
			}
		}
		return
	}
	for part := 0; part < len(s); part += 8 { // a line of the cache at a time, with its part of the query in registers
		s0, s1, s2, s3, s4, s5, s6, s7 := s[part], s[part+1], s[part+2], s[part+3], s[part+4], s[part+5], s[part+6], s[part+7]
		for i, at := 0, part; i < len(out); i, at = i+1, at+len(s) {
			c := (*[8]uint64)(codes[at:])
			out[i] += uint16(bits.OnesCount64(c[0]^s0) + bits.OnesCount64(c[1]^s1) + bits.OnesCount64(c[2]^s2) + bits.OnesCount64(c[3]^s3) +
				bits.OnesCount64(c[4]^s4) + bits.OnesCount64(c[5]^s5) + bits.OnesCount64(c[6]^s6) + bits.OnesCount64(c[7]^s7))
		}
	}
}

// decode takes an encoded code apart.
func decode(words []uint64, b []byte) (factor float32, err error) {
	if len(b) != 8*len(words)+4 {
		return 0, fmt.Errorf("a code has %d bytes instead of %d", len(b), 8*len(words)+4)
	}
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	factor = math.Float32frombits(binary.LittleEndian.Uint32(b[8*len(words):]))
	if !(factor > 0 && factor <= 1.001) {
		return 0, fmt.Errorf("a code has the factor %g", factor)
	}
	return factor, nil
}
