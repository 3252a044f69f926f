package attack_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"filippo.io/age"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/compact"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/export"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

// talks is what a person has said to agents, beside their memories: how many
// events of each session were acknowledged, and how many may be there besides;
// and what their file says.
type talks struct {
	sessions map[string]*talk
	dead     []string
	file     string // "" when that is not sure
	events   int
}

type talk struct{ acked, unsure int }

func (p *person) sessionID(id string) sessions.ID {
	return sessions.ID{App: p.scope.App, UserID: p.scope.UserID, SessionID: id}
}

func (p *person) talk(ctx context.Context) {
	srv, of := p.server(), sessions.Tenant{No: p.r.tenant.No, Epoch: p.r.tenant.Epoch}
	id := fmt.Sprintf("talk %d of life %d", p.rng.IntN(2), p.life)
	t := p.talks.sessions[id]
	if t == nil {
		_, err := srv.Sessions.Create(ctx, of, p.sessionID(id), nil, false)
		if !errors.Is(err, memd.ErrExists) && p.passing("Create", err) { // It may be that of a call that failed half-way.
			return
		}
		t = &talk{}
		p.talks.sessions[id] = t
	}
	p.talks.events++
	_, err := srv.Sessions.Append(ctx, of, p.sessionID(id), []sessions.Event{{
		ID: fmt.Sprint("e", p.talks.events), Author: "user", Time: time.Now(), Content: `"words"`,
	}}, time.Time{}, false)
	if p.passing("Append", err) {
		t.unsure++
		return
	}
	t.acked++
	p.said.Add(1)
}

func (p *person) save(ctx context.Context) {
	p.talks.events++
	content := fmt.Sprint("content ", p.talks.events)
	_, err := p.server().Artifacts.Save(ctx, artifacts.Tenant{No: p.r.tenant.No, Epoch: p.r.tenant.Epoch},
		artifacts.Owner{App: p.scope.App, UserID: p.scope.UserID}, artifacts.UserPrefix+"file", artifacts.File{SourceTime: time.Now()}, strings.NewReader(content))
	if p.passing("Save", err) {
		p.talks.file = ""
		return
	}
	p.talks.file = content
	p.said.Add(1)
}

// checkTalks reads everything back from either replica.
func (p *person) checkTalks(ctx context.Context, when string) {
	srv, of := p.server(), sessions.Tenant{No: p.r.tenant.No, Epoch: p.r.tenant.Epoch}
	for id, t := range p.talks.sessions {
		s, err := srv.Sessions.Get(ctx, of, p.sessionID(id), sessions.Query{Events: memd.MaxReadEvents})
		if p.passing("Get", err) {
			return
		}
		if n := len(s.Events); n < t.acked || n > t.acked+t.unsure {
			p.r.t.Errorf("%s: a session has %d events, of which %d were acknowledged and %d may be there", when, n, t.acked, t.unsure)
		}
	}
	for _, id := range p.talks.dead {
		if _, err := srv.Sessions.Get(ctx, of, p.sessionID(id), sessions.Query{}); !errors.Is(err, memd.ErrNotFound) && !p.passing("Get", err) {
			p.r.t.Errorf("%s: a forgotten session is there", when)
		}
	}
	if p.talks.file == "" {
		return
	}
	var b strings.Builder
	c, err := srv.Artifacts.Load(ctx, artifacts.Tenant{No: p.r.tenant.No, Epoch: p.r.tenant.Epoch},
		artifacts.Owner{App: p.scope.App, UserID: p.scope.UserID}, artifacts.UserPrefix+"file", artifacts.Latest, 0, 0)
	if err == nil {
		_, err = c.Copy(ctx, &b)
	}
	if !p.passing("Load", err) && b.String() != p.talks.file {
		p.r.t.Errorf("%s: a file says %q instead of %q", when, b.String(), p.talks.file)
	}
}

// forgotten notes that everything that was said is to be gone.
func (t *talks) forgotten() {
	for id := range t.sessions {
		t.dead = append(t.dead, id)
	}
	clear(t.sessions)
	t.file = ""
}

// clerk does what operators do meanwhile: archives of users, made and deleted;
// compactions; expiry of what is due, which is nothing.
func (r *rig) clerk(ctx context.Context, rng *rand.Rand) (done int64) {
	var count atomic.Int64
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		r.t.Error(err)
		return 0
	}
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), perCall)
		srv := r.servers[rng.IntN(len(r.servers))]
		var err error
		switch id := uuid.New(); rng.IntN(3) {
		case 0:
			request := export.Request{
				ID: id, Scope: memd.Scope{App: "app", UserID: fmt.Sprintf("user-%d", rng.IntN(people))}, Recipients: []string{identity.Recipient().String()},
			}
			err = srv.Keyring.Do(call, r.tenant.No, r.tenant.Epoch, func(k *shred.Keys) error {
				return srv.Pool.With(call, func(db pg.DB) error {
					if _, err := export.Start(call, db, k, time.Now(), request); err != nil {
						return err
					}
					_, err := export.End(call, db, r.tenant.No, id, time.Now())
					return err
				})
			})
		case 1:
			err = srv.Pool.InTx(call, func(tx pgx.Tx) error {
				_, err := compact.Ask(call, tx, compact.Vacuum, compact.CauseOperator, uuid.Nil, time.Now())
				return err
			})
		case 2:
			var t tenants.Tenant
			err = srv.Pool.With(call, func(db pg.DB) (err error) {
				t, err = tenants.GetByNo(call, db, r.tenant.No)
				return err
			})
			if err == nil {
				_, err = erasure.RunRetention(call, srv.Pool, t, uuid.Nil, time.Now())
			}
		}
		cancel()
		switch {
		case err == nil:
			count.Add(1)
		// Somebody who is not there, or is being forgotten, has no archive.
		case errors.Is(err, memd.ErrNotFound), errors.Is(err, memd.ErrExists), errors.Is(err, memd.ErrStale), memd.Transient(err), errors.Is(err, context.DeadlineExceeded):
		default:
			r.t.Errorf("an operator: not an error to try again: %v", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	return count.Load()
}
