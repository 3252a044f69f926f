package pg

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"forgettable.dev/memd"
)

// Times of a Listen: how often a silent connection is probed, and the bounds
// of the wait before the next attempt to connect.
const (
	listenProbe      = 15 * time.Second
	listenBackoffMin = 50 * time.Millisecond
	listenBackoffMax = 5 * time.Second
)

// Listen calls handle for each notification on channels until ctx ends, then
// returns ctx's error. It uses one connection beside the pool's and connects
// again, with growing pauses, whenever that breaks. An error ends it only while
// it has never listened and the error does not pass by itself: what worked once
// is tried for ever. It calls onReady each time
// that it has begun to listen, because what was notified before is lost: the
// caller then looks at the state itself. Both functions are called from one
// goroutine, so they delay what follows.
func Listen(ctx context.Context, p *Pool, channels []string, onReady func(), handle func(channel, payload string)) error {
	pause := listenBackoffMin
	listened := false
	for {
		started := time.Now()
		err := listenOnce(ctx, p, channels, func() { listened = true; onReady() }, handle)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if SQLState(err) != "" && !memd.Transient(Classify(err)) && !listened {
			return Classify(err) // A wrong channel or role does not mend itself.
		}
		if time.Since(started) > listenBackoffMax {
			pause = listenBackoffMin
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		pause = min(2*pause, listenBackoffMax)
	}
}

// listenOnce listens until its connection breaks.
func listenOnce(ctx context.Context, p *Pool, channels []string, onReady func(), handle func(channel, payload string)) error {
	pc := p.raw.Config()
	conn, err := pgx.ConnectConfig(ctx, pc.ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		_ = conn.Close(ctx) // It is broken, or nobody needs it any more.
	}()
	if err := pc.AfterConnect(ctx, conn); err != nil {
		return err
	}
	for _, c := range channels {
		if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{c}.Sanitize()); err != nil {
			return fmt.Errorf("listening: %w", err)
		}
	}
	onReady()
	for {
		n, err := waitForNotification(ctx, conn)
		if err != nil {
			return err
		}
		if n != nil {
			handle(n.Channel, n.Payload)
		}
	}
}

// waitForNotification returns nil, nil when nothing came for a while and the
// connection answers. Without the probe a peer that vanished would look like
// one that has nothing to say.
func waitForNotification(ctx context.Context, conn *pgx.Conn) (*pgconn.Notification, error) {
	limited, cancel := context.WithTimeout(ctx, listenProbe)
	defer cancel()
	n, err := conn.WaitForNotification(limited)
	if err == nil {
		return n, nil
	}
	if ctx.Err() != nil || limited.Err() == nil {
		return nil, err
	}
	probe, cancel := context.WithTimeout(ctx, listenProbe)
	defer cancel()
	return nil, conn.Ping(probe)
}
