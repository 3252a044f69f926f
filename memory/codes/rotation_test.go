package codes_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd/memory/codes"
)

// vector is a case of testdata/vectors.json: codes that databases hold must be
// what later versions compute.
type vector struct {
	Seed      string    `json:"seed"`
	Dimension int       `json:"dimension"`
	Unit      []float32 `json:"unit"`
	Code      string    `json:"code"`
}

func TestRotation_Encode_vectors(t *testing.T) {
	b, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []vector
	if err := json.Unmarshal(b, &cases); err != nil || len(cases) == 0 {
		t.Fatal(len(cases), err)
	}
	for _, c := range cases {
		var seed [32]byte
		if _, err := hex.Decode(seed[:], []byte(c.Seed)); err != nil {
			t.Fatal(err)
		}
		got := codes.NewRotation(c.Dimension, seed).Encode(c.Unit)
		if diff := cmp.Diff(c.Code, hex.EncodeToString(got)); diff != "" {
			t.Errorf("%d components: %s", c.Dimension, diff)
		}
		want := naive(c.Unit, seed)
		if n := len(want) - 4; !bytes.Equal(got[:n], want[:n]) || math.Abs(factor(got)-factor(want)) > 1e-6 {
			t.Errorf("%d components: by the definition the code is %x", c.Dimension, want)
		}
	}
}

func factor(code []byte) float64 {
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(code[len(code)-4:])))
}

// naive is the definition, with the whole matrix and in float64.
func naive(unit []float32, seed [32]byte) []byte {
	n := codes.Bits(len(unit))
	x := make([]float64, n)
	for i, c := range unit {
		x[i] = float64(c)
	}
	random := rand.NewChaCha8(seed)
	for range 3 {
		flipped, y := make([]float64, n), make([]float64, n)
		for word := range n / 64 {
			w := random.Uint64()
			for b := range 64 {
				flipped[64*word+b] = x[64*word+b] * (1 - 2*float64(w>>b&1))
			}
		}
		for i := range y {
			for j, f := range flipped {
				y[i] += f * (1 - 2*float64(bits.OnesCount(uint(i&j))%2)) / math.Sqrt(float64(n))
			}
		}
		x = y
	}
	var out []byte
	var sum float64
	for word := range n / 64 {
		var w uint64
		for b := range 64 {
			if x[64*word+b] >= 0 {
				w |= 1 << b
			}
			sum += math.Abs(x[64*word+b])
		}
		out = binary.LittleEndian.AppendUint64(out, w)
	}
	return binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(sum/math.Sqrt(float64(n)))))
}

func TestBytes(t *testing.T) {
	for dimension, want := range map[int]int{1: 12, 64: 12, 65: 20, 384: 68, 512: 68, 768: 132, 1024: 132, 4096: 516} {
		if got := codes.Bytes(dimension); got != want {
			t.Errorf("Bytes(%d) = %d, want %d", dimension, got, want)
		}
	}
}
