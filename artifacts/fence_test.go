package artifacts_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tombstones"
)

func TestFence_RefusesTheNextChunkAndTheEnd(t *testing.T) {
	b := setup(t).smallChunks()
	for name, c := range map[string]struct {
		raise func(o artifacts.Owner)
		want  error
		rest  int
	}{
		"a fence, with chunks to come":             {b.raiseFence, memd.ErrFenced, 640},
		"a fence, with nothing to come":            {b.raiseFence, memd.ErrFenced, 0},
		"a forgotten session":                      {func(o artifacts.Owner) { b.bury(o, 1) }, memd.ErrSessionForgotten, 640},
		"a session whose content is deleted":       {func(o artifacts.Owner) { b.bury(o, 2) }, memd.ErrSessionForgotten, 640},
		"a session whose content is deleted, end":  {func(o artifacts.Owner) { b.bury(o, 2) }, memd.ErrSessionForgotten, 0},
		"a fence that is lifted before it goes on": {func(o artifacts.Owner) { b.raiseFence(o); b.lift(o) }, memd.ErrSourceTimeRequired, 640},
	} {
		t.Run(name, func(t *testing.T) {
			b.t = t
			anna := artifacts.Owner{App: "pharmacy", UserID: name, SessionID: "monday"}
			s, ended := b.start(anna, "letter")
			s.rest = bytes.NewReader(noise(4, c.rest))
			c.raise(anna)
			s.end <- nil
			if err := <-ended; !errors.Is(err, c.want) {
				t.Errorf("Save: %v", err)
			}
			if got := b.total(); got != (artifacts.Counts{}) {
				t.Errorf("it left %+v", got)
			}
		})
	}
}

func (b *bundle) lift(o artifacts.Owner) {
	b.t.Helper()
	ref := b.keys().UserRef(o.App, o.UserID)
	b.superuser(`UPDATE memd.fences SET state = 3, erased_before = now() WHERE user_ref = $1`, ref[:])
}

func TestFence_ReadersFindNothing(t *testing.T) {
	b := setup(t).smallChunks()
	tuesday := session(anna, "tuesday")
	b.save(anna, "letter", noise(1, 1000))
	b.save(tuesday, "letter", noise(2, 1000))
	b.save(anna, "user:face", noise(3, 1000))
	reading := func(o artifacts.Owner, name string) *artifacts.Content {
		t.Helper()
		c, err := b.a.Load(t.Context(), b.tenant, o, name, 0, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		return c
	}
	ends := func(c *artifacts.Content) {
		t.Helper()
		if _, err := c.Copy(t.Context(), &bytes.Buffer{}); !errors.Is(err, memd.ErrNotFound) {
			t.Errorf("reading on: %v", err)
		}
	}
	on := reading(anna, "letter")
	b.bury(anna, 2)
	ends(on)
	b.gone(anna, "letter", 0)
	if got := b.names(anna); len(got) != 1 || got[0] != "user:face" {
		t.Errorf("names of a session whose content is deleted: %v", got)
	}
	if n, err := b.a.Delete(t.Context(), b.tenant, anna, "letter", artifacts.All); n != 0 || err != nil {
		t.Errorf("deleting from it: %d, %v", n, err)
	}
	b.holds(tuesday, "letter", 0, noise(2, 1000))
	b.holds(anna, "user:face", 0, noise(3, 1000)) // the user's, whatever becomes of the session

	on = reading(tuesday, "letter")
	b.raiseFence(anna)
	ends(on)
	b.gone(tuesday, "letter", 0)
	b.gone(anna, "user:face", artifacts.Latest)
	page, err := b.a.List(t.Context(), b.tenant, tuesday, 10, "")
	if err != nil || len(page.Names) != 0 || !page.Fenced {
		t.Errorf("names: %+v, %v", page, err)
	}
	if got := b.versions(tuesday, "letter"); len(got) != 0 {
		t.Errorf("versions: %v", got)
	}
	if _, err := b.a.Delete(t.Context(), b.tenant, tuesday, "letter", artifacts.All); !errors.Is(err, memd.ErrFenced) {
		t.Errorf("Delete: %v", err)
	}
}

// By hand-written SQL as the application's role, into each table.
func TestGuard_RefusesSQLPastAFence(t *testing.T) {
	b := setup(t).smallChunks()
	b.save(anna, "letter", noise(1, 100))
	bernd := artifacts.Owner{App: anna.App, UserID: "bernd", SessionID: "monday"}
	b.save(bernd, "letter", noise(1, 100))
	c := b.numbers(anna)
	owner := fmt.Sprintf("%d, %d, %d", b.tenant.No, c.Subject, c.Session)
	where := fmt.Sprintf("tenant_no = %d AND subject_no = %d", b.tenant.No, c.Subject)
	statements := []string{
		`INSERT INTO memd.artifacts (tenant_no, subject_no, session_no, artifact_id, name_digest, sealed_name, month, created_at)
			VALUES (` + owner + `, gen_random_uuid(), substr(sha256(random()::text::bytea), 1, 16), '\x00', 1, now())`,
		`UPDATE memd.artifacts SET last_version = last_version + 1 WHERE ` + where,
		`INSERT INTO memd.artifact_versions (tenant_no, subject_no, session_no, version_id, month, created_at, touched_at)
			VALUES (` + owner + `, gen_random_uuid(), 1, now(), now())`,
		`UPDATE memd.artifact_versions SET touched_at = now() WHERE ` + where,
		`INSERT INTO memd.artifact_chunks (tenant_no, subject_no, session_no, version_id, chunk_no, sealed)
			SELECT tenant_no, subject_no, session_no, version_id, 1000 + (random() * 1000000)::int, '\x00' FROM memd.artifact_versions WHERE ` + where + ` LIMIT 1`,
	}
	app := b.DB.Pool(node.AppRole)
	try := func(sql string) string {
		t.Helper()
		err := app.InTx(t.Context(), func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), sql)
			return err
		})
		return pg.SQLState(err)
	}
	for _, sql := range statements {
		if got := try(sql); got != "" {
			t.Errorf("control: %s for %s", got, sql)
		}
	}
	// A chunk under a bystander's numbers cannot be part of anna's version.
	stranger := b.numbers(bernd)
	if got := try(fmt.Sprintf(`INSERT INTO memd.artifact_chunks (tenant_no, subject_no, session_no, version_id, chunk_no, sealed)
		SELECT tenant_no, %d, %d, version_id, 77, '\x00' FROM memd.artifact_versions WHERE %s LIMIT 1`, stranger.Subject, stranger.Session, where)); got != "23503" {
		t.Errorf("a chunk under other numbers: %q", got)
	}
	for _, sql := range []string{
		`UPDATE memd.artifact_versions SET subject_no = 1 WHERE ` + where, `UPDATE memd.artifact_chunks SET sealed = '\x00' WHERE ` + where,
		`UPDATE memd.artifacts SET sealed_name = '\x00' WHERE ` + where, `UPDATE memd.artifact_versions SET source_time = now() WHERE ` + where,
		`INSERT INTO memd.artifact_versions (tenant_no, subject_no, session_no, version_id, artifact_id, version, month, created_at, touched_at)
			VALUES (` + owner + `, gen_random_uuid(), gen_random_uuid(), 0, 1, now(), now())`,
	} {
		if got := try(sql); got != "42501" {
			t.Errorf("%q for %s", got, sql)
		}
	}
	b.bury(anna, 2)
	for _, sql := range statements {
		if got := try(sql); got != "MD002" {
			t.Errorf("%q after the content was deleted, for %s", got, sql)
		}
	}
	b.raiseFence(anna)
	for _, sql := range statements {
		if got := try(sql); got != "MD001" {
			t.Errorf("%q past a fence, for %s", got, sql)
		}
	}
}

// TestRace_FenceAgainstSaves raises fences against saves that are in the middle
// of their chunks. Once the fence has drained and the rows are deleted, nothing
// may come. The control has the same race without the triggers, and has to find
// survivors.
func TestRace_FenceAgainstSaves(t *testing.T) {
	b := setup(t).smallChunks()
	b.a = b.a.WithChunks(64, 1)
	const rounds = 12
	for i := range rounds {
		if left := b.race(fmt.Sprintf("user %d", i)); left != (artifacts.Counts{}) {
			t.Fatalf("round %d: %+v survived a fence", i, left)
		}
	}
	for _, table := range []string{"artifacts", "artifact_versions", "artifact_chunks"} {
		b.superuser(`ALTER TABLE memd.` + table + ` DISABLE TRIGGER guard_insert`)
		if table != "artifact_chunks" {
			b.superuser(`ALTER TABLE memd.` + table + ` DISABLE TRIGGER guard_update`)
		}
	}
	left := b.race("control")
	t.Logf("without the triggers %+v survived", left)
	if left == (artifacts.Counts{}) {
		t.Error("the race finds nothing without the triggers either")
	}
}

// race is one fence against many saves, one of which has written and not
// committed. It returns what there is once the fence was raised and the rows
// were deleted.
func (b *bundle) race(user string) artifacts.Counts {
	b.t.Helper()
	o := artifacts.Owner{App: "pharmacy", UserID: user, SessionID: "monday"}
	b.save(o, "letter", nil)
	target := []memd.Contribution{{Subject: b.numbers(o).Subject}}
	ctx, cancel := context.WithTimeout(b.ctx(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			name := fmt.Sprintf("file %d", i)
			if i%2 == 0 {
				name = "user:" + name
			}
			for n := 0; n < 8; n++ {
				_, err := b.a.Save(ctx, b.tenant, o, name, artifacts.File{}, bytes.NewReader(noise(uint64(i), 64*8)))
				if errors.Is(err, memd.ErrFenced) {
					return
				}
			}
		}()
	}
	// By hand too, as the application's role: what a save writes it also takes
	// away again when it is refused.
	app := b.DB.Pool(node.AppRole)
	sql := fmt.Sprintf(`INSERT INTO memd.artifact_versions (tenant_no, subject_no, session_no, version_id, month, created_at, touched_at)
		VALUES (%d, %d, %d, gen_random_uuid(), 1, now(), now())`, b.tenant.No, b.numbers(o).Subject, b.numbers(o).Session)
	for range 3 {
		wg.Go(func() {
			var err error
			for n := 0; n < 500 && err == nil; n++ {
				err = app.With(ctx, func(db pg.DB) error {
					_, err := db.Exec(ctx, sql)
					return err
				})
			}
			if err != nil && !errors.Is(err, memd.ErrFenced) {
				b.t.Errorf("writing by hand: %v", err)
			}
		})
	}
	pool := b.Worker.Pool
	request, ref := uuid.New(), b.keys().UserRef(o.App, o.UserID)
	for b.counts(target).ArtifactChunks < 20 && ctx.Err() == nil {
	}
	late, err := b.DB.Straggle(ctx, node.AppRole, sql)
	if err != nil {
		b.t.Fatal(err)
	}
	err = late.Outlast(ctx, func() error {
		err := tombstones.Raise(ctx, pool, b.tenant.No, ref, request, b.clock.Now(),
			func(context.Context, pg.DB) error { return nil },
			func(context.Context, pg.DB) ([]tombstones.Hide, error) { return nil, nil })
		if err == nil {
			b.deleteAll(target, 50)
		}
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	wg.Wait()
	return b.counts(target)
}

// counts asks the tables of a target, as the worker.
func (b *bundle) counts(target []memd.Contribution) artifacts.Counts {
	b.t.Helper()
	var c artifacts.Counts
	err := b.Worker.Pool.With(b.ctx(), func(db pg.DB) (err error) {
		c, err = artifacts.Count(b.ctx(), db, b.tenant.No, target)
		return err
	})
	if err != nil {
		b.t.Fatalf("Count: %v", err)
	}
	return c
}

// deleteAll repeats DeleteBatch until it deletes none, and says how often. What
// a writer without a guard keeps from being deleted is left.
func (b *bundle) deleteAll(target []memd.Contribution, limit int) (batches int) {
	b.t.Helper()
	for {
		var n int64
		err := b.Worker.Pool.InTx(b.ctx(), func(tx pgx.Tx) (err error) {
			n, err = artifacts.DeleteBatch(b.ctx(), tx, b.tenant.No, target, limit)
			return err
		})
		if pg.SQLState(err) == "23503" {
			return batches
		}
		if err != nil {
			b.t.Fatalf("DeleteBatch: %v", err)
		}
		if n > int64(limit) {
			b.t.Fatalf("a batch of %d deleted %d", limit, n)
		}
		if n == 0 {
			return batches
		}
		batches++
	}
}
