package export_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/export"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/tenants"
)

// accept has an erasure of bert accepted, which nobody carries out yet.
func (b *bundle) accept(kind erasure.Kind, id uuid.UUID) {
	b.t.Helper()
	k := b.Keys(b.srv, b.tenant)
	j := erasure.Job{Tenant: b.tenant.No, ID: id, Kind: kind, App: app, User: k.UserRef(app, "bert")}
	if kind != erasure.KindUser {
		j.Session = k.SessionRef(j.User, "bert's monday")
	}
	err := b.srv.Pool.With(b.t.Context(), func(db pg.DB) error {
		_, err := erasure.Accept(b.t.Context(), db, j, uuid.New(), time.Now())
		return err
	})
	if err != nil {
		b.t.Fatalf("accepting an erasure: %v", err)
	}
}

// An erasure takes a user out of a ready archive: links die when it is accepted,
// files that hold the user are gone before it is done, and what is made anew has
// nothing of theirs, in whosever scope. Files of others stay as they are.
func TestErasure_TakesUserOut(t *testing.T) {
	b := setup(t)
	e := b.exported(b.worker(b.store))
	old, _ := b.open(b.download(e))
	if found := old.say(words("bert"), "both of them"); len(found) != 2 {
		t.Fatalf("the archive says only %q: nothing would be shown", found)
	}
	_, secret, err := b.link(e)
	if err == nil {
		err = b.follow(secret, time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	request := uuid.New()
	b.accept(erasure.KindUser, request)
	if err := b.follow(secret, time.Now()); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("following a link after the erasure was accepted: %v", err)
	}
	b.StartWorker()
	r, err := b.srv.Erasure.ForgetUser(t.Context(), erasure.Caller{Tenant: b.tenant.No}, app, "bert", request)
	if err != nil || r.State < erasure.StateDone {
		t.Fatalf("forgetting bert: %v, state %v", err, r.State)
	}
	told := false
	for _, c := range r.Stores {
		// bert's own part, anna's, the app's, and the manifest is of no subject.
		if c.Store == "exports" {
			told = c.Before == 3 && c.After == 0
		}
	}
	if !told {
		t.Errorf("the report does not tell of files of archives: %+v", r.Stores)
	}
	again := b.await(e, func(e export.Export) bool { return e.State == export.StateReady })
	if again.Rebuilt != 3 {
		t.Errorf("%d parts were made anew", again.Rebuilt)
	}
	f, report := b.open(b.download(again))
	if found := f.say("bert", "both of them"); len(found) > 0 {
		t.Errorf("made anew, the archive says %q", found)
	}
	if found := f.say(words("anna")); len(found) == 0 || report.Manifest.Totals.Subjects != 2 {
		t.Errorf("anna is gone too: %+v", report.Manifest.Totals)
	}
	if err := b.follow(secret, time.Now()); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("following the old link to the new archive: %v", err)
	}
}

// await waits for the worker to have an export where it should be.
func (b *bundle) await(e export.Export, is func(export.Export) bool) export.Export {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if e = b.get(e); is(e) {
			return e
		}
		select {
		case <-ctx.Done():
			b.t.Fatalf("the export is %+v; log:\n%s", e, b.Logs)
		case <-tick.C:
		}
	}
}

// between calls do once, after the first bytes of a file and before its last.
type between struct {
	export.Store
	do func()
}

// Write implements export.Store.
func (s *between) Write(ctx context.Context, name uuid.UUID, write func(io.Writer) error) error {
	return s.Store.Write(ctx, name, func(w io.Writer) error {
		if do := s.do; do != nil {
			s.do = nil
			defer do()
		}
		return write(w)
	})
}

// Whoever is erased while a part is being written that holds them, wholly read
// already, is in no archive: the part is made anew. The file that was in flight is
// gone.
func TestErasure_WhileAPartIsWritten(t *testing.T) {
	for _, kind := range []erasure.Kind{erasure.KindUser, erasure.KindSession, erasure.KindContent} {
		t.Run(kind.String(), func(t *testing.T) {
			b := setup(t)
			store := &between{Store: b.store}
			store.do = func() { b.accept(kind, uuid.New()) }
			w := b.worker(store)
			e := b.exported(w)
			if e.State != export.StateReady || store.do != nil {
				t.Fatalf("made: %+v", e)
			}
			f, _ := b.open(b.download(e))
			events := lines[export.EventRecord](t, f, "bert", "events.jsonl")
			if len(events) > 0 {
				t.Errorf("the archive has bert's events: %+v", events)
			}
			said := f.say(words("bert")+"\"", "both of them")
			if kind == erasure.KindContent {
				if len(said) != 2 {
					t.Errorf("memories that stay are gone: %q", said)
				}
			} else if kind == erasure.KindUser && len(f.say("bert")) > 0 || slices.Contains(said, "both of them") {
				t.Errorf("the archive says %q", said)
			}
			n := 0
			if err := b.store.List(t.Context(), func(uuid.UUID) error { n++; return nil }); err != nil {
				t.Fatal(err)
			}
			if int64(n) != e.Parts+1 {
				t.Errorf("%d files for %d parts and a manifest", n, e.Parts)
			}
		})
	}
}

// A user's own archive ends with the user, and any archive with the purge of the
// tenant, of which the purge sees that nothing is left.
func TestErasure_EndsArchives(t *testing.T) {
	b := setup(t)
	w := b.worker(b.store)
	own := b.start(memd.Scope{App: app, UserID: "bert"})
	annas := b.start(memd.Scope{App: app, UserID: "anna"})
	b.make(w, own)
	b.make(w, annas)
	b.accept(erasure.KindUser, uuid.New())
	if own = b.get(own); own.State != export.StateEnded || own.EndReason != "erased" {
		t.Errorf("bert's archive: %+v", own)
	}
	if annas = b.get(annas); annas.State != export.StateMaking {
		t.Errorf("anna's archive, which has what both said: %+v", annas)
	}
	b.make(w, annas)
	b.move(tenants.StateSuspended, tenants.StateExporting)
	whole := b.start(memd.Scope{})
	b.make(w, whole)
	b.StartWorker()
	b.Approve(b.srv, b.tenant.No)
	r, err := b.srv.Erasure.DeleteTenant(t.Context(), erasure.Caller{KeyID: uuid.New()}, "acme", "acme", uuid.New())
	if err != nil || r.State < erasure.StateDone {
		t.Fatalf("purging: %v, %v", err, r.State)
	}
	for _, e := range []export.Export{own, annas, whole} {
		if e = b.get(e); e.State != export.StateDeleted {
			t.Errorf("after the purge: %+v", e)
		}
	}
	b.empty()
}
