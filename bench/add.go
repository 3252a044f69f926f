package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/memory"
)

const (
	addDimension = 384
	addSamples   = 400
	warmAdds     = 20
	writers      = 32
	writesEach   = 40
	// sealedExtra is what sealing adds to a value: nonce, flag and tag.
	sealedExtra = 12 + 1 + 16
)

func adds(ctx context.Context, l *lab) ([]Figure, error) {
	t, err := l.tenant(ctx, "adds", addDimension)
	if err != nil {
		return nil, err
	}
	_, err = l.plain.Exec(ctx, `CREATE TABLE bare (tenant_no bigint NOT NULL, id uuid NOT NULL, owner_no bigint NOT NULL,
		created_at timestamptz NOT NULL, body bytea NOT NULL, vector bytea NOT NULL, PRIMARY KEY (tenant_no, id))`)
	if err != nil {
		return nil, err
	}
	user := l.newUser()
	ours := func(int) error {
		_, err := l.d.Server.Memory.Add(ctx, t.Tenant, []memory.Row{l.row(user, addDimension)})
		return err
	}
	body := make([]byte, len(text)+sealedExtra)
	vector := make([]byte, 4*addDimension+4+sealedExtra)
	bare := func(int) error {
		_, err := l.plain.Exec(ctx, `INSERT INTO bare VALUES ($1, $2, $3, $4, $5, $6)`,
			int64(1), uuid.New(), int64(1), time.Now(), body, vector)
		return err
	}
	one, plain, err := l.turns(warmAdds, addSamples, ours, bare)
	if err != nil {
		return nil, err
	}
	out := []Figure{against("add one row with its vector, durable, p50", "ms", one, "bare INSERT", plain,
		"at most 2 times the peer", func(r float64) bool { return r <= 2 })}

	users := make([]memd.Scope, writers)
	for i := range users {
		users[i] = l.newUser()
	}
	spread := func(w int) memory.Row { return l.row(users[w], addDimension) }
	for _, s := range []struct {
		name string
		row  func(w int) memory.Row
	}{
		{"add to one user, 32 clients, p95", func(int) memory.Row { return l.row(user, addDimension) }},
		{"add to one shared scope, 32 clients, p95", func(w int) memory.Row {
			r := l.row(memd.Scope{App: "bench"}, addDimension)
			r.SessionID, r.Contributor = "", &memory.Contributor{UserID: users[w].UserID, SessionID: "s"}
			return r
		}},
	} {
		a, b, err := l.alternate(
			func() (float64, error) { return l.crowd(ctx, t, s.row) }, func() (float64, error) { return l.crowd(ctx, t, spread) })
		if err != nil {
			return out, err
		}
		out = append(out, against(s.name, "ms", a, "32 users", b, "at most 3 times the peer", func(r float64) bool { return r <= 3 }))
	}
	return out, nil
}

// crowd has 32 clients add rows at once and returns the 95th percentile.
func (l *lab) crowd(ctx context.Context, t *tenant, row func(w int) memory.Row) (float64, error) {
	rows := make([]memory.Row, writers*writesEach) // made before, because the lab's numbers are one writer's
	for i := range rows {
		rows[i] = row(i % writers)
	}
	took := make([]float64, len(rows))
	var failure atomic.Value
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := w; i < len(rows); i += writers {
				began := time.Now()
				if _, err := l.d.Server.Memory.Add(ctx, t.Tenant, rows[i:i+1]); err != nil {
					failure.Store(err)
					return
				}
				took[i] = float64(time.Since(began)) / 1e6
			}
		})
	}
	group.Wait()
	if err, ok := failure.Load().(error); ok {
		return 0, err
	}
	return quantile(took, 0.95), nil
}
