package artifacts_test

import (
	"errors"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/internal/pg"
)

func TestSample_FindsKeysThatDoNotCoverTheLiving(t *testing.T) {
	b := setup(t).smallChunks()
	sample := func() error {
		return b.Worker.Pool.With(t.Context(), func(db pg.DB) error { return artifacts.Sample(t.Context(), db, b.keys()) })
	}
	if err := sample(); err != nil {
		t.Errorf("of nothing: %v", err)
	}
	b.save(anna, "letter", noise(1, 100))
	b.save(anna, "user:face", noise(1, 100))
	if err := sample(); err != nil {
		t.Errorf("with everybody's keys: %v", err)
	}
	// Somebody whose keys are gone, although nobody says so.
	b.superuser(`CREATE TABLE a AS SELECT * FROM memd.artifacts; CREATE TABLE v AS SELECT * FROM memd.artifact_versions`)
	b.ForgetUser(b.srv, b.whole, anna.App, anna.UserID)
	if err := sample(); err != nil {
		t.Errorf("after an erasure: %v", err)
	}
	b.superuser(`UPDATE memd.subjects SET retired_at = NULL; UPDATE memd.sessions SET state = 1; DELETE FROM memd.fences; DELETE FROM memd.tombstones;
		SET session_replication_role = replica; TRUNCATE memd.artifacts, memd.artifact_versions, memd.artifact_chunks;
		INSERT INTO memd.artifacts SELECT * FROM a; INSERT INTO memd.artifact_versions SELECT * FROM v`)
	if err := sample(); !errors.Is(err, memd.ErrShredded) {
		t.Errorf("with keys that lack a living user: %v", err)
	}
}
