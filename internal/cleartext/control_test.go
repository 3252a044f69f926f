package cleartext_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"

	"forgettable.dev/memd/internal/dev"
	"forgettable.dev/memd/shred/ledger"
)

// control is a canary that was put somewhere in clear, and all the places where
// the search must find it.
type control struct {
	canary canary
	places []string
}

// database are the places that a row of a table gets to.
var database = []string{"base/", "pg_wal/", "plain.sql", "basebackup/"}

// controls put a canary of its own into every medium that is searched: stored
// without sealing, said in a log, a label, a span, an answer. A search that
// finds nothing proves something only where it finds these.
func (w *world) controls() []control {
	var all []control
	plant := func(put func(word string) error, places ...string) {
		w.t.Helper()
		s, c := word("planted")
		c.name = s
		if err := put(s); err != nil {
			w.t.Fatalf("planting a control in %v: %v", places, err)
		}
		all = append(all, control{c, places})
	}
	v, vector := direction(dimension)
	vector.name = "planted vector"
	plant(func(text string) error { return w.store(text, v) }, database...)
	all = append(all, control{vector, database})
	plant(func(s string) error { return w.line(filepath.Join(w.dir, "memd.log"), s) }, "memd.log")
	// PostgreSQL is told not to log what fails; it logs what is said at its log
	// level.
	plant(func(s string) error { return w.raise(s) }, "postgres.log")
	plant(func(s string) error {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "planted_total", Help: "A control.", ConstLabels: prometheus.Labels{"planted": s}})
		c.Inc()
		return w.registry.Register(c)
	}, "metrics")
	plant(func(s string) error {
		_, span := w.tracer.Tracer("control").Start(context.Background(), "control")
		span.SetAttributes(attribute.String("planted", s))
		span.RecordError(errors.New(s))
		span.End()
		return nil
	}, "traces")
	plant(func(s string) error { w.answers.add(errors.New(s)); return nil }, "answers")
	plant(func(s string) error {
		f, err := ledger.OpenFolder(w.d.Ledger)
		if err != nil {
			return err
		}
		return errors.Join(f.Put(w.t.Context(), "control/1", []byte(s)), f.Close())
	}, "ledger/")
	plant(func(s string) error { return w.line(filepath.Join(w.dir, "memd", "exports", "control"), s) }, "exports/")
	plant(func(s string) error { return w.line(filepath.Join(w.dir, "memd", "kms", "control"), s) }, "kms/")
	return all
}

// store keeps a text and a vector as somebody would who seals nothing.
func (w *world) store(text string, v []float32) error {
	conn, err := pgx.Connect(w.t.Context(), w.d.Cluster.URL(dev.Database, ""))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(w.t.Context()) }()
	for _, sql := range []string{`CREATE TABLE public.control (body text, vector bytea)`, `CHECKPOINT`} {
		if _, err := conn.Exec(w.t.Context(), sql); err != nil {
			return err
		}
	}
	if _, err := conn.Exec(w.t.Context(), `INSERT INTO public.control VALUES ($1, $2)`, text, littleEndian(v)); err != nil {
		return err
	}
	_, err = conn.Exec(w.t.Context(), `CHECKPOINT`)
	return err
}

// raise has the server say something in its log.
func (w *world) raise(s string) error {
	conn, err := pgx.Connect(w.t.Context(), w.d.Cluster.URL(dev.Database, ""))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(w.t.Context()) }()
	_, err = conn.Exec(w.t.Context(), fmt.Sprintf(`DO $$ BEGIN RAISE LOG '%s'; END $$`, s))
	return err
}

func (w *world) line(path, s string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, s)
	return errors.Join(err, f.Close())
}

// unfound returns the places where a control is not found.
func (c control) unfound(where []string) []string {
	var missing []string
	for _, place := range c.places {
		found := false
		for _, path := range where {
			found = found || strings.Contains(path, place)
		}
		if !found {
			missing = append(missing, place)
		}
	}
	return missing
}
