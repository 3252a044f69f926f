package eraser_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/eraser"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/shred"
)

// sessionKey names a conversation as an ADK session service does.
type sessionKey struct{ app, user, id string }

// inMemorySessions is what an ADK application has in its in-memory session
// service: sessions with their events, and the state that users keep across
// them. It is the store that memd cannot reach by itself.
type inMemorySessions struct {
	mu        sync.Mutex
	sessions  map[sessionKey][]string
	userState map[[2]string]map[string]string
}

// AppendEvent is what the application does with every turn.
func (s *inMemorySessions) AppendEvent(app, user, session, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := sessionKey{app, user, session}
	s.sessions[k] = append(s.sessions[k], text)
}

// SetUserState is what "user:" state is in ADK.
func (s *inMemorySessions) SetUserState(app, user, key, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.userState[[2]string{app, user}] == nil {
		s.userState[[2]string{app, user}] = map[string]string{}
	}
	s.userState[[2]string{app, user}][key] = value
}

// Count implements eraser.Eraser.
func (s *inMemorySessions) Count(_ context.Context, r eraser.Request) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.walk(r, false), nil
}

// Erase implements eraser.Eraser.
func (s *inMemorySessions) Erase(_ context.Context, r eraser.Request) (eraser.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return eraser.Result{Erased: s.walk(r, true)}, nil
}

// Verify implements eraser.Eraser. It looks at the store again.
func (s *inMemorySessions) Verify(_ context.Context, r eraser.Request) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.walk(r, false), nil
}

// walk counts events and state of whom the request is about, and deletes them.
// The whole store is this tenant's.
func (s *inMemorySessions) walk(r eraser.Request, remove bool) (n int64) {
	for k, events := range s.sessions {
		if r.Mode != eraser.ModeTenant && (k.app != r.App || k.user != r.UserID) || r.Mode.Sessions() && k.id != r.SessionID {
			continue
		}
		n += int64(len(events))
		if remove {
			delete(s.sessions, k)
		}
	}
	for k, state := range s.userState {
		// A user's state outlives their sessions, and goes with the user.
		if r.Mode.Sessions() || r.Mode == eraser.ModeUser && k != [2]string{r.App, r.UserID} {
			continue
		}
		n += int64(len(state))
		if remove {
			delete(s.userState, k)
		}
	}
	return n
}

// An ADK-style in-memory session service as a purge target: memd counts, erases
// and verifies there. What is left of the example after Handler is memd's side,
// which an application does not write.
func ExampleHandler() {
	sessions := &inMemorySessions{sessions: map[sessionKey][]string{}, userState: map[[2]string]map[string]string{}}
	sessions.AppendEvent("pharmacy", "alice", "s1", "I take 5 mg of it")
	sessions.AppendEvent("pharmacy", "alice", "s2", "and my sister too")
	sessions.SetUserState("pharmacy", "alice", "user:allergy", "penicillin")
	sessions.AppendEvent("pharmacy", "bob", "s1", "when are you open?")

	token := "memdt_of-memd-target-add" // What "memd target add" printed.
	handler, err := eraser.Handler(sessions, eraser.WithToken(token))
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewTLSServer(handler)
	defer server.Close()

	caller, target := memdsSide(server, token)
	defer caller.Close()
	ctx := context.Background()
	request := purge.Request{ID: uuid.New(), Mode: purge.ModeUser, Tenant: "acme", App: "pharmacy", UserID: "alice", Round: 1}
	for _, call := range []func(context.Context, purge.Target, purge.Request) (purge.Ack, error){caller.Count, caller.Erase, caller.Verify} {
		ack, err := call(ctx, target, request)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(ack.Op, ack.Code, number(ack))
	}
	fmt.Println("left of bob:", len(sessions.sessions))
	// Output:
	// count ok 3
	// erase ok 3
	// verify ok 0
	// left of bob: 1
}

func number(a purge.Ack) int64 {
	for _, n := range []*int64{a.Before, a.Erased, a.After} {
		if n != nil {
			return *n
		}
	}
	return -1
}

// memdsSide calls a target that was registered, with keys that are nobody's.
func memdsSide(server *httptest.Server, token string) (*purge.Caller, purge.Target) {
	tree, err := shred.NewTree(1, rand.Reader)
	if err != nil {
		panic(err)
	}
	keys := shred.NewKeys(tree)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	caller, err := purge.NewCaller(purge.Config{
		Keys:         func(_ context.Context, _ memd.TenantNo, use func(*shred.Keys) error) error { return use(keys) },
		AllowPrivate: true, RootCAs: roots,
	})
	if err != nil {
		panic(err)
	}
	target, _, err := caller.Prepare(context.Background(), purge.New{
		Tenant: 1, Name: "adk-sessions", Kind: purge.KindConnect, Order: purge.BeforeSessions,
		URL: server.URL, AllowPrivate: true, Timeout: 5 * time.Second, Secret: token,
	})
	if err != nil {
		panic(err)
	}
	return caller, target
}
