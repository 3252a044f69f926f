package cleartext_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"math"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/x448/float16"
)

// canary is something distinctive that goes in, and the forms in which it could
// be found again.
type canary struct {
	name  string
	forms [][]byte
}

// word returns a canary text of its own: no program would write it.
func word(kind string) (string, canary) {
	s := kind + "Canary" + strings.ToLower(rand.Text())[:20]
	return s, canary{kind, [][]byte{
		[]byte(s), []byte(hex.EncodeToString([]byte(s))), []byte(strings.ToUpper(s)), []byte(strings.ToLower(s)), []byte(base64.StdEncoding.EncodeToString([]byte(s))[:16]),
	}}
}

// direction returns a canary vector, searched for as it was given, as a unit
// vector and as that scaled back, which is what an answer has and differs in the
// last bit: in the formats that anything might store, four components in a row.
func direction(dimension int) ([]float32, canary) {
	v := make([]float32, dimension)
	var sum float64
	for i := range v {
		v[i] = float32(mrand.NormFloat64() * 3)
		sum += float64(v[i]) * float64(v[i])
	}
	norm := math.Sqrt(sum)
	var forms [][]byte
	for _, stored := range []func(x float32) float32{
		func(x float32) float32 { return x },
		func(x float32) float32 { return float32(float64(x) / norm) },
		func(x float32) float32 { return float32(float64(x)/norm) * float32(norm) },
	} {
		for at := 0; at+4 <= dimension; at += 16 {
			var little, big, half []byte
			for _, x := range v[at : at+4] {
				y := stored(x)
				little = binary.LittleEndian.AppendUint32(little, math.Float32bits(y))
				big = binary.BigEndian.AppendUint32(big, math.Float32bits(y))
				half = binary.LittleEndian.AppendUint16(half, float16.Fromfloat32(y).Bits())
			}
			forms = append(forms, little, big, half, []byte(hex.EncodeToString(little)), []byte(hex.EncodeToString(half)))
		}
	}
	return v, canary{"vector", forms}
}

// littleEndian is a vector as anybody would store it.
func littleEndian(v []float32) []byte {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

// finder looks for all forms of all canaries in one pass: a form is looked at
// where its first eight bytes are.
type finder struct {
	maybe [1 << 16]bool // by the first two bytes
	heads map[uint64][]form
}

type form struct {
	name  string
	bytes []byte
}

func newFinder(canaries []canary) *finder {
	f := &finder{heads: map[uint64][]form{}}
	for _, c := range canaries {
		for _, b := range c.forms {
			head := binary.LittleEndian.Uint64(b)
			f.heads[head] = append(f.heads[head], form{c.name, b})
			f.maybe[binary.LittleEndian.Uint16(b)] = true
		}
	}
	return f
}

// found says which canaries are in data.
func (f *finder) found(data []byte) map[string]bool {
	out := map[string]bool{}
	for i := 0; i+8 <= len(data); i++ {
		if !f.maybe[binary.LittleEndian.Uint16(data[i:])] {
			continue
		}
		for _, c := range f.heads[binary.LittleEndian.Uint64(data[i:])] {
			if bytes.HasPrefix(data[i:], c.bytes) {
				out[c.name] = true
			}
		}
	}
	return out
}

// search reads every file below the roots, and returns what was found where.
func search(t *testing.T, canaries []canary, roots ...string) (hits map[string][]string, files int, size int64) {
	t.Helper()
	hits = map[string][]string{}
	f := newFinder(canaries)
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // the server removes files as it goes
			}
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			files++
			size += int64(len(data))
			for kind := range f.found(data) {
				hits[kind] = append(hits[kind], strings.TrimPrefix(path, root))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return hits, files, size
}
