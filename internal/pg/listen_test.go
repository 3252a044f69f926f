package pg_test

import (
	"context"
	"errors"
	"testing"

	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
)

func TestListen_ReconnectsAndSaysSo(t *testing.T) {
	d := pgtest.Database(t)
	p := d.Pool("memd_app")
	owner := d.Pool("")
	ready := make(chan struct{}, 8)
	heard := make(chan string, 8)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- pg.Listen(ctx, p, []string{"memd_epochs", "memd_work"},
			func() { ready <- struct{}{} },
			func(channel, payload string) { heard <- channel + " " + payload })
	}()
	for _, round := range []string{"1", "2"} {
		<-ready
		text(t, owner, `SELECT pg_notify('memd_epochs', $1)::text`, "7 "+round)
		if got, want := <-heard, "memd_epochs 7 "+round; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		if round == "1" {
			text(t, owner, `SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity
				WHERE datname = current_database() AND usename = 'memd_app' AND query LIKE 'LISTEN%'`)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}
