package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/auth"
)

// residentMemory measures what a row takes in a server that has searched it:
// the heap, not our own accounting.
func residentMemory(ctx context.Context, l *lab) ([]Figure, error) {
	const users = 20
	t, err := l.tenant(ctx, "resident", addDimension)
	if err != nil {
		return nil, err
	}
	scopes := make([]memd.Scope, users)
	for i := range scopes {
		scopes[i] = l.newUser()
		if err := l.fill(ctx, t, scopes[i], subjectRows); err != nil {
			return nil, err
		}
	}
	before := heap()
	for _, u := range scopes {
		if err := t.search(ctx, u, l.vector(addDimension)); err != nil {
			return nil, err
		}
	}
	row := float64(heap()-before) / (users * subjectRows)
	floor := float64(4*addDimension + len(text) + sealedExtra)
	f := against("a resident row, 384-d", "bytes", row, "its float32 vector and sealed text", floor,
		"at most 1.3 times the peer", func(r float64) bool { return r <= 1.3 })
	return []Figure{f}, nil
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// imports measures memd import, client, network and embedder included.
func imports(ctx context.Context, l *lab) ([]Figure, error) {
	var rates []float64
	turns := 0
	for i := range l.c.Runs {
		t, err := l.d.CreateTenant(ctx, fmt.Sprintf("import-%d", i), "import")
		if err != nil {
			return nil, err
		}
		key, err := l.d.CreateKey(ctx, t, "bench", auth.Agent)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		if turns, err = l.c.Import(ctx, "http://"+l.d.Address, key, l.c.Conversations); err != nil {
			return nil, err
		}
		rates = append(rates, float64(turns)/time.Since(began).Seconds())
	}
	rate := median(rates)
	return []Figure{{
		Name: fmt.Sprintf("memd import of %d turns", turns), Unit: "turns/s", Ours: rate,
		Must: "at least 5,000 turns/s", Met: rate >= 5000,
	}}, nil
}
