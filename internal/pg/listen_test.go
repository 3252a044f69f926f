package pg_test

import (
	"context"
	"errors"
	"testing"
	"time"

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

// A server that takes no connections for a while ends nothing: whoever listens
// would otherwise go deaf in silence.
func TestListen_OutlastsARefusal(t *testing.T) {
	d := pgtest.Database(t)
	owner := d.Pool("")
	exec := func(sql string) {
		t.Helper()
		err := owner.With(t.Context(), func(db pg.DB) error { _, err := db.Exec(t.Context(), sql); return err })
		if err != nil {
			t.Fatal(err)
		}
	}
	exec(`DO $$ BEGIN CREATE ROLE memd_listener LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$`)
	exec(`ALTER ROLE memd_listener CONNECTION LIMIT -1`)
	exec(`DO $$ BEGIN EXECUTE format('GRANT CONNECT ON DATABASE %I TO memd_listener', current_database()); END $$`)
	p := d.Pool("memd_listener")
	ready := make(chan struct{}, 8)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- pg.Listen(ctx, p, []string{"memd_epochs"}, func() { ready <- struct{}{} }, func(string, string) {})
	}()
	<-ready
	exec(`ALTER ROLE memd_listener CONNECTION LIMIT 0`)
	text(t, owner, `SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity
		WHERE datname = current_database() AND usename = 'memd_listener' AND query LIKE 'LISTEN%'`)
	select {
	case <-time.After(300 * time.Millisecond): // several tries
	case err := <-ended:
		t.Fatalf("ended with %v", err)
	}
	exec(`ALTER ROLE memd_listener CONNECTION LIMIT -1`)
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("ended with %v", err)
	}
	cancel()
	<-ended
}
