package export_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/export"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

const app = "pharmacy"

// bundle is a memd whose worker stands still, a tenant with two users, and a worker
// of exports that the test moves.
type bundle struct {
	*memdtest.Stack
	t        testing.TB
	srv      *node.Server
	tenant   memory.Tenant
	store    export.Store
	identity *age.X25519Identity
}

func setup(t testing.TB) *bundle {
	t.Helper()
	b := &bundle{Stack: memdtest.Start(t), t: t}
	b.srv, _ = b.Server()
	b.tenant = b.Tenant("acme", memdtest.Policy())
	b.StopWorker()
	var err error
	if b.store, err = export.OpenStore(t.Context(), b.Exports); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.store.Close() })
	if b.identity, err = age.GenerateX25519Identity(); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"anna", "bert"} {
		b.fill(user)
	}
	b.derive()
	return b
}

// words are what a user says everywhere: found in an archive, they tell whose it is.
func words(user string) string { return "the words of " + user }

// fill gives a user a session with an event, state of all kinds, artifacts of the
// session and of the user, and a memory.
func (b *bundle) fill(user string) {
	b.t.Helper()
	ctx, no := b.t.Context(), sessions.Tenant{No: b.tenant.No}
	id := sessions.ID{App: app, UserID: user, SessionID: user + "'s monday"}
	_, err := b.srv.Sessions.Create(ctx, no, id, map[string]string{"mood": `"fine"`}, false)
	if err == nil {
		_, err = b.srv.Sessions.Append(ctx, no, id, []sessions.Event{{
			ID: "e1", Author: "user", Content: `{"text":"` + words(user) + `"}`,
			StateDelta: map[string]string{"user:name": `"` + user + `"`, "app:last-" + user: `"` + words(user) + `"`},
		}}, time.Time{}, false)
	}
	of := artifacts.Owner{App: app, UserID: user, SessionID: id.SessionID}
	for _, name := range []string{"letter.txt", "user:portrait.png"} {
		if err == nil {
			_, err = b.srv.Artifacts.Save(ctx, artifacts.Tenant{No: b.tenant.No}, of, name, artifacts.File{MimeType: "text/plain"},
				strings.NewReader(words(user)+strings.Repeat(".", 300<<10)))
		}
	}
	if err == nil {
		_, err = b.srv.Memory.Add(ctx, b.tenant, []memory.Row{{
			Scope: memd.Scope{App: app, UserID: user}, SessionID: id.SessionID, Kind: memory.KindRaw, Text: words(user),
			Vector: []float32{1, 2, 3, 4}, Metadata: map[string]string{"of": user},
		}})
	}
	if err != nil {
		b.t.Fatalf("filling: %v", err)
	}
}

// derive adds what anna and bert said together to anna's scope, and a word of
// bert's alone to the app's.
func (b *bundle) derive() {
	b.t.Helper()
	_, err := b.srv.Memory.Add(b.t.Context(), b.tenant, []memory.Row{{
		Scope: memd.Scope{App: app, UserID: "anna"}, Kind: memory.KindSummary, Text: "both of them", Vector: []float32{1, 1, 1, 1},
		Sources: []memory.Source{{UserID: "anna", SessionID: "anna's monday"}, {UserID: "bert", SessionID: "bert's monday"}},
	}, {
		Scope: memd.Scope{App: app}, Contributor: &memory.Contributor{UserID: "bert"}, Kind: memory.KindRaw,
		Text: words("bert") + " for all", Vector: []float32{1, 1, 1, 1},
	}})
	if err != nil {
		b.t.Fatalf("deriving: %v", err)
	}
}

// worker makes archives of one subject a part in store.
func (b *bundle) worker(store export.Store) *export.Worker {
	b.t.Helper()
	w, err := export.NewWorker(export.WorkerConfig{
		Pool: b.DB.Pool(node.WorkerRole), Store: store, Clock: memd.SystemClock{}, PartSubjects: 1,
		Logger: slog.New(slog.NewJSONHandler(b.Logs, nil)),
		Keys:   func(ctx context.Context, t memd.TenantNo) (*shred.Keys, error) { return b.srv.Keyring.Keys(ctx, t, 0) },
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return w
}

// move takes the tenant along its way out.
func (b *bundle) move(states ...tenants.State) {
	b.t.Helper()
	for _, s := range states {
		err := b.srv.Pool.InTx(b.t.Context(), func(tx pgx.Tx) error {
			_, err := tenants.Move(b.t.Context(), tx, time.Now(), "acme", s, uuid.New(), "it leaves",
				func(time.Time, string) ([]byte, error) { return []byte{0}, nil })
			return err
		})
		if err != nil {
			b.t.Fatalf("moving the tenant: %v", err)
		}
	}
}

func (b *bundle) start(scope memd.Scope) export.Export {
	b.t.Helper()
	e, err := b.tryStart(export.Request{ID: uuid.New(), Scope: scope, Recipients: []string{b.identity.Recipient().String()}})
	if err != nil {
		b.t.Fatalf("starting an export: %v", err)
	}
	return e
}

func (b *bundle) tryStart(r export.Request) (e export.Export, err error) {
	k := b.Keys(b.srv, b.tenant)
	err = b.srv.Pool.With(b.t.Context(), func(db pg.DB) error {
		e, err = export.Start(b.t.Context(), db, k, time.Now(), r)
		return err
	})
	return e, err
}

// exported starts the export of the tenant and makes it.
func (b *bundle) exported(w *export.Worker) export.Export {
	b.t.Helper()
	b.move(tenants.StateSuspended, tenants.StateExporting)
	e := b.start(memd.Scope{})
	b.make(w, e)
	return b.get(e)
}

func (b *bundle) make(w *export.Worker, e export.Export) {
	b.t.Helper()
	if err := w.Make(b.t.Context(), e.Tenant, e.ID); err != nil {
		b.t.Fatalf("making an archive: %v", err)
	}
}

func (b *bundle) get(e export.Export) export.Export {
	b.t.Helper()
	err := b.srv.Pool.With(b.t.Context(), func(db pg.DB) (err error) {
		e, err = export.Get(b.t.Context(), db, e.Tenant, e.ID)
		return err
	})
	if err != nil {
		b.t.Fatalf("reading an export: %v", err)
	}
	return e
}

func (b *bundle) link(e export.Export) (l export.Link, secret string, err error) {
	err = b.srv.Pool.With(b.t.Context(), func(db pg.DB) error {
		l, secret, err = export.MakeLink(b.t.Context(), db, e.Tenant, e.ID, uuid.New(), time.Now(), 0)
		return err
	})
	return l, secret, err
}

func (b *bundle) follow(secret string, now time.Time) error {
	return b.srv.Pool.With(b.t.Context(), func(db pg.DB) error {
		_, err := export.Follow(b.t.Context(), db, secret, now, true)
		return err
	})
}

// download returns a ready archive as it is downloaded.
func (b *bundle) download(e export.Export) []byte {
	b.t.Helper()
	var out []byte
	err := b.srv.Pool.With(b.t.Context(), func(db pg.DB) error {
		a, err := export.OpenArchive(b.t.Context(), db, b.store, e.Tenant, e.ID, func() error { return nil })
		if err != nil {
			return err
		}
		out, err = io.ReadAll(a)
		if err == nil && int64(len(out)) != a.Size {
			err = fmt.Errorf("%d bytes of %d", len(out), a.Size)
		}
		return err
	})
	if err != nil {
		b.t.Fatalf("downloading: %v", err)
	}
	return out
}

// files are those of an opened archive, by name.
type files map[string]*bytes.Buffer

func (f files) create(name string) (io.WriteCloser, error) {
	f[name] = &bytes.Buffer{}
	return closing{f[name]}, nil
}

type closing struct{ io.Writer }

func (closing) Close() error { return nil }

// open opens an archive, which must be whole.
func (b *bundle) open(archive []byte) (files, export.Report) {
	b.t.Helper()
	f := files{}
	r, err := export.Read(bytes.NewReader(archive), f.create, b.identity)
	if err != nil || len(r.Problems) > 0 {
		b.t.Fatalf("reading an archive: %v, problems %q", err, r.Problems)
	}
	return f, r
}

// of returns the folder of a user in an archive, "" when there is none.
func (f files) of(t testing.TB, user string) string {
	t.Helper()
	for name, content := range f {
		if path.Base(name) != "subject.json" {
			continue
		}
		var s export.SubjectRecord
		if err := json.Unmarshal(content.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		if s.UserID == user && s.App == app {
			return path.Dir(name)
		}
	}
	return ""
}

// lines decodes the lines of a file of a user.
func lines[T any](t testing.TB, f files, user, file string) []T {
	t.Helper()
	var all []T
	content := f[f.of(t, user)+"/"+file]
	if content == nil {
		return nil
	}
	for d := json.NewDecoder(bytes.NewReader(content.Bytes())); d.More(); {
		var one T
		if err := d.Decode(&one); err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	return all
}

// say reports which of the texts are anywhere in an archive.
func (f files) say(texts ...string) (found []string) {
	for _, content := range f {
		for _, text := range texts {
			if bytes.Contains(content.Bytes(), []byte(text)) && !slices.Contains(found, text) {
				found = append(found, text)
			}
		}
	}
	return found
}
