package pg_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
)

const canary = "zinnober-axolotl"

func TestClassify_MapsStates(t *testing.T) {
	for code, want := range map[string]error{
		"MD001": memd.ErrFenced,
		"MD002": memd.ErrSessionForgotten,
		"MD003": memd.ErrMemoryDeleted,
		"MD004": memd.ErrTenantInactive,
		"MD005": memd.ErrErasedBefore,
		"MD006": memd.ErrStale,
		"MD009": memd.ErrSourceGone,
		"MD010": memd.ErrMonthExpired,
		"MD030": memd.ErrMonthKept,
		"MD011": memd.ErrInvalid,
		"MD012": memd.ErrSourceTimeRequired,
		"MD013": memd.ErrNotApproved,
		"MD014": memd.ErrExportNotReady,
		"22021": memd.ErrInvalid,
		"40P01": memd.ErrStale,
		"53300": memd.ErrDatabaseBusy,
		"53100": memd.ErrDatabaseUnavailable,
		"55P03": memd.ErrDatabaseUnavailable,
		"57014": memd.ErrDatabaseUnavailable,
		"57P01": memd.ErrDatabaseUnavailable,
		"08006": memd.ErrDatabaseUnavailable,
		"25P03": memd.ErrDatabaseUnavailable,
	} {
		err := pg.Classify(fmt.Errorf("adding: %w", &pgconn.PgError{Code: code, Message: canary, Detail: canary, Hint: canary}))
		if !errors.Is(err, want) {
			t.Errorf("%s is %v, want %v", code, err, want)
		}
		if !strings.HasPrefix(err.Error(), "adding: ") || strings.Contains(err.Error(), canary) || pg.SQLState(err) != code {
			t.Errorf("%s reads %q", code, err)
		}
		if again := pg.Classify(fmt.Errorf("more: %w", err)); !errors.Is(again, want) || pg.SQLState(again) != code {
			t.Errorf("%s classified twice is %v", code, again)
		}
	}
	for _, code := range []string{"MD007", "MD008", "23505", "22P02", "42P01", ""} {
		err := pg.Classify(&pgconn.PgError{Code: code, Message: canary})
		if memd.Transient(err) || errors.Is(err, memd.ErrInvalid) || strings.Contains(err.Error(), canary) {
			t.Errorf("%s is %v", code, err)
		}
	}
}

func TestClassify_LeavesOtherErrorsAlone(t *testing.T) {
	for _, err := range []error{
		nil, pgx.ErrNoRows, context.Canceled, memd.ErrShredded,
		fmt.Errorf("%w: asking: %v", memd.ErrKeyUnavailable, io.ErrUnexpectedEOF),
		&memd.InvalidError{Field: "user", Problem: "is empty"},
	} {
		if got := pg.Classify(err); got != err { //nolint:errorlint // The very same value.
			t.Errorf("%v became %v", err, got)
		}
	}
}

// TestClassify_NoContent asks the real server and driver for each kind of error
// that quotes what it was given.
func TestClassify_NoContent(t *testing.T) {
	p := pgtest.Pool(t)
	cases := map[string]func(ctx context.Context, db pg.DB) error{
		"literal of the wrong type": func(ctx context.Context, db pg.DB) error {
			_, err := db.Exec(ctx, `SELECT '`+canary+`'::int`)
			return err
		},
		"duplicate key": func(ctx context.Context, db pg.DB) error {
			_, err := db.Exec(ctx, `CREATE TABLE public.t (a text PRIMARY KEY); INSERT INTO public.t VALUES ('`+canary+`'), ('`+canary+`')`)
			return err
		},
		"raised by a function": func(ctx context.Context, db pg.DB) error {
			_, err := db.Exec(ctx, `DO $$ BEGIN RAISE EXCEPTION '`+canary+`'; END $$`)
			return err
		},
		"argument that cannot be encoded": func(ctx context.Context, db pg.DB) error {
			_, err := db.Exec(ctx, `SELECT $1::int`, canary)
			return err
		},
		"column that cannot be scanned": func(ctx context.Context, db pg.DB) error {
			var n int
			return db.QueryRow(ctx, `SELECT '`+canary+`'::text`).Scan(&n)
		},
		"syntax": func(ctx context.Context, db pg.DB) error {
			_, err := db.Exec(ctx, `SELECT FROM '`+canary+`'`)
			return err
		},
		"batch": func(ctx context.Context, db pg.DB) error {
			b := &pgx.Batch{}
			b.Queue(`SELECT $1::text::int`, canary)
			return db.SendBatch(ctx, b).Close()
		},
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			var raw error
			err := p.With(t.Context(), func(db pg.DB) error {
				raw = run(t.Context(), db)
				return fmt.Errorf("doing it: %w", raw)
			})
			// The positive control: the driver's own error does quote.
			if raw == nil || name != "column that cannot be scanned" && name != "duplicate key" && !strings.Contains(raw.Error(), canary) {
				t.Fatalf("the driver says %v", raw)
			}
			if !strings.HasPrefix(err.Error(), "doing it: ") {
				t.Errorf("lost what the caller was doing: %v", err)
			}
			for e := err; e != nil; {
				if strings.Contains(e.Error(), canary) || strings.Contains(fmt.Sprintf("%+v", e), canary) {
					t.Errorf("quotes content: %v", e)
				}
				u, ok := e.(interface{ Unwrap() []error })
				if !ok {
					break
				}
				e = u.Unwrap()[0]
			}
		})
	}
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"postgres://me:secret@db:5433/memd?sslmode=disable": "me@db:5433/memd",
		"user=me password=secret host=db dbname=memd":       "me@db:5432/memd",
		"postgres://me:sec ret@[/":                          "(not a connection string)",
	} {
		if diff := cmp.Diff(want, pg.Redact(in)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
	}
	if _, err := pg.Open(t.Context(), pg.Config{URL: "postgres://me:secret@[/"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("opening a malformed URL: %v", err)
	}
}
