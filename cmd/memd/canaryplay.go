package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// canaryPlay is one run. The first user is forgotten; the second is not, and
// shares a summary with the first.
type canaryPlay struct {
	c       *canaryRunCmd
	server  *clients
	id      string // of the run, and the end of every marked word
	request string
	planted time.Time
	checks  []canaryCheck

	first, second string
	stateSession  string // where the user's state is looked at
	ids           map[string]string
	returned      bool // the first user was made anew, to look at their state
	reached       bool // the service has answered, so that there may be something to clean up
	forgotten     bool
	salt          string
}

// Sessions of the first user, the one that is made after they returned, and the
// one of the second user.
func (p *canaryPlay) session(n int) string { return fmt.Sprintf("%s-s%d", p.first, n) }

const (
	canaryReturned = 9
	canaryStreamed = 300 << 10 // more than one chunk of an artifact
)

func newCanaryPlay(c *canaryRunCmd, server *clients, id string) *canaryPlay {
	p := &canaryPlay{
		c: c, server: server, id: id, request: uuid.NewString(), ids: map[string]string{},
		first: "canary-first-" + id, second: "canary-second-" + id,
	}
	p.stateSession = p.session(2)
	return p
}

// word marks what was planted in one place: found nowhere else, by anybody.
func (p *canaryPlay) word(place string) string { return "zq" + place + p.id }

func (p *canaryPlay) run(ctx context.Context) (err error) {
	defer func() {
		if cleanup := p.clean(context.WithoutCancel(ctx)); err == nil {
			err = cleanup
		}
	}()
	if err := p.plant(ctx); err != nil {
		return fmt.Errorf("planting: %w", err)
	}
	before, err := p.look(ctx)
	if err != nil {
		return fmt.Errorf("looking before: %w", err)
	}
	others, err := p.keeps(ctx)
	if err != nil {
		return fmt.Errorf("looking at the second user: %w", err)
	}
	race := p.race(ctx)
	report, err := p.forget(ctx, p.first, p.request)
	late := race.end()
	if err != nil {
		return fmt.Errorf("forgetting: %w", err)
	}
	p.forgotten, p.salt = true, report.GetSalt()
	p.checkReport(report)
	p.checkRace(late)
	p.checkLate(ctx)
	if err := p.bringBack(ctx); err != nil {
		return fmt.Errorf("making the user anew: %w", err)
	}
	after, err := p.look(ctx)
	if err != nil {
		return fmt.Errorf("looking after: %w", err)
	}
	p.compare(before, after)
	now, err := p.keeps(ctx)
	if err != nil {
		return fmt.Errorf("looking at the second user: %w", err)
	}
	p.checkOther(others, now)
	p.checkEvidence(ctx)
	return nil
}

// step notes a check that took until now since began.
func (p *canaryPlay) note(k canaryCheck, began time.Time) {
	k.Took = time.Since(began)
	p.checks = append(p.checks, k)
}

// unserved reports that the service has no such procedure: what it would show is
// not run.
func unserved(err error) bool {
	return connect.CodeOf(err) == connect.CodeUnimplemented
}

func (p *canaryPlay) scope(user string) *memdv1.Scope {
	return &memdv1.Scope{Owner: &memdv1.Scope_User{User: &memdv1.UserScope{App: p.c.App, UserId: user}}}
}

func (p *canaryPlay) shared() *memdv1.Scope {
	return &memdv1.Scope{Owner: &memdv1.Scope_Shared{Shared: &memdv1.SharedScope{App: p.c.App}}}
}

func (p *canaryPlay) owner(user, session string) *memdv1.ArtifactOwner {
	return &memdv1.ArtifactOwner{App: p.c.App, UserId: user, SessionId: session}
}

// vector is one that belongs to a text, for a tenant without an embedder.
func (p *canaryPlay) vector(text string) []float32 {
	if p.c.Dimension == 0 {
		return nil
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	r := rand.New(rand.NewPCG(h.Sum64(), 1)) //nolint:gosec // A vector, not a secret.
	out := make([]float32, p.c.Dimension)
	for i := range out {
		out[i] = float32(r.NormFloat64())
	}
	return out
}

func (p *canaryPlay) row(scope *memdv1.Scope, kind memdv1.Kind, text string) *memdv1.Row {
	return &memdv1.Row{Scope: scope, Kind: kind, Text: text, Vector: p.vector(text), SourceTime: timestamppb.New(p.planted)}
}

// plant remembers both users through every API.
func (p *canaryPlay) plant(ctx context.Context) error {
	p.planted = time.Now().Add(-time.Second)
	// Whoever cannot even read learns so before anything is written.
	if _, err := p.list(ctx, p.first); err != nil {
		return err
	}
	p.reached = true
	for _, part := range []func(context.Context) error{p.plantSessions, p.plantArtifacts, p.plantMemories} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

func jsonText(text string) string { return fmt.Sprintf(`{"role":"user","parts":[{"text":%q}]}`, text) }

func (p *canaryPlay) event(id, text string, delta map[string]string) *memdv1.Event {
	return &memdv1.Event{Id: id, Author: "user", Content: jsonText(text), Timestamp: timestamppb.New(p.planted), StateDelta: delta}
}

func (p *canaryPlay) plantSessions(ctx context.Context) error {
	for _, s := range []struct{ user, session string }{
		{p.first, p.session(1)}, {p.first, p.session(2)}, {p.second, p.second + "-s1"},
	} {
		_, err := p.server.Session.CreateSession(ctx, &memdv1.CreateSessionRequest{App: p.c.App, UserId: s.user, SessionId: s.session})
		if unserved(err) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	quoted := func(place string) string { return `"` + p.word(place) + `"` }
	_, err := p.server.Session.AppendEvents(ctx, &memdv1.AppendEventsRequest{
		App: p.c.App, UserId: p.first, SessionId: p.session(1), Events: []*memdv1.Event{
			p.event("e1", "My daughter has "+p.word("event"), map[string]string{"plan": quoted("state")}),
			p.event("e2", "Send it to "+p.word("address"), map[string]string{"user:address": quoted("user"), "app:" + p.word("key"): quoted("app")}),
		},
	})
	if err != nil {
		return err
	}
	_, err = p.server.Session.AppendEvents(ctx, &memdv1.AppendEventsRequest{
		App: p.c.App, UserId: p.first, SessionId: p.session(2), Events: []*memdv1.Event{p.event("e3", "Order "+p.word("order"), nil)},
	})
	if err != nil {
		return err
	}
	_, err = p.server.Session.AppendEvents(ctx, &memdv1.AppendEventsRequest{
		App: p.c.App, UserId: p.second, SessionId: p.second + "-s1", Events: []*memdv1.Event{p.event("e1", "I am "+p.word("other"), nil)},
	})
	return err
}

func (p *canaryPlay) plantArtifacts(ctx context.Context) error {
	save := func(user, session, name, text string) error {
		_, err := p.server.Artifacts.SaveArtifactInline(ctx, &memdv1.SaveArtifactInlineRequest{
			Header: p.header(user, session, name), Data: []byte(text),
		})
		return err
	}
	err := save(p.first, p.session(1), "prescription.txt", p.word("file"))
	if unserved(err) {
		return nil
	}
	for _, more := range []func() error{
		func() error { return save(p.first, p.session(1), "prescription.txt", p.word("file")+" again") },
		func() error { return save(p.first, "", "user:photo.txt", p.word("photo")) },
		func() error { return save(p.second, p.second+"-s1", "own.txt", p.word("other")) },
		func() error { return p.stream(ctx, p.session(2), "scan.bin") },
	} {
		if err == nil {
			err = more()
		}
	}
	return err
}

func (p *canaryPlay) header(user, session, name string) *memdv1.SaveArtifactHeader {
	return &memdv1.SaveArtifactHeader{Owner: p.owner(user, session), Name: name, MimeType: "text/plain", SourceTime: timestamppb.New(p.planted)}
}

// stream saves an artifact of several chunks.
func (p *canaryPlay) stream(ctx context.Context, session, name string) error {
	s, err := p.server.Artifacts.SaveArtifact(ctx)
	if err != nil {
		return err
	}
	err = s.Send(&memdv1.SaveArtifactRequest{Part: &memdv1.SaveArtifactRequest_Header{Header: p.header(p.first, session, name)}})
	piece := slices.Repeat([]byte(p.word("scan")+" "), 1000)
	for sent := 0; sent < canaryStreamed && err == nil; sent += len(piece) {
		err = s.Send(&memdv1.SaveArtifactRequest{Part: &memdv1.SaveArtifactRequest_Data{Data: piece}})
	}
	_, closed := s.CloseAndReceive()
	if closed != nil {
		return closed // It says more than a Send that failed.
	}
	return err
}

func (p *canaryPlay) plantMemories(ctx context.Context) error {
	for _, n := range []int{1, 2} {
		_, err := p.server.Memory.AddSession(ctx, &memdv1.AddSessionRequest{App: p.c.App, UserId: p.first, SessionId: p.session(n)})
		// A tenant without an embedder cannot; its rows are added below.
		if err != nil && !unserved(err) && p.c.Dimension == 0 {
			return err
		}
	}
	own, other := p.scope(p.first), p.scope(p.second)
	raw := p.row(own, memdv1.Kind_KIND_RAW, "The inhaler is "+p.word("raw"))
	raw.SessionId = p.session(1)
	raw2 := p.row(own, memdv1.Kind_KIND_RAW, "The sister lives in "+p.word("raw2"))
	raw2.SessionId = p.session(2)
	mine := p.row(other, memdv1.Kind_KIND_RAW, "I like "+p.word("other"))
	mine.SessionId = p.second + "-s1"
	gift := p.row(p.shared(), memdv1.Kind_KIND_RAW, "Somebody asked for "+p.word("shared"))
	gift.Contributor = &memdv1.Session{UserId: p.first, SessionId: p.session(2)}
	if err := p.add(ctx, map[string]*memdv1.Row{"raw": raw, "raw2": raw2, "other": mine, "shared": gift}); err != nil {
		return err
	}
	derived := p.row(own, memdv1.Kind_KIND_SUMMARY, "Of two conversations: "+p.word("derived"))
	derived.Sources = p.sources("raw", "raw2")
	common := p.row(other, memdv1.Kind_KIND_SUMMARY, "Both of them: "+p.word("common"))
	common.Sources = p.sources("raw", "other")
	return p.add(ctx, map[string]*memdv1.Row{"derived": derived, "common": common})
}

func (p *canaryPlay) sources(names ...string) []*memdv1.Source {
	var out []*memdv1.Source
	for _, n := range names {
		out = append(out, &memdv1.Source{Source: &memdv1.Source_MemoryId{MemoryId: p.ids[n]}})
	}
	return out
}

func (p *canaryPlay) add(ctx context.Context, rows map[string]*memdv1.Row) error {
	for name, row := range rows {
		resp, err := p.server.Memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
		if err != nil {
			return err
		}
		p.ids[name] = resp.GetResults()[0].GetMemoryId()
	}
	return nil
}

// forget erases a user and waits until that is done.
func (p *canaryPlay) forget(ctx context.Context, user, request string) (*memdv1.Report, error) {
	for wait := firstPollPause; ; wait = min(2*wait, maxPollPause) {
		resp, err := p.server.Erasure.ForgetUser(ctx, &memdv1.ForgetUserRequest{
			App: p.c.App, UserId: user, RequestId: request, Wait: durationpb.New(30 * time.Second),
		})
		if err == nil && resp.GetReport().GetState() >= memdv1.ErasureState_ERASURE_STATE_DONE {
			return resp.GetReport(), nil
		}
		if err != nil && !transient(err) {
			return nil, err
		}
		if !pause(ctx, wait) {
			if err == nil {
				err = context.Cause(ctx)
			}
			return nil, err
		}
	}
}

// bringBack makes the first user anew, which is the only way to look whether
// their state outlived them.
func (p *canaryPlay) bringBack(ctx context.Context) error {
	p.stateSession = p.session(canaryReturned)
	p.returned = true
	_, err := p.server.Session.CreateSession(ctx, &memdv1.CreateSessionRequest{App: p.c.App, UserId: p.first, SessionId: p.stateSession})
	if unserved(err) {
		return nil
	}
	return err
}

// cleanTimeout bounds the erasure of what the run itself leaves.
const cleanTimeout = time.Minute

// clean forgets the second user, and the first one once more.
func (p *canaryPlay) clean(ctx context.Context) error {
	if !p.reached {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	began := time.Now()
	users := []string{p.second}
	if p.returned || !p.forgotten {
		users = append(users, p.first)
	}
	for _, user := range users {
		if _, err := p.forget(ctx, user, uuid.NewString()); err != nil {
			p.note(canaryCheck{Name: "cleanup", Result: canaryFail, Reason: "failed"}, began)
			return fmt.Errorf("cleaning up: %w", err)
		}
	}
	p.note(canaryCheck{Name: "cleanup", Result: canaryPass, Control: int64(len(users))}, began)
	return nil
}
