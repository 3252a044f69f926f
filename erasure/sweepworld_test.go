package erasure_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/ledger"
	"forgettable.dev/memd/tenants"
)

// people is a populated tenant, with what its random ids stand for.
type people struct {
	tenant memory.Tenant
	name   string
	labels []string // id, label, id, label …
	old    tables
	living []string // what is in the copy of those who are not erased
}

func (w *sweep) populate() people {
	w.t.Helper()
	w.n++
	ctx := w.t.Context()
	pool := w.clean.Pool
	p := people{name: fmt.Sprintf("tenant-%d", w.n)}
	var t tenants.Tenant
	err := w.app.With(ctx, func(db pg.DB) (err error) {
		t, err = tenants.Create(ctx, db, time.Now(), p.name, "", delayed(0))
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	err = pool.With(ctx, func(db pg.DB) error {
		folder, err := ledger.OpenFolder(w.Ledger)
		if err != nil {
			return err
		}
		defer func() { _ = folder.Close() }()
		err = shred.Provision(ctx, shred.ProvisionConfig{
			Pool: pool, KMS: w.identity(kmsemu.Worker), Ledgers: []ledger.Ledger{folder}, Installation: w.id,
			DestroyDelay: 24 * time.Hour, Clock: memd.SystemClock{},
		}, t.No)
		if err != nil {
			return err
		}
		policy := memdtest.Policy()
		p.tenant = memory.Tenant{No: t.No, Epoch: 1, Dimension: policy.Dimension, Embedder: policy.Embedder, Format: memory.VectorFormat(policy.VectorFormat)}
		return tenants.Activate(ctx, db, time.Now(), t.No)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	a := w.addTo(p.tenant,
		said("alice", "s1", "alice one"), said("alice", "s2", "alice two"), contributed("alice", "s1", "alice shared"),
		said("bob", "b1", "bob"), said("bob", "", "bob outside"), contributed("bob", "b1", "bob shared"),
	)
	d := w.addTo(p.tenant, drawn(memory.KindFact, user("bob"), "bob on alice", from(a[0]), from(a[3])), drawn(memory.KindFact, user("bob"), "bob on bob", from(a[3])))
	e := w.addTo(p.tenant, drawn(memory.KindSummary, shared, "summary", from(d[0]), from(a[5])))
	for _, s := range [][2]string{{"alice", "s1"}, {"alice", "s2"}, {"bob", "b1"}} {
		w.converse(p.tenant, s[0], s[1])
	}
	w.register(p)
	for i, id := range append(append(a, d...), e...) {
		p.labels = append(p.labels, id.String(), fmt.Sprintf("row %d", i), strings.ReplaceAll(id.String(), "-", ""), fmt.Sprintf("row %d", i))
	}
	k := w.Keys(w.a, p.tenant)
	group := k.SharedRef(app)
	p.labels = append(p.labels, fmt.Sprintf("%x", group[:]), "shared")
	for _, name := range []string{"alice", "bob"} {
		ref := k.UserRef(app, name)
		p.labels = append(p.labels, fmt.Sprintf("%x", ref[:]), name)
		for _, s := range []string{"s1", "s2", "b1"} {
			sref := k.SessionRef(ref, s)
			p.labels = append(p.labels, fmt.Sprintf("%x", sref[:]), name+"'s "+s)
		}
	}
	p.living = append(contentsOf("bob", "b1"), contentsOf("bob", "user")...)
	p.living = append(p.living, "bob", "bob on bob", "bob outside", "bob shared", "user bob", "session b1")
	p.old = w.copyOf(p.tenant)
	return p
}

// contentsOf is what converse leaves of a session, or, of "user", beside them.
func contentsOf(userID, session string) []string {
	what := []string{"event", "file", "name", "state"}
	if session == "user" {
		what = []string{"app state", "file", "name", "state"}
	}
	for i, w := range what {
		what[i] = fmt.Sprintf("[%s %s %s]", userID, session, w)
	}
	return what
}

// converse keeps a session with an event, state of all scopes, an artifact, and
// an artifact of the user's.
func (w *sweep) converse(t memory.Tenant, userID, session string) {
	w.t.Helper()
	w.converseAt(t, userID, session, time.Now())
}

func (w *sweep) converseAt(t memory.Tenant, userID, session string, when time.Time) {
	w.t.Helper()
	ctx := w.t.Context()
	words := func(of, what string) string { return fmt.Sprintf("[%s %s %s]", userID, of, what) }
	id, of := sessions.ID{App: app, UserID: userID, SessionID: session}, sessions.Tenant{No: t.No, Epoch: t.Epoch}
	_, err := w.a.Sessions.Create(ctx, of, id, map[string]string{
		"user:key": fmt.Sprintf("%q", words("user", "state")), "app:" + userID: fmt.Sprintf("%q", words("user", "app state")),
	}, false)
	if err == nil {
		_, err = w.a.Sessions.Append(ctx, of, id, []sessions.Event{{
			ID: "e1", Author: "user", Time: when, Content: fmt.Sprintf("%q", words(session, "event")),
			StateDelta: map[string]string{"key": fmt.Sprintf("%q", words(session, "state"))},
		}}, time.Time{}, false)
	}
	if err != nil {
		w.t.Fatalf("conversing: %v", err)
	}
	for name, content := range map[string]string{
		words(session, "name"): words(session, "file"), artifacts.UserPrefix + words("user", "name"): words("user", "file"),
	} {
		_, err := w.a.Artifacts.Save(ctx, artifacts.Tenant{No: t.No, Epoch: t.Epoch},
			artifacts.Owner{App: app, UserID: userID, SessionID: session}, name, artifacts.File{}, strings.NewReader(content))
		if err != nil {
			w.t.Fatalf("saving: %v", err)
		}
	}
}

// kept checks which sessions of a user have their event, state and artifact.
func (w *sweep) kept(t memory.Tenant, userID string, sessionIDs, want []string) {
	w.t.Helper()
	ctx := w.t.Context()
	for _, session := range sessionIDs {
		id := sessions.ID{App: app, UserID: userID, SessionID: session}
		s, err := w.a.Sessions.Get(ctx, sessions.Tenant{No: t.No, Epoch: t.Epoch}, id, sessions.Query{Events: 10})
		c, loadErr := w.a.Artifacts.Load(ctx, artifacts.Tenant{No: t.No, Epoch: t.Epoch},
			artifacts.Owner{App: app, UserID: userID, SessionID: session}, fmt.Sprintf("[%s %s name]", userID, session), artifacts.Latest, 0, 0)
		if slices.Contains(want, session) {
			if err != nil || len(s.Events) != 1 || len(s.State) < 3 || loadErr != nil {
				w.t.Errorf("%s's %s: %d events, state %q, %v; artifact: %v", userID, session, len(s.Events), s.State, err, loadErr)
			}
		} else if !errors.Is(err, memd.ErrNotFound) || !errors.Is(loadErr, memd.ErrNotFound) {
			w.t.Errorf("%s's %s is there: %v, artifact: %v", userID, session, err, loadErr)
		}
		_ = c
	}
}
