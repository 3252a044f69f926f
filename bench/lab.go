package bench

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"path/filepath"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pgvector/pgvector-go"
	pgxvec "github.com/pgvector/pgvector-go/pgx"

	"forgettable.dev/memd"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/dev"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/tenants"
)

// lab is one memd and one pgvector in the same cluster.
type lab struct {
	c     Config
	d     *dev.Dev
	plain *pgxpool.Pool
	memd  *pgx.Conn // its database, as the owner
	cells []Cell
	rng   *rand.Rand
	users int
}

const plainDatabase = "plain"

// text is what every row says: a sentence of usual length.
const text = "There's a two-bedroom apartment on the second floor for 3,250 a month, free from the 13th; the landlord asks for references."

func open(ctx context.Context, c Config) (*lab, error) {
	l := &lab{c: c, rng: rand.New(rand.NewPCG(1, 2))}
	var err error
	l.d, err = dev.Start(ctx, dev.Config{
		Dir: filepath.Join(c.Dir, "memd"), Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler), PostgreSQL: postgresql(),
	})
	if err != nil {
		return nil, err
	}
	if err := l.openPlain(ctx); err != nil {
		return nil, fmt.Errorf("opening the peer's database: %w", err)
	}
	if l.memd, err = pgx.Connect(ctx, l.d.Cluster.URL(dev.Database, "")); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *lab) openPlain(ctx context.Context) error {
	if err := l.d.Cluster.CreateDatabase(ctx, plainDatabase); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, l.d.Cluster.URL(plainDatabase, ""))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `CREATE EXTENSION IF NOT EXISTS vector`)
	if e := conn.Close(ctx); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	cfg, err := pgxpool.ParseConfig(l.d.Cluster.URL(plainDatabase, ""))
	if err != nil {
		return err
	}
	cfg.AfterConnect = pgxvec.RegisterTypes
	cfg.MaxConns = 32
	l.plain, err = pgxpool.NewWithConfig(ctx, cfg)
	return err
}

func (l *lab) close() error {
	if l.plain != nil {
		l.plain.Close()
	}
	if l.memd != nil {
		_ = l.memd.Close(context.Background()) // The lab ends with its cluster.
	}
	return l.d.Close()
}

// tenant is a tenant of the lab with a client that speaks for it.
type tenant struct {
	memory.Tenant
	key     string
	memory  memdv1connect.MemoryServiceClient
	erasure memdv1connect.ErasureServiceClient
}

// tenant makes a tenant whose vectors have the dimension.
func (l *lab) tenant(ctx context.Context, name string, dimension int) (*tenant, error) {
	p := tenants.DefaultPolicy()
	p.Dimension, p.Embedder = dimension, tenants.EmbedderNone
	t, err := l.d.CreateTenantWith(ctx, name, name, p)
	if err != nil {
		return nil, err
	}
	key, err := l.d.CreateKey(ctx, t, "bench", auth.Agent|auth.Eraser)
	if err != nil {
		return nil, err
	}
	client := connect.NewClient(connecthttp.NewTransport(
		&http.Client{Transport: &client{address: l.d.Address, key: key}}, "http://"+l.d.Address))
	return &tenant{
		Tenant: memory.Tenant{No: t.No, Epoch: t.Epoch, Dimension: dimension, Embedder: p.Embedder, Format: memory.FormatFloat32},
		key:    key, memory: memdv1connect.NewMemoryServiceClient(client), erasure: memdv1connect.NewErasureServiceClient(client),
	}, nil
}

// newUser returns a user that nobody has used yet.
func (l *lab) newUser() memd.Scope {
	l.users++
	return memd.Scope{App: "bench", UserID: fmt.Sprintf("user-%06d", l.users)}
}

// vector returns a random direction: nearly isotropic, which is the worst case
// for everybody.
func (l *lab) vector(dimension int) []float32 {
	v := make([]float32, dimension)
	for i := range v {
		v[i] = float32(l.rng.NormFloat64())
	}
	return v
}

// row is a row of a user with a random vector.
func (l *lab) row(scope memd.Scope, dimension int) memory.Row {
	return memory.Row{Scope: scope, SessionID: "s", Kind: memory.KindRaw, Text: text, Vector: l.vector(dimension)}
}

// fill adds n rows to a user, in batches.
func (l *lab) fill(ctx context.Context, t *tenant, scope memd.Scope, n int) error {
	for n > 0 {
		rows := make([]memory.Row, min(n, memd.MaxBatch))
		for i := range rows {
			rows[i] = l.row(scope, t.Dimension)
		}
		if _, err := l.d.Server.Memory.Add(ctx, t.Tenant, rows); err != nil {
			return err
		}
		n -= len(rows)
	}
	return nil
}

// plainTable makes and fills pgvector's table: PlainRows rows, 1,000 a user, in
// the order in which they would come: everybody at once.
func (l *lab) plainTable(ctx context.Context, dimension int) (name string, users int, err error) {
	name = fmt.Sprintf("plain_%d", dimension)
	users = max(1, l.c.PlainRows/1000)
	_, err = l.plain.Exec(ctx, fmt.Sprintf(`CREATE TABLE %s (user_no int NOT NULL, id bigint NOT NULL, body text NOT NULL, embedding vector(%d) NOT NULL)`, name, dimension))
	if err != nil {
		return name, users, err
	}
	i := 0
	_, err = l.plain.CopyFrom(ctx, pgx.Identifier{name}, []string{"user_no", "id", "body", "embedding"}, pgx.CopyFromFunc(func() ([]any, error) {
		if i == users*1000 {
			return nil, nil
		}
		i++
		return []any{int32(i % users), int64(i), text, pgvector.NewVector(l.vector(dimension))}, nil
	}))
	if err != nil {
		return name, users, err
	}
	for _, sql := range []string{`CREATE INDEX ON %s (user_no)`, `VACUUM ANALYZE %s`} {
		if _, err = l.plain.Exec(ctx, fmt.Sprintf(sql, name)); err != nil {
			return name, users, err
		}
	}
	return name, users, nil
}
