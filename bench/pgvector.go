package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pgvector/pgvector-go"
	pgxvec "github.com/pgvector/pgvector-go/pgx"
)

const (
	systemExact = "pgvector exact"
	systemHNSW  = "pgvector HNSW"
)

// plainStore is pgvector over plain vectors, in the same cluster. The whole table is
// the scope, which is what suits its index best: its filter lets every row pass.
type plainStore struct {
	d     *dataset
	table string
	pool  *pgxpool.Pool
}

// comparePlain measures pgvector's exact search and its HNSW, with its own setting
// and with the first that finds as much as least, or else with the largest. With
// index false there is no HNSW.
func (l *lab) comparePlain(ctx context.Context, d *dataset, least float64, index bool) (cells []Cell, err error) {
	table := fmt.Sprintf("tiers_%s_%d_%d", d.Name, d.Dimension, len(d.rows))
	if err := l.plainTiers(ctx, table, d); err != nil {
		return nil, err
	}
	exact := Cell{Data: d.Name, Dimension: d.Dimension, Rows: len(d.rows), System: systemExact}
	if exact.Disk, err = l.perRow(ctx, table, len(d.rows)); err != nil {
		return nil, err
	}
	exact.Memory = exact.Disk
	if err := l.withPlain(ctx, d, table, nil, func(s *plainStore) error { return exact.measureSearch(ctx, d, s) }); err != nil {
		return nil, err
	}
	if !index {
		_, err := l.plain.Exec(ctx, `DROP TABLE `+table)
		return []Cell{exact}, err
	}
	began := time.Now()
	if err := l.buildHNSW(ctx, table, d); err != nil {
		return nil, fmt.Errorf("building HNSW: %w", err)
	}
	hnsw := Cell{Data: d.Name, Dimension: d.Dimension, Rows: len(d.rows), System: systemHNSW, Built: time.Since(began).Seconds()}
	if hnsw.Disk, err = l.perRow(ctx, table, len(d.rows)); err != nil {
		return nil, err
	}
	if hnsw.Memory, err = l.perRow(ctx, table+"_hnsw", len(d.rows)); err != nil {
		return nil, err
	}
	for _, ef := range []int{40, 80, 160, 320, 640, 1000} {
		c := hnsw
		c.Setting = fmt.Sprint("ef_search=", ef)
		settings := map[string]string{"hnsw.ef_search": fmt.Sprint(ef), "hnsw.iterative_scan": "strict_order", "enable_seqscan": "off"}
		err := l.withPlain(ctx, d, table, settings, func(s *plainStore) error {
			var err error
			if c.Recall, err = s.recall(ctx); err != nil || ef > 40 && c.Recall < least && ef < 1000 {
				return err
			}
			return c.measureSearch(ctx, d, s)
		})
		if err != nil {
			return nil, err
		}
		if c.Samples > 0 {
			cells = append(cells, c)
		}
		if c.Recall >= least {
			break
		}
	}
	last := &cells[len(cells)-1]
	if err := l.withPlain(ctx, d, table, nil, func(s *plainStore) error { return last.measureAdds(ctx, d, s) }); err != nil {
		return nil, err
	}
	// What DELETE leaves is invisible, and in heap and index until they are vacuumed.
	for _, step := range []struct {
		seconds *float64
		where   string
	}{{&last.ForgetSome, `session_no = 0`}, {&last.ForgetAll, `true`}} {
		began := time.Now()
		if _, err := l.plain.Exec(ctx, `DELETE FROM `+table+` WHERE `+step.where); err != nil {
			return nil, err
		}
		*step.seconds = time.Since(began).Seconds()
	}
	_, err = l.plain.Exec(ctx, `DROP TABLE `+table)
	return append([]Cell{exact}, cells...), err
}

func (l *lab) plainTiers(ctx context.Context, table string, d *dataset) error {
	_, err := l.plain.Exec(ctx, fmt.Sprintf(`CREATE TABLE %s (scope_no int NOT NULL, session_no int NOT NULL, id bigint NOT NULL, body text NOT NULL, embedding vector(%d) NOT NULL)`, table, d.Dimension))
	if err != nil {
		return err
	}
	s := &plainStore{d, table, l.plain}
	if err := s.add(ctx, 0, len(d.rows)); err != nil {
		return err
	}
	_, err = l.plain.Exec(ctx, `VACUUM ANALYZE `+table)
	return err
}

// buildHNSW builds the index with pgvector's own settings, in memory.
func (l *lab) buildHNSW(ctx context.Context, table string, d *dataset) error {
	conn, err := l.plain.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	for _, sql := range []string{
		// A parallel build takes all of it at once, and in shared memory.
		fmt.Sprintf(`SET maintenance_work_mem = '%dMB'`, 64+len(d.rows)*(4*d.Dimension+1000)>>20),
		`CREATE INDEX ` + table + `_hnsw ON ` + table + ` USING hnsw (embedding vector_cosine_ops)`,
		`RESET maintenance_work_mem`,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

func (l *lab) perRow(ctx context.Context, relation string, rows int) (float64, error) {
	var bytes int64
	err := l.plain.QueryRow(ctx, `SELECT pg_total_relation_size($1::regclass)`, relation).Scan(&bytes)
	return float64(bytes) / float64(rows), err
}

// withPlain opens the table with settings of its own.
func (l *lab) withPlain(ctx context.Context, d *dataset, table string, settings map[string]string, f func(*plainStore) error) error {
	cfg := l.plain.Config()
	for name, value := range settings {
		cfg.ConnConfig.RuntimeParams[name] = value
	}
	cfg.AfterConnect, cfg.MaxConns = pgxvec.RegisterTypes, clients
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	return f(&plainStore{d, table, pool})
}

func (s *plainStore) add(ctx context.Context, from, to int) error {
	i := from
	_, err := s.pool.CopyFrom(ctx, pgx.Identifier{s.table}, []string{"scope_no", "session_no", "id", "body", "embedding"}, pgx.CopyFromFunc(func() ([]any, error) {
		if i == to {
			return nil, nil
		}
		row := []any{int32(1), int32(i / subjectRows), int64(i), s.d.text(i), pgvector.NewVector(s.d.rows[i])}
		i++
		return row, nil
	}))
	return err
}

func (s *plainStore) search(ctx context.Context, query []float32) ([]int, error) {
	rows, err := s.pool.Query(ctx, `SELECT id, body, 1 - (embedding <=> $1) FROM `+s.table+`
		WHERE scope_no = $2 ORDER BY embedding <=> $1 LIMIT 10`, pgvector.NewVector(query), int32(1))
	if err != nil {
		return nil, err
	}
	var out []int
	var id int64
	var body string
	var score float64
	_, err = pgx.ForEachRow(rows, []any{&id, &body, &score}, func() error {
		out = append(out, int(id))
		return nil
	})
	return out, err
}

// recall is that of all queries, without taking times.
func (s *plainStore) recall(ctx context.Context) (float64, error) {
	sum := 0.0
	for i, q := range s.d.queries {
		found, err := s.search(ctx, q)
		if err != nil {
			return 0, err
		}
		sum += s.d.recall(i, found)
	}
	return sum / float64(len(s.d.queries)), nil
}
