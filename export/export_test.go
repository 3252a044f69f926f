package export_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/export"
	"forgettable.dev/memd/tenants"
)

// Everything that a tenant has is in its archive, whose words it is included, and
// only the customer's identity opens it.
func TestExport_TenantHasEverything(t *testing.T) {
	b := setup(t)
	e := b.exported(b.worker(b.store))
	if e.State != export.StateReady || e.Parts != 3 || e.Written != e.Subjects {
		t.Fatalf("made: %+v", e)
	}
	archive := b.download(e)
	for _, clear := range []string{words("anna"), words("bert"), "anna", "monday", "portrait"} {
		if bytes.Contains(archive, []byte(clear)) {
			t.Errorf("the archive shows %q", clear)
		}
	}
	stranger, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := export.Read(bytes.NewReader(archive), nil, stranger); err == nil {
		t.Error("somebody else's identity opens it")
	}
	f, r := b.open(archive)
	want := export.Counts{
		Subjects: 3, Sessions: 2, Events: 2, State: 6, Artifacts: 4, Memories: 4, ArtifactBytes: 4 * (300<<10 + int64(len(words("anna")))),
	}
	if diff := cmp.Diff(want, r.Manifest.Totals); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(e.Counts, r.Manifest.Totals); diff != "" {
		t.Errorf("counts of the journal (-journal +manifest):\n%s", diff)
	}
	events := lines[export.EventRecord](t, f, "anna", "events.jsonl")
	if len(events) != 1 || events[0].SessionID != "anna's monday" || string(events[0].Content) != `{"text":"the words of anna"}` {
		t.Errorf("events: %+v", events)
	}
	for _, a := range lines[export.ArtifactRecord](t, f, "bert", "artifacts.jsonl") {
		if content := f[f.of(t, "bert")+"/"+a.File]; content == nil || !strings.HasPrefix(content.String(), words("bert")) {
			t.Errorf("%s is not in %s", a.Name, a.File)
		}
	}
	for _, m := range lines[export.MemoryRecord](t, f, "anna", "memories.jsonl") {
		if m.Kind != "summary" {
			continue
		}
		want := []export.OriginRecord{{UserID: "anna", SessionID: "anna's monday"}, {UserID: "bert", SessionID: "bert's monday"}}
		if diff := cmp.Diff(want, m.From); diff != "" {
			t.Errorf("whose words (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, m.DerivedFrom); diff != "" {
			t.Errorf("derived from (-want +got):\n%s", diff)
		}
	}
}

// A user's own export has what is the user's, and nobody else's: not what somebody
// else had a part in. It is made while the tenant is active.
func TestExport_UserHasTheirOwn(t *testing.T) {
	b := setup(t)
	e := b.start(memd.Scope{App: app, UserID: "bert"})
	b.make(b.worker(b.store), e)
	f, r := b.open(b.download(e))
	if found := f.say(words("anna"), "both of them"); len(found) > 0 {
		t.Errorf("bert's export says %q", found)
	}
	if r.Manifest.Kind != "user" || r.Manifest.Totals.Subjects != 1 {
		t.Errorf("manifest: %+v", r.Manifest)
	}
	if elsewhere := lines[export.MemoryRecord](t, f, "bert", "memories-elsewhere.jsonl"); len(elsewhere) != 1 || elsewhere[0].App != app {
		t.Errorf("in the scopes of others: %+v", elsewhere)
	}
}

func TestStart_Refuses(t *testing.T) {
	b := setup(t)
	key := b.identity.Recipient().String()
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	anna := memd.Scope{App: app, UserID: "anna"}
	for name, c := range map[string]struct {
		request export.Request
		want    error
	}{
		"an active tenant":      {export.Request{ID: uuid.New(), Recipients: []string{key}}, memd.ErrTenantInactive},
		"nobody":                {export.Request{ID: uuid.New(), Recipients: []string{key}, Scope: memd.Scope{App: app, UserID: "carl"}}, memd.ErrNotFound},
		"no key":                {export.Request{ID: uuid.New(), Scope: anna}, memd.ErrInvalid},
		"a key that is none":    {export.Request{ID: uuid.New(), Recipients: []string{"age1abc"}, Scope: anna}, memd.ErrInvalid},
		"an identity":           {export.Request{ID: uuid.New(), Recipients: []string{b.identity.String()}, Scope: anna}, memd.ErrInvalid},
		"keys of both kinds":    {export.Request{ID: uuid.New(), Recipients: []string{key, hybrid.Recipient().String()}, Scope: anna}, memd.ErrInvalid},
		"no id":                 {export.Request{Recipients: []string{key}, Scope: anna}, memd.ErrInvalid},
		"a user without an app": {export.Request{ID: uuid.New(), Recipients: []string{key}, Scope: memd.Scope{UserID: "anna"}}, memd.ErrInvalid},
		"too long a life":       {export.Request{ID: uuid.New(), Recipients: []string{key}, Scope: anna, Life: export.MaxLife + 1}, memd.ErrInvalid},
	} {
		if _, err := b.tryStart(c.request); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	id := uuid.New()
	for _, again := range []export.Request{{ID: id, Recipients: []string{hybrid.Recipient().String()}, Scope: anna}, {ID: id, Recipients: []string{hybrid.Recipient().String()}, Scope: anna}} {
		if _, err := b.tryStart(again); err != nil {
			t.Errorf("with a post-quantum key: %v", err)
		}
	}
	if _, err := b.tryStart(export.Request{ID: id, Recipients: []string{key}, Scope: anna}); !errors.Is(err, memd.ErrRequestReused) {
		t.Errorf("another request of one id: %v", err)
	}
	b.move(tenants.StateSuspended, tenants.StateExporting)
	b.start(memd.Scope{})
	if _, err := b.tryStart(export.Request{ID: uuid.New(), Recipients: []string{key}}); !errors.Is(err, memd.ErrExists) {
		t.Errorf("a second archive: %v", err)
	}
}

// The window of the tenant's archive ends when it leaves exporting and drained:
// links die at once, files with the worker's next round, seen to be gone.
func TestExport_EndsWithTheWindow(t *testing.T) {
	b := setup(t)
	w := b.worker(b.store)
	e := b.exported(w)
	_, secret, err := b.link(e)
	if err != nil {
		t.Fatal(err)
	}
	b.move(tenants.StateDrained)
	if err := b.follow(secret, time.Now()); err != nil {
		t.Fatalf("following a link of a drained tenant: %v", err)
	}
	b.move(tenants.StateActive)
	if err := b.follow(secret, time.Now()); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("following a link out of the window: %v", err)
	}
	if _, err := w.Sweep(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if e = b.get(e); e.State != export.StateDeleted || e.EndReason != "left" || e.FilesDeleted != 4 {
		t.Errorf("after the window: %+v", e)
	}
	b.empty()
}

// empty fails the test if anything is in the place of archives.
func (b *bundle) empty() {
	b.t.Helper()
	err := b.store.List(b.t.Context(), func(id uuid.UUID) error {
		b.t.Errorf("%s is left", id)
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// An archive that has expired is ended and deleted by the worker's round.
func TestWorker_EndsWhatExpired(t *testing.T) {
	b := setup(t)
	w := b.worker(b.store)
	e, err := b.tryStart(export.Request{
		ID: uuid.New(), Scope: memd.Scope{App: app, UserID: "anna"}, Recipients: []string{b.identity.Recipient().String()}, Life: time.Microsecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.make(w, e)
	if err := w.Round(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if e = b.get(e); e.State != export.StateDeleted || e.EndReason != "expired" {
		t.Errorf("after its time: %+v", e)
	}
	b.empty()
}
