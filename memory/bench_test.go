package memory_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/tenants"
)

// The figures that these give include every round trip to a PostgreSQL on the
// same machine. The floor is what a bare statement costs there.

const benchDimension = 384

func benchmark(b *testing.B, rows int) (*bundle, *rand.Rand) {
	b.Helper()
	x := setup(b, func(p *tenants.Policy) { p.Dimension = benchDimension })
	r := rand.New(rand.NewPCG(1, 2))
	for from := 0; from < rows; from += memd.MaxBatch {
		x.add(batch(r, min(rows-from, memd.MaxBatch))...)
	}
	return x, r
}

func batch(r *rand.Rand, n int) []memory.Row {
	rows := make([]memory.Row, n)
	for i := range rows {
		rows[i] = memory.Row{
			Scope: user("ada"), SessionID: fmt.Sprint("s", r.IntN(20)), Kind: memory.KindRaw, Vector: benchVector(r),
			Text:     "I moved to 12 Elm Street last week, and the neighbours are kind enough to lend me a ladder.",
			Metadata: map[string]string{"role": "user"},
		}
	}
	return rows
}

func benchVector(r *rand.Rand) []float32 {
	v := make([]float32, benchDimension)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

// BenchmarkService_Search/warm is a search of 1,000 rows that are in memory,
// /cold one that finds nothing there, /streamed one that may keep nothing.
func BenchmarkService_Search(b *testing.B) {
	x, r := benchmark(b, 1000)
	q := memory.Query{Scope: user("ada"), TopK: 10}
	run := func(name string, before func()) {
		b.Run(name, func(b *testing.B) {
			q.Vector = benchVector(r)
			b.ReportAllocs()
			for b.Loop() {
				before()
				if got, err := x.m.Search(b.Context(), x.tenant, q); err != nil || len(got.Hits) != q.TopK {
					b.Fatalf("%d hits, %v", len(got.Hits), err)
				}
			}
		})
	}
	ref := provenance.RefOf(x.keys(), q.Scope)
	run("warm", func() {})
	run("cold", func() { x.m.Evict(x.tenant.No, ref) })
	x.m.MaxScopeRows, x.m.MaxCodedRows = 1, 1
	x.m.Evict(x.tenant.No, ref)
	run("streamed", func() {})
}

// BenchmarkService_Add is one row with a vector, and a whole batch.
func BenchmarkService_Add(b *testing.B) {
	for _, n := range []int{1, memd.MaxBatch} {
		b.Run(fmt.Sprint("rows=", n), func(b *testing.B) {
			x, r := benchmark(b, 20)
			rows := batch(r, n)
			b.ReportAllocs()
			for b.Loop() {
				x.add(rows...)
			}
			b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkFloor is what the database takes alone: a statement that does
// nothing, and a bare INSERT of a row as large as a sealed one.
func BenchmarkFloor(b *testing.B) {
	x, _ := benchmark(b, 0)
	conn, err := x.srv.Pool.Conn(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(conn.Release)
	b.Run("select", func(b *testing.B) {
		var one int
		for b.Loop() {
			if err := conn.QueryRow(b.Context(), `SELECT 1`).Scan(&one); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("insert", func(b *testing.B) {
		owner, err := x.DB.Pool("").Conn(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		defer owner.Release()
		if _, err := owner.Exec(b.Context(), `CREATE TABLE public.bare (n bigint, id uuid PRIMARY KEY DEFAULT gen_random_uuid(), text bytea, vector bytea, created timestamptz DEFAULT now());
			CREATE INDEX ON public.bare (n, created)`); err != nil {
			b.Fatal(err)
		}
		text, vector := make([]byte, 120), make([]byte, 4*benchDimension)
		for b.Loop() {
			if _, err := owner.Exec(b.Context(), `INSERT INTO public.bare (n, text, vector) VALUES (1, $1, $2)`, text, vector); err != nil {
				b.Fatal(err)
			}
		}
	})
}
