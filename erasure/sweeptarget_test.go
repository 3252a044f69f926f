package erasure_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"forgettable.dev/memd/eraser"
	"forgettable.dev/memd/internal/fault"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/tenants"
)

// targetToken is what memd shows to the stores outside.
const targetToken = "memdt_of-the-sweep"

// outsideStore is one store outside memd for every tenant of a sweep: lines that
// begin with the tenant's name, the user and the session. Its calls are behind
// the fuse of the erasure that makes them. Safe for concurrent use.
type outsideStore struct {
	fuse *fault.Fuse

	mu    sync.Mutex
	lines []string
}

// startStore serves it, and returns its address.
func (w *sweep) startStore() (*outsideStore, string) {
	w.t.Helper()
	s := &outsideStore{fuse: w.fuse}
	h, err := eraser.Handler(s, eraser.WithToken(targetToken))
	if err != nil {
		w.t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(h)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	w.t.Cleanup(server.Close)
	return s, server.URL
}

func (s *outsideStore) add(tenant, user, session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line(tenant, user, session))
}

func line(parts ...string) string { return strings.Join(parts, "/") + "/" }

// of is what the store has of a tenant.
func (s *outsideStore) of(tenant string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []string
	for _, l := range s.lines {
		if rest, ok := strings.CutPrefix(l, line(tenant)); ok {
			found = append(found, strings.TrimSuffix(rest, "/"))
		}
	}
	return found
}

// prefix is how what a request is about begins.
func prefix(r eraser.Request) string {
	switch {
	case r.Mode == eraser.ModeTenant:
		return line(r.Tenant)
	case r.Mode.Sessions():
		return line(r.Tenant, r.UserID, r.SessionID)
	}
	return line(r.Tenant, r.UserID)
}

func (s *outsideStore) count(r eraser.Request) (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lines {
		if strings.HasPrefix(l, prefix(r)) {
			n++
		}
	}
	return n
}

// Count implements eraser.Eraser.
func (s *outsideStore) Count(_ context.Context, r eraser.Request) (n int64, err error) {
	err = fault.Call(s.fuse, fault.PurgeCall, func() error { n = s.count(r); return nil })
	return n, err
}

// Erase implements eraser.Eraser.
func (s *outsideStore) Erase(_ context.Context, r eraser.Request) (result eraser.Result, err error) {
	err = fault.Call(s.fuse, fault.PurgeCall, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		before := len(s.lines)
		s.lines = slices.DeleteFunc(s.lines, func(l string) bool { return strings.HasPrefix(l, prefix(r)) })
		result.Erased = int64(before - len(s.lines))
		return nil
	})
	return result, err
}

// Verify implements eraser.Eraser.
func (s *outsideStore) Verify(_ context.Context, r eraser.Request) (n int64, err error) {
	err = fault.Call(s.fuse, fault.PurgeCall, func() error { n = s.count(r); return nil })
	return n, err
}

// register makes the store a target of each order class.
func (w *sweep) register(p people) {
	w.t.Helper()
	for _, order := range []purge.Order{purge.BeforeSessions, purge.WithSessions, purge.AfterMemory} {
		err := w.app.With(w.t.Context(), func(db pg.DB) error { // A pool for each would be one for each point.
			_, _, err := w.caller.Create(w.t.Context(), db, purge.New{
				Tenant: p.tenant.No, Name: fmt.Sprintf("store-%d", order), Kind: purge.KindConnect, Order: order,
				URL: w.storeURL, AllowPrivate: true, Secret: targetToken,
			})
			return err
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	for _, s := range [][2]string{{"alice", "s1"}, {"alice", "s2"}, {"bob", "b1"}} {
		w.store.add(p.name, s[0], s[1])
	}
}

// outsiders checks what the stores outside have left of a tenant.
func (w *sweep) outsiders(p people, want ...string) {
	w.t.Helper()
	if got := w.store.of(p.name); !slices.Equal(got, want) {
		w.t.Errorf("outside memd there is %q, want %q", got, want)
	}
}

// On a tenant's way out the secrets of its targets serve its erasures still, in each
// state, and go with its purge (sweep.check).
func TestForgetUser_ReachesTargetsOfATenantOnItsWayOut(t *testing.T) {
	w := newSweep(t)
	what := kinds[0]
	for _, state := range []tenants.State{tenants.StateSuspended, tenants.StateExporting, tenants.StateDrained} {
		p := w.populate()
		for _, step := range []tenants.State{tenants.StateSuspended, tenants.StateExporting, tenants.StateDrained} {
			if step <= state {
				w.exec(`SELECT memd.move_tenant($1, $2::smallint, NULL, 'sealed', now())`, p.tenant.No, int16(step))
			}
		}
		j := w.acceptWhole(&p, what)
		if err := w.finish(w.clean, j); err != nil {
			t.Fatalf("%v: %v", state, err)
		}
		w.outsiders(p, what.outside...)
	}
}
