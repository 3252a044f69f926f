package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgvector/pgvector-go"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// Sizes of the search figures, from the issue of figures: one subject of 1,000
// rows, ten hits.
const (
	subjectRows = 1000
	hits        = 10
	samples     = 500
	clients     = 8
	throughput  = 3 * time.Second
	coldUsers   = 12
)

func searches(ctx context.Context, l *lab) ([]Figure, error) {
	var out []Figure
	for _, s := range []struct {
		dimension  int
		ratio      float64
		throughput float64
	}{{384, 1.0 / 3, 4}, {768, 0.1, 4}} {
		got, err := l.searches(ctx, s.dimension, s.ratio, s.throughput)
		if err != nil {
			return out, err
		}
		out = append(out, got...)
	}
	return out, nil
}

func (l *lab) searches(ctx context.Context, dimension int, most, least float64) ([]Figure, error) {
	t, err := l.tenant(ctx, fmt.Sprintf("search-%d", dimension), dimension)
	if err != nil {
		return nil, err
	}
	user := l.newUser()
	if err := l.fill(ctx, t, user, subjectRows); err != nil {
		return nil, err
	}
	table, users, err := l.plainTable(ctx, dimension)
	if err != nil {
		return nil, err
	}
	queries := make([][]float32, 64)
	for i := range queries {
		queries[i] = l.vector(dimension)
	}
	ours := func(i int) error { return t.search(ctx, user, queries[i%len(queries)]) }
	peer := func(i int) error { return l.plainSearch(ctx, table, i%users, queries[i%len(queries)]) }
	// One user on both sides: what is compared is a warm subject.
	peerWarm := func(i int) error { return l.plainSearch(ctx, table, 0, queries[i%len(queries)]) }
	for i := range 50 {
		if err := ours(i); err != nil {
			return nil, err
		}
		if err := peerWarm(i); err != nil {
			return nil, err
		}
	}
	p50 := func(f func(int) error) func() (float64, error) {
		return func() (float64, error) { xs, err := latencies(samples, f); return medianOf(xs, err) }
	}
	warm, plain, err := l.alternate(p50(ours), p50(peerWarm))
	if err != nil {
		return nil, err
	}
	qps, plainQPS, err := l.alternate(
		func() (float64, error) { return perSecond(ours) }, func() (float64, error) { return perSecond(peer) })
	if err != nil {
		return nil, err
	}
	cold, err := l.cold(ctx, t)
	if err != nil {
		return nil, err
	}
	name := func(s string) string { return fmt.Sprintf("%s, %d-d", s, dimension) }
	return []Figure{
		against(name("search warm, 1,000 rows, 1 client, p50"), "ms", warm, "pgvector exact", plain,
			fmt.Sprintf("at most %.2f of the peer", most), func(r float64) bool { return r <= most }),
		against(name("search warm, 8 clients"), "queries/s", qps, "pgvector exact", plainQPS,
			fmt.Sprintf("at least %g times the peer", least), func(r float64) bool { return r >= least }),
		against(name("search cold, 1,000 rows, p50"), "ms", cold, "pgvector exact, warm", plain,
			"at most 3 times the peer", func(r float64) bool { return r <= 3 }),
	}, nil
}

func medianOf(xs []float64, err error) (float64, error) {
	if err != nil {
		return 0, err
	}
	return median(xs), nil
}

func (t *tenant) search(ctx context.Context, user memd.Scope, query []float32) error {
	r, err := t.memory.Search(ctx, &memdv1.SearchRequest{Scope: scope(user), Vector: query, TopK: hits})
	if err == nil && len(r.GetHits()) != hits {
		err = fmt.Errorf("%d hits instead of %d", len(r.GetHits()), hits)
	}
	return err
}

func scope(s memd.Scope) *memdv1.Scope {
	if s.Shared() {
		return &memdv1.Scope{Owner: &memdv1.Scope_Shared{Shared: &memdv1.SharedScope{App: s.App}}}
	}
	return &memdv1.Scope{Owner: &memdv1.Scope_User{User: &memdv1.UserScope{App: s.App, UserId: s.UserID}}}
}

// plainSearch is pgvector's own exact query, prepared by pgx.
func (l *lab) plainSearch(ctx context.Context, table string, user int, query []float32) error {
	rows, err := l.plain.Query(ctx, `SELECT id, body, 1 - (embedding <=> $1) FROM `+table+`
		WHERE user_no = $2 ORDER BY embedding <=> $1 LIMIT 10`, pgvector.NewVector(query), user)
	if err != nil {
		return err
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		var id int64
		var body string
		var score float64
		if err := rows.Scan(&id, &body, &score); err != nil {
			return err
		}
		n++
	}
	if rows.Err() == nil && n != hits {
		return fmt.Errorf("%d hits instead of %d", n, hits)
	}
	return rows.Err()
}

// perSecond runs f with several clients for a while.
func perSecond(f func(i int) error) (float64, error) {
	var n atomic.Int64
	var failure atomic.Value
	var group sync.WaitGroup
	began := time.Now()
	for c := range clients {
		group.Go(func() {
			for i := c; time.Since(began) < throughput; i += clients {
				if err := f(i); err != nil {
					failure.Store(err)
					return
				}
				n.Add(1)
			}
		})
	}
	group.Wait()
	if err, ok := failure.Load().(error); ok {
		return 0, err
	}
	return float64(n.Load()) / time.Since(began).Seconds(), nil
}

// cold searches users whose rows no process has in memory yet.
func (l *lab) cold(ctx context.Context, t *tenant) (float64, error) {
	users := make([]memd.Scope, coldUsers)
	for i := range users {
		users[i] = l.newUser()
		if err := l.fill(ctx, t, users[i], subjectRows); err != nil {
			return 0, err
		}
	}
	xs, err := latencies(coldUsers, func(i int) error { return t.search(ctx, users[i], l.vector(t.Dimension)) })
	return medianOf(xs, err)
}
