package export_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/export"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

var errKilled = errors.New("killed")

// killed is a store in which the worker dies at its nth write, leaving what a
// process that is killed leaves: half a file, or a whole one that nobody noted.
type killed struct {
	export.Store
	left  int
	whole bool
}

// Write implements export.Store.
func (s *killed) Write(ctx context.Context, name uuid.UUID, write func(io.Writer) error) error {
	if s.left--; s.left > 0 {
		return s.Store.Write(ctx, name, write)
	}
	if s.left < 0 {
		return errKilled
	}
	half := write
	if !s.whole {
		half = func(w io.Writer) error { _, err := w.Write([]byte("half a file")); return err }
	}
	if err := s.Store.Write(ctx, name, half); err != nil {
		return err
	}
	return errKilled
}

const sqlObjects = `SELECT part, object FROM memd.export_parts WHERE tenant_no = @tenant AND export_id = @id ORDER BY part`

func (b *bundle) objects(e export.Export) map[int]uuid.UUID {
	b.t.Helper()
	out := map[int]uuid.UUID{}
	err := b.srv.Pool.With(b.t.Context(), func(db pg.DB) error {
		rows, err := db.Query(b.t.Context(), sqlObjects, pg.Args{"tenant": e.Tenant, "id": e.ID})
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var n int
			var id uuid.UUID
			if err := rows.Scan(&n, &id); err != nil {
				return err
			}
			out[n] = id
		}
		return rows.Err()
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// Killed at any file, half written or whole and not noted yet, an export goes on
// behind the last part that counts, and leaves nothing behind.
func TestMake_Resumes(t *testing.T) {
	b := setup(t)
	b.move(tenants.StateSuspended, tenants.StateExporting)
	for at := 1; at <= 4; at++ {
		for _, whole := range []bool{false, true} {
			e := b.start(memd.Scope{})
			err := b.worker(&killed{Store: b.store, left: at, whole: whole}).Make(t.Context(), e.Tenant, e.ID)
			if !errors.Is(err, errKilled) {
				t.Fatalf("killed at %d: %v", at, err)
			}
			before := b.objects(e)
			if len(before) != at-1 {
				t.Fatalf("killed at %d, %d parts count", at, len(before))
			}
			w := b.worker(b.store)
			b.make(w, e)
			after := b.objects(e)
			for n, object := range before {
				if after[n] != object {
					t.Errorf("killed at %d, part %d was made anew", at, n)
				}
			}
			if _, r := b.open(b.download(e)); r.Manifest.Totals.Subjects != 3 || len(r.Manifest.Parts) != 3 {
				t.Errorf("killed at %d: %+v", at, r.Manifest)
			}
			b.end(e)
			if _, err := w.Sweep(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			b.empty()
		}
	}
}

func (b *bundle) end(e export.Export) {
	b.t.Helper()
	err := b.srv.Pool.With(b.t.Context(), func(db pg.DB) error {
		_, err := export.End(b.t.Context(), db, e.Tenant, e.ID, memd.SystemClock{}.Now())
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// What no row knows, as after a restore, is swept; what is being written has its
// row and stays.
func TestSweepOrphans(t *testing.T) {
	b := setup(t)
	w := b.worker(b.store)
	e := b.start(memd.Scope{App: app, UserID: "anna"})
	b.make(w, e)
	if err := b.store.Write(t.Context(), uuid.New(), func(w io.Writer) error { _, err := io.Copy(w, bytes.NewReader([]byte("lost"))); return err }); err != nil {
		t.Fatal(err)
	}
	if err := w.SweepOrphans(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.open(b.download(e))
	b.end(e)
	if _, err := w.Sweep(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	b.empty()
}
