package bench

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"time"

	"github.com/philippgille/chromem-go"
)

const systemChromem = "chromem-go"

// chromemStore is an embedded store in Go: plain, in memory, exact.
type chromemStore struct {
	d     *dataset
	c     *chromem.Collection
	added int
}

// compareChromem measures chromem-go.
func (l *lab) compareChromem(ctx context.Context, d *dataset) (Cell, error) {
	c := Cell{Data: d.Name, Dimension: d.Dimension, Rows: len(d.rows), System: systemChromem}
	before := heap()
	collection, err := chromem.NewDB().CreateCollection("bench", nil, func(context.Context, string) ([]float32, error) {
		return nil, errors.New("every document has its vector")
	})
	if err != nil {
		return c, err
	}
	s := &chromemStore{d: d, c: collection}
	for from := 0; from < len(d.rows); from += batchRows {
		if err := s.add(ctx, from, min(len(d.rows), from+batchRows)); err != nil {
			return c, err
		}
	}
	// It keeps the vectors that it is given, which are here already.
	c.Memory = float64(heap()-before)/float64(len(d.rows)) + float64(4*d.Dimension)
	if err := c.measureSearch(ctx, d, s); err != nil {
		return c, err
	}
	if err := c.measureAdds(ctx, d, s); err != nil {
		return c, err
	}
	began := time.Now()
	if err := s.c.Delete(ctx, map[string]string{"session": "0"}, nil); err != nil {
		return c, err
	}
	c.ForgetSome = time.Since(began).Seconds()
	runtime.KeepAlive(s)
	return c, nil
}

func (s *chromemStore) add(ctx context.Context, from, to int) error {
	docs := make([]chromem.Document, 0, to-from)
	for i := from; i < to; i++ {
		s.added++
		docs = append(docs, chromem.Document{
			ID:        strconv.Itoa(i) + " " + strconv.Itoa(s.added), // a row may come again
			Metadata:  map[string]string{"session": strconv.Itoa(i / subjectRows)},
			Embedding: s.d.rows[i], Content: s.d.text(i),
		})
	}
	return s.c.AddDocuments(ctx, docs, runtime.GOMAXPROCS(0))
}

func (s *chromemStore) search(ctx context.Context, query []float32) ([]int, error) {
	got, err := s.c.QueryEmbedding(ctx, query, hits, nil, nil)
	if err != nil {
		return nil, err
	}
	rows := make([]int, len(got))
	for i, r := range got {
		if rows[i], err = rowOf(r.ID); err != nil {
			return nil, err
		}
	}
	return rows, nil
}
