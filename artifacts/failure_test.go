package artifacts_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
)

// Elsewhere a user's own artifacts are kept under a session called "user", where
// those of a real session of that name are too.
func TestFailure_ASessionCalledUserCollidesWithTheUsersOwn(t *testing.T) {
	b := setup(t).smallChunks()
	own, called := session(anna, ""), session(anna, "user")
	b.save(own, "user:face", []byte("the user's"))
	b.save(called, "face", []byte("the session's"))
	b.save(called, "user:face", []byte("the user's again"))
	b.holds(own, "user:face", 0, []byte("the user's"))
	b.holds(called, "face", 0, []byte("the session's"))
	if diff := cmp.Diff([]string{"user:face"}, b.names(own)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"user:face", "face"}, b.names(called)); diff != "" {
		t.Error(diff)
	}
	if _, err := b.a.Delete(t.Context(), b.tenant, called, "face", artifacts.All); err != nil {
		t.Error(err)
	}
	b.holds(own, "user:face", 1, []byte("the user's again"))
	b.save(called, "face", []byte("the session's"))
	b.bury(called, 2)
	b.deleteAll([]memd.Contribution{b.numbers(called)}, 10)
	b.gone(called, "face", 0)
	b.holds(own, "user:face", 0, []byte("the user's"))
}

// Artifacts stranded because their session went first: they are found without
// it, by their own columns.
func TestFailure_ArtifactsStrandedBecauseTheirSessionWentFirst(t *testing.T) {
	b := setup(t).smallChunks()
	b.save(anna, "letter", noise(1, 300))
	target := []memd.Contribution{b.numbers(anna)}
	b.bury(anna, 2)
	b.superuser(`DELETE FROM memd.sessions WHERE subject_no = $1 AND session_no = $2`, target[0].Subject, target[0].Session)
	if got := b.counts(target); got.ArtifactChunks != 5 {
		t.Errorf("counted %+v", got)
	}
	b.deleteAll(target, 2)
	if got := b.total(); got != (artifacts.Counts{}) {
		t.Errorf("%+v is left", got)
	}
}
