package artifacts_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/memory"
)

// Of somebody who was forgotten and is back nothing comes back, under the same
// names; what is new is theirs, from version 0, when it says that it is from
// after. Their sessions are new ones.
func TestReturned_NothingOfAnEarlierLife(t *testing.T) {
	b := setup(t).smallChunks()
	names := []string{"letter", "user:face"}
	for _, name := range names {
		b.save(anna, name, noise(1, 200))
		b.save(anna, name, noise(2, 200))
	}
	old := time.Now().UTC().Add(-time.Hour)
	if _, err := b.srv.Erasure.ForgetUser(t.Context(), erasure.Caller{Tenant: b.tenant.No}, anna.App, anna.UserID, uuid.New()); err != nil {
		t.Fatal(err)
	}
	anna := session(anna, "tuesday")
	save := func(name string, said time.Time) (artifacts.Version, error) {
		return b.a.Save(t.Context(), b.tenant, anna, name, artifacts.File{SourceTime: said}, bytes.NewReader(noise(3, 200)))
	}
	for _, name := range names {
		b.gone(anna, name, artifacts.Latest)
		if _, err := save(name, time.Time{}); !errors.Is(err, memd.ErrSourceTimeRequired) {
			t.Errorf("%s without a time: %v", name, err)
		}
		if _, err := save(name, old); !errors.Is(err, memd.ErrErasedBefore) {
			t.Errorf("%s from before: %v", name, err)
		}
	}
	if got := b.names(anna); len(got) != 0 {
		t.Errorf("back with %q", got)
	}
	for _, name := range names {
		v, err := save(name, b.clock.Now())
		if err != nil || v.Number != 0 {
			t.Fatalf("%s: version %d, %v", name, v.Number, err)
		}
		b.holds(anna, name, artifacts.Latest, noise(3, 200))
		b.gone(anna, name, 1)
	}
	if got := b.total(); got.Artifacts != 2 || got.ArtifactVersions != 2 {
		t.Errorf("the tables have %+v", got)
	}
}

// A legal hold stops what shreds. What an
// agent deletes for itself shreds nothing, and goes on; the key stays.
func TestHold_LeavesTheAgentsOwnDeletes(t *testing.T) {
	b := setup(t).smallChunks()
	b.save(anna, "letter", noise(1, 200))
	b.save(anna, "user:face", noise(2, 200))
	mt := memory.Tenant{No: b.tenant.No, Epoch: b.tenant.Epoch, Format: memory.FormatFloat32, Dimension: 4, Embedder: "none"}
	scope := memd.Scope{App: anna.App, UserID: anna.UserID}
	added, err := b.srv.Memory.Add(t.Context(), mt, []memory.Row{{Scope: scope, SessionID: anna.SessionID, Kind: memory.KindRaw, Text: "a letter", Vector: []float32{1, 0, 0, 0}}})
	if err != nil {
		t.Fatal(err)
	}
	caller := erasure.Caller{Tenant: b.tenant.No, Wait: new(time.Duration)}
	if _, _, err := b.srv.Erasure.Hold(t.Context(), caller, uuid.New(), anna.App, anna.UserID, "", "a case"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"letter", "user:face"} {
		if n, err := b.a.Delete(t.Context(), b.tenant, anna, name, artifacts.All); n != 1 || err != nil {
			t.Errorf("%s under a hold: deleted %d, %v", name, n, err)
		}
		b.gone(anna, name, artifacts.Latest)
	}
	if _, err := b.srv.Memory.Delete(t.Context(), mt, scope, added[0].ID, false); err != nil {
		t.Errorf("a memory under a hold: %v", err)
	}
	r, err := b.srv.Erasure.DeleteSession(t.Context(), caller, anna.App, anna.UserID, anna.SessionID, false, uuid.Nil)
	if err != nil || r.State >= erasure.StateDone {
		t.Errorf("an erasure under a hold: %+v, %v", r.State, err)
	}
	if n := b.count(`SELECT count(*) FROM memd.key_trees`); n != 1 {
		t.Errorf("%d key trees, want the first alone", n)
	}
	if _, err := b.keys().Content(1, b.numbers(anna).Subject, b.numbers(anna).Session); err != nil {
		t.Errorf("the key of what was deleted: %v", err)
	}
}
