package artifacts_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
)

// forget does what an erasure does to the tables: fence or tombstone, then rows.
func TestDeleteBatch_TakesTheTargetAndNothingElse(t *testing.T) {
	b := setup(t).smallChunks()
	tuesday, bernd := session(anna, "tuesday"), artifacts.Owner{App: anna.App, UserID: "bernd", SessionID: "monday"}
	for _, o := range []artifacts.Owner{anna, tuesday, bernd} {
		b.save(o, "letter", noise(1, 200))
		b.save(o, "letter", noise(2, 10))
		b.save(o, "user:face", noise(3, 100))
	}
	one := b.numbers(anna)
	if got := b.counts([]memd.Contribution{one}); got != (artifacts.Counts{Artifacts: 1, ArtifactVersions: 2, ArtifactChunks: 5}) {
		t.Errorf("a session has %+v", got)
	}
	whole := []memd.Contribution{{Subject: one.Subject}}
	want := artifacts.Counts{Artifacts: 3, ArtifactVersions: 6, ArtifactChunks: 14}
	if got := b.counts(whole); got != want {
		t.Errorf("a user has %+v", got)
	}
	// However often the target names them.
	if got := b.counts([]memd.Contribution{one, {Subject: one.Subject}, one, {Subject: one.Subject}}); got != want {
		t.Errorf("a user named four times has %+v", got)
	}
	for name, none := range map[string][]memd.Contribution{"nothing": nil, "no subject": {{}}, "a stranger": {{Subject: 1<<40 | 999}}} {
		if got := b.counts(none); got != (artifacts.Counts{}) {
			t.Errorf("%s has %+v", name, got)
		}
		b.deleteAll(none, 10)
	}
	if got := b.counts(whole); got != want {
		t.Errorf("an empty target left %+v", got)
	}

	// A session's: its own, not the user's, not another session's.
	b.bury(anna, 2)
	b.deleteAll([]memd.Contribution{one}, 3)
	if got := b.counts([]memd.Contribution{one}); got != (artifacts.Counts{}) {
		t.Errorf("the session kept %+v", got)
	}
	b.holds(tuesday, "letter", 0, noise(1, 200))
	b.holds(tuesday, "user:face", 1, noise(3, 100))

	// The user's: `user:` ones too, and no session is left to list them.
	b.bury(tuesday, 1)
	b.deleteAll([]memd.Contribution{b.numbers(tuesday)}, 100)
	b.superuser(`DELETE FROM memd.sessions WHERE subject_no = $1`, one.Subject)
	b.holds(session(anna, ""), "user:face", 1, noise(3, 100))
	b.raiseFence(anna)
	b.deleteAll(whole, 3)
	b.deleteAll(whole, 3) // again is safe
	if got := b.counts(whole); got != (artifacts.Counts{}) {
		t.Errorf("the user kept %+v", got)
	}
	b.holds(bernd, "letter", 0, noise(1, 200))
	b.holds(bernd, "user:face", 0, noise(3, 100))
}

// What a superuser planted with triggers and foreign keys off is found: rows
// without their parents too.
func TestDeleteBatch_FindsPlantedRows(t *testing.T) {
	b := setup(t).smallChunks()
	b.save(anna, "letter", noise(1, 100))
	c := b.numbers(anna)
	target := []memd.Contribution{{Subject: c.Subject}}
	b.raiseFence(anna)
	b.deleteAll(target, 10)
	owner := fmt.Sprintf("%d, %d, %d", b.tenant.No, c.Subject, memd.OwnScope)
	b.superuser(`SET session_replication_role = replica;
		INSERT INTO memd.artifact_chunks VALUES (` + owner + `, gen_random_uuid(), 3, '\x00');
		INSERT INTO memd.artifact_versions (tenant_no, subject_no, session_no, version_id, artifact_id, version, sealed_info, month, created_at, touched_at)
			VALUES (` + owner + `, gen_random_uuid(), gen_random_uuid(), 1, '\x00', 1, now(), now());
		INSERT INTO memd.artifacts (tenant_no, subject_no, session_no, artifact_id, name_digest, sealed_name, month, created_at)
			VALUES (` + owner + `, gen_random_uuid(), '\x000102030405060708090a0b0c0d0e0f', '\x00', 1, now())`)
	if got := b.counts(target); got != (artifacts.Counts{Artifacts: 1, ArtifactVersions: 1, ArtifactChunks: 1}) {
		t.Errorf("planted three rows and found %+v", got)
	}
	b.deleteAll(target, 10)
	if got := b.counts(target); got != (artifacts.Counts{}) {
		t.Errorf("%+v is left", got)
	}
}

func TestDeleteBatch_ManySmallAndOneLarge(t *testing.T) {
	b := setup(t)
	for i := range 120 {
		b.save(session(anna, fmt.Sprint(i%40)), fmt.Sprintf("file %d", i), noise(uint64(i), 16<<10))
	}
	if _, err := b.a.Save(t.Context(), b.tenant, anna, "film", artifacts.File{}, io.LimitReader(source(1), 64<<20)); err != nil {
		t.Fatal(err)
	}
	target := []memd.Contribution{{Subject: b.numbers(anna).Subject}}
	if got := b.counts(target); got != (artifacts.Counts{Artifacts: 121, ArtifactVersions: 121, ArtifactChunks: 120 + 256}) {
		t.Fatalf("%+v", got)
	}
	b.raiseFence(anna)
	start := time.Now()
	batches := b.deleteAll(target, 128)
	t.Logf("121 artifacts of 66 MiB went in %d batches of at most 128 rows, %v", batches, time.Since(start))
	if batches < 3 {
		t.Errorf("%d batches", batches)
	}
	if got := b.total(); got != (artifacts.Counts{}) {
		t.Errorf("%+v is left", got)
	}
}

func TestDeleteTenantBatch_TakesOneTenant(t *testing.T) {
	b := setup(t).smallChunks()
	own := b.tenant
	globex := b.Tenant("globex", b.policy())
	for _, tenant := range []artifacts.Tenant{own, {No: globex.No, Epoch: globex.Epoch}} {
		b.tenant = tenant
		for i := range 5 {
			b.save(artifacts.Owner{App: "a", UserID: fmt.Sprint(i), SessionID: "s"}, "letter", noise(1, 150))
			b.save(artifacts.Owner{App: "a", UserID: fmt.Sprint(i)}, "user:letter", nil)
		}
	}
	other := b.total()
	b.tenant = own
	want := artifacts.Counts{Artifacts: 10, ArtifactVersions: 10, ArtifactChunks: 20}
	if got := b.total(); got != want || other != want {
		t.Fatalf("%+v and %+v", got, other)
	}
	for {
		var n int64
		err := b.Worker.Pool.InTx(t.Context(), func(tx pgx.Tx) (err error) {
			n, err = artifacts.DeleteTenantBatch(t.Context(), tx, own.No, 7)
			return err
		})
		if err != nil || n > 7 {
			t.Fatalf("%d, %v", n, err)
		}
		if n == 0 {
			break
		}
	}
	if got := b.total(); got != (artifacts.Counts{}) {
		t.Errorf("%+v is left", got)
	}
	b.tenant = artifacts.Tenant{No: globex.No, Epoch: globex.Epoch}
	if got := b.total(); got != want {
		t.Errorf("the other tenant has %+v", got)
	}
}

// A user who was once erased says when it was.
func TestSave_AfterAnErasureNeedsASourceTime(t *testing.T) {
	b := setup(t).smallChunks()
	b.save(anna, "letter", noise(1, 100))
	b.ForgetUser(b.srv, b.whole, anna.App, anna.UserID)
	anna := session(anna, "wednesday") // the old one's id is refused for ever
	for name, c := range map[string]struct {
		at   time.Time
		want error
	}{
		"none":       {time.Time{}, memd.ErrSourceTimeRequired},
		"before":     {b.clock.Now().Add(-time.Hour), memd.ErrErasedBefore},
		"afterwards": {b.clock.Now().Add(time.Minute), nil},
	} {
		for _, what := range []string{"letter", "user:letter"} {
			_, err := b.a.Save(t.Context(), b.tenant, anna, what, artifacts.File{SourceTime: c.at}, bytes.NewReader(noise(2, 300)))
			if !errors.Is(err, c.want) {
				t.Errorf("%s, source time %s: %v", what, name, err)
			}
		}
	}
	if diff := cmp.Diff([]int64{0}, b.versions(anna, "letter")); diff != "" {
		t.Error(diff)
	}
	// And it can be deleted again, and saved over.
	if _, err := b.a.Save(t.Context(), b.tenant, anna, "letter", artifacts.File{SourceTime: b.clock.Now().Add(time.Minute)}, bytes.NewReader(nil)); err != nil {
		t.Error(err)
	}
	if n, err := b.a.Delete(t.Context(), b.tenant, anna, "letter", artifacts.All); n != 2 || err != nil {
		t.Errorf("deleted %d, %v", n, err)
	}
}
