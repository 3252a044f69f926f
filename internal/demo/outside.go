package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"forgettable.dev/memd/eraser"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// outsideName is under what the store outside memd is registered.
const outsideName = "agent-sessions"

// chat names a conversation as a session service of ADK does.
type chat struct{ app, user, id string }

// inMemorySessions is what an application of acme's keeps by itself: the
// in-memory session service that frameworks come with. memd reaches it as a
// purge target.
type inMemorySessions struct {
	mu    sync.Mutex
	chats map[chat][]string
	state map[chat]map[string]string // by app and user
}

// Count implements eraser.Eraser.
func (s *inMemorySessions) Count(_ context.Context, r eraser.Request) (int64, error) {
	return s.walk(r, false), nil
}

// Erase implements eraser.Eraser.
func (s *inMemorySessions) Erase(_ context.Context, r eraser.Request) (eraser.Result, error) {
	return eraser.Result{Erased: s.walk(r, true)}, nil
}

// Verify implements eraser.Eraser.
func (s *inMemorySessions) Verify(_ context.Context, r eraser.Request) (int64, error) {
	return s.walk(r, false), nil
}

// walk counts, and removes, events and state of whom the request is about.
func (s *inMemorySessions) walk(r eraser.Request, remove bool) (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, events := range s.chats {
		if r.Mode == eraser.ModeTenant || k.app == r.App && k.user == r.UserID && (!r.Mode.Sessions() || k.id == r.SessionID) {
			n += int64(len(events))
			if remove {
				delete(s.chats, k)
			}
		}
	}
	for k, state := range s.state {
		if r.Mode == eraser.ModeTenant || r.Mode == eraser.ModeUser && k.app == r.App && k.user == r.UserID {
			n += int64(len(state))
			if remove {
				delete(s.state, k)
			}
		}
	}
	return n
}

// of counts what the store has of a user, without memd.
func (s *inMemorySessions) of(app, user string) int64 {
	return s.walk(eraser.Request{Mode: eraser.ModeUser, App: app, UserID: user}, false)
}

// outside is the store with its server, on loopback.
type outside struct {
	*inMemorySessions
	server *http.Server
	served chan error
}

// register serves the store to memd and registers it, as an operator does.
func (d *demo) register(ctx context.Context) error {
	o := &outside{
		inMemorySessions: &inMemorySessions{chats: map[chat][]string{}, state: map[chat]map[string]string{}},
		served:           make(chan error, 1),
	}
	for _, talk := range d.acme.talks {
		for _, t := range talk.Turns {
			k := chat{d.acme.app, talk.User, talk.Session}
			o.chats[k] = append(o.chats[k], t.Text)
		}
		o.state[chat{app: d.acme.app, user: talk.User}] = noted[talk.User]
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening for the store outside: %w", err)
	}
	// Closed by the server once it serves, and by close in any case.
	d.outside = o
	o.server = &http.Server{ReadHeaderTimeout: 10 * time.Second}
	made, err := d.operator.Targets.CreateTarget(ctx, &memdv1.CreateTargetRequest{
		Tenant: d.acme.name, Name: outsideName, Kind: memdv1.TargetKind_TARGET_KIND_CONNECT,
		Order: memdv1.TargetOrder_TARGET_ORDER_BEFORE_SESSIONS, Url: "http://" + l.Addr().String(), AllowPrivate: true,
	})
	if err == nil {
		o.server.Handler, err = eraser.Handler(o, eraser.WithToken(made.GetSecret()))
	}
	if err != nil {
		d.outside = nil
		return errors.Join(fmt.Errorf("registering the store outside: %w", err), l.Close())
	}
	go func() { o.served <- o.server.Serve(l) }()
	tested, err := d.operator.Targets.TestTarget(ctx, &memdv1.TestTargetRequest{Tenant: d.acme.name, Name: outsideName})
	if err != nil {
		return fmt.Errorf("testing the store outside: %w", err)
	}
	d.show("a session service of acme's own keeps %d things of Mara's; it is a purge target of memd's: test says %s",
		o.of(d.acme.app, mara), tested.GetCode())
	return nil
}

// close ends the server.
func (o *outside) close() error {
	if o == nil {
		return nil
	}
	err := o.server.Close()
	if served := <-o.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// checkOutside looks into the store outside memd.
func (d *demo) checkOutside() {
	now, others := d.outside.of(d.acme.app, mara), d.outside.of(d.acme.app, jonas)
	var answers []string
	acknowledged := false
	for _, a := range d.report.GetTargets() {
		answers = append(answers, a.GetOperation()+" "+a.GetCode())
		acknowledged = acknowledged || a.GetAcknowledged() && a.GetOperation() == "verify"
	}
	d.check(now == 0 && d.before.outside > 0 && others == d.before.outsideJonas && acknowledged,
		"The store outside memd has forgotten her too, and nobody else",
		"asked itself: %d things of hers, %d before; Jonas's %d of %d. It answered memd: %s",
		now, d.before.outside, others, d.before.outsideJonas, orNothing(answers))
}
