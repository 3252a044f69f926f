package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/memory"
)

func forgets(ctx context.Context, l *lab) ([]Figure, error) {
	t, err := l.tenant(ctx, "forgets", addDimension)
	if err != nil {
		return nil, err
	}
	// KMS calls first: the tenant's keys are not loaded yet by the server.
	before := l.d.KMS.Calls("Decrypt")
	user := l.newUser()
	if err := l.fill(ctx, t, user, subjectRows); err != nil {
		return nil, err
	}
	for range 500 {
		if err := t.search(ctx, user, l.vector(addDimension)); err != nil {
			return nil, err
		}
	}
	calls := float64(l.d.KMS.Calls("Decrypt") - before)

	var took []float64
	for range l.c.Runs {
		user := l.newUser()
		if err := l.fill(ctx, t, user, subjectRows); err != nil {
			return nil, err
		}
		if err := t.search(ctx, user, l.vector(addDimension)); err != nil {
			return nil, err
		}
		s, err := t.forget(ctx, user, subjectRows)
		if err != nil {
			return nil, err
		}
		took = append(took, s)
	}
	f := bounded("forget a user of 1,000 rows, rotation included", "s", median(took), 0.5)
	f.Note = "mem0 3.3.1 on this kind of machine: 3.7 to 5.3 s, measured elsewhere, and the text stays in its history"
	return []Figure{bounded("KMS calls for one tenant and process, 4 writes and 500 reads", "calls", calls, 1), f}, nil
}

// forget forgets a user over the API and returns seconds.
func (t *tenant) forget(ctx context.Context, user memd.Scope, rows int64) (float64, error) {
	began := time.Now()
	r, err := t.erasure.ForgetUser(ctx, &memdv1.ForgetUserRequest{App: user.App, UserId: user.UserID, RequestId: uuid.NewString()})
	if err != nil {
		return 0, err
	}
	took := time.Since(began).Seconds()
	c := r.GetReport().GetCounts()[0]
	if r.GetReport().GetState() != memdv1.ErasureState_ERASURE_STATE_DONE || c.GetBefore() != rows || c.GetAfter() != 0 {
		return 0, fmt.Errorf("the erasure is %v, with %d rows before and %d after", r.GetReport().GetState(), c.GetBefore(), c.GetAfter())
	}
	return took, nil
}

// million forgets a user of 1,000 rows among 1,000,000 of the tenant's. Vectors
// are short here: what is asked is whether the number of rows matters.
func million(ctx context.Context, l *lab) ([]Figure, error) {
	const dimension, total, lanes = 16, 1_000_000, 4
	t, err := l.tenant(ctx, "million", dimension)
	if err != nil {
		return nil, err
	}
	users := make([]memd.Scope, total/subjectRows)
	for i := range users {
		users[i] = l.newUser()
	}
	rows := make([]memory.Row, memd.MaxBatch)
	for i := range rows {
		rows[i] = l.row(memd.Scope{}, dimension)
	}
	began := time.Now()
	var g errgroup.Group
	for lane := range lanes {
		g.Go(func() error {
			batch := make([]memory.Row, memd.MaxBatch)
			for u := lane; u < len(users); u += lanes {
				for n := subjectRows; n > 0; {
					b := batch[:min(n, len(batch))]
					for i := range b {
						b[i] = rows[i]
						b[i].Scope = users[u]
					}
					if _, err := l.d.Server.Memory.Add(ctx, t.Tenant, b); err != nil {
						return err
					}
					n -= len(b)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	loaded := time.Since(began)
	var took []float64
	for i := range l.c.Runs {
		s, err := t.forget(ctx, users[len(users)/2+i], subjectRows)
		if err != nil {
			return nil, err
		}
		took = append(took, s)
	}
	f := bounded("forget a user of 1,000 rows among 1,000,000", "s", median(took), 1)
	f.Note = fmt.Sprintf("loaded at %.0f rows/s, %d-d", total/loaded.Seconds(), dimension)
	return []Figure{f}, nil
}
