package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"forgettable.dev/memd/internal/dev"
)

// devCmd runs everything in one process.
type devCmd struct {
	logFlags
	embeddingFlags
	Dir    string `default:".memd" help:"Folder of the database, the KMS emulator's keys and the ledger."`
	Listen string `default:"127.0.0.1:8787" help:"Address of the API. It must be of this machine: 127.0.0.1, [::1] or localhost."`
}

// curlExample is a first call and a second that work as they stand, once the
// line above them has set the address and the key. The README has the same.
const curlExample = `  curl -s $MEMD_URL/memd.v1.MemoryService/Add \
    -H 'Content-Type: application/json' -H "Authorization: Bearer $MEMD_API_KEY" \
    -d '{"rows":[{"scope":{"user":{"app":"support","userId":"ada@example.org"}},"kind":"KIND_RAW","text":"My daughter has asthma."}]}'
  curl -s $MEMD_URL/memd.v1.MemoryService/Search \
    -H 'Content-Type: application/json' -H "Authorization: Bearer $MEMD_API_KEY" \
    -d '{"scope":{"user":{"app":"support","userId":"ada@example.org"}},"text":"asthma"}'
`

func (c *devCmd) Run(ctx context.Context, con *console) (err error) {
	began := time.Now()
	noCoreDumps()
	tuneGarbage(con.Getenv, 0)
	embedding, err := c.config(con.Getenv)
	if err != nil {
		return err
	}
	spans, err := tracer(ctx, con.Getenv)
	if err != nil {
		return err
	}
	cfg := dev.Config{Dir: c.Dir, Listen: c.Listen, Logger: c.logger(con.Stderr), Embed: embedding}
	if spans != nil {
		cfg.Tracer = trace.TracerProvider(spans)
		defer func() { err = errors.Join(err, spans.Shutdown(context.WithoutCancel(ctx))) }()
	}
	d, err := dev.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	keys, err := d.Setup(ctx)
	if err != nil {
		return err
	}
	url := "http://" + d.Address
	fmt.Fprintf(con.Stdout, "memd is ready at %s after %s, with its data in %s.\n", url, time.Since(began).Round(10*time.Millisecond), c.Dir)
	if keys != nil {
		fmt.Fprintf(con.Stdout, "\nShown once; memd keeps only digests of them:\n")
		fmt.Fprintf(con.Stdout, "  API key of tenant %s, to store, search and forget:  %s\n", dev.Tenant, keys.Agent)
		fmt.Fprintf(con.Stdout, "  API key of the operator, for tenants and API keys:  %s\n", keys.Operator)
		fmt.Fprintf(con.Stdout, "\nTry it:\n  export MEMD_URL=%s MEMD_API_KEY=%s\n"+curlExample, url, keys.Agent)
		fmt.Fprintf(con.Stdout, "Or from this command line:\n  memd search --app support --user ada@example.org asthma\n")
	}
	fmt.Fprintln(con.Stdout, "\nStop it with Ctrl-C.")
	select {
	case <-ctx.Done():
		fmt.Fprintln(con.Stdout, "Stopping.")
	case <-d.Done():
	}
	return d.Close()
}
