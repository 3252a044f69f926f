package artifacts_test

import (
	"fmt"
	"io"
	"testing"

	"forgettable.dev/memd/artifacts"
)

// BenchmarkService measures what a chunk's size and the number of them in one
// transaction cost, on bytes that do not compress.
func BenchmarkService(b *testing.B) {
	const size = 16 << 20
	s := setup(b)
	for _, chunk := range []int{64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20} {
		for _, group := range []int{1, 4} {
			a := s.a.WithChunks(chunk, group)
			name := fmt.Sprintf("%dKiBx%d", chunk>>10, group)
			b.Run("save/"+name, func(b *testing.B) {
				b.SetBytes(size)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := a.Save(b.Context(), s.tenant, anna, name, artifacts.File{}, io.LimitReader(source(1), size)); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("load/"+name, func(b *testing.B) {
				b.SetBytes(size)
				b.ReportAllocs()
				for b.Loop() {
					c, err := a.Load(b.Context(), s.tenant, anna, name, artifacts.Latest, 0, 0)
					if err != nil {
						b.Fatal(err)
					}
					if _, err := c.Copy(b.Context(), io.Discard); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("byte/"+name, func(b *testing.B) {
				for b.Loop() {
					c, err := a.Load(b.Context(), s.tenant, anna, name, artifacts.Latest, size/2, 1)
					if err != nil {
						b.Fatal(err)
					}
					if _, err := c.Next(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
