package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect/v2"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// canaryTrace is one place where the first user may be found. hits asks the API; what
// is not found there is no error.
type canaryTrace struct {
	name string
	hits func(ctx context.Context) (int64, error)
}

// sighting is what a look at one place came to.
type sighting struct {
	hits     int64
	took     time.Duration
	unserved bool
}

func (p *canaryPlay) traces() []canaryTrace {
	search := func(user, word string, shared bool) func(context.Context) (int64, error) {
		return func(ctx context.Context) (int64, error) { return p.search(ctx, p.scope(user), word, shared) }
	}
	state := func(word string) func(context.Context) (int64, error) {
		return func(ctx context.Context) (int64, error) { return p.state(ctx, p.stateSession, word) }
	}
	return []canaryTrace{
		{"events", func(ctx context.Context) (int64, error) {
			return p.events(ctx, p.session(1), p.word("event"), p.word("address"))
		}},
		{"events_of_second_session", func(ctx context.Context) (int64, error) { return p.events(ctx, p.session(2), p.word("order")) }},
		{"session_state", func(ctx context.Context) (int64, error) { return p.state(ctx, p.session(1), p.word("state")) }},
		{"user_state", state(p.word("user"))},
		{"app_state", state(p.word("app"))},
		{"sessions", p.sessions},
		{"session_artifact", p.artifact(p.session(1), "prescription.txt", p.word("file"))},
		{"streamed_artifact", p.artifact(p.session(2), "scan.bin", p.word("scan"))},
		{"user_artifact", p.artifact("", "user:photo.txt", p.word("photo"))},
		{"artifact_names", p.artifactNames},
		{"memories", func(ctx context.Context) (int64, error) {
			page, err := p.list(ctx, p.first)
			return int64(len(page)), err
		}},
		{"memory_of_session", search(p.first, p.word("event"), false)},
		{"raw_memory", search(p.first, p.word("raw"), false)},
		{"raw_memory_of_second_session", search(p.first, p.word("raw2"), false)},
		{"derived_memory", search(p.first, p.word("derived"), false)},
		{"shared_scope", search(p.second, p.word("shared"), true)},
		{"shared_summary", search(p.second, p.word("common"), false)},
		{"memory_by_id", func(ctx context.Context) (int64, error) { return p.get(ctx, p.first, p.ids["raw"]) }},
		{"shared_summary_by_id", func(ctx context.Context) (int64, error) { return p.get(ctx, p.second, p.ids["common"]) }},
	}
}

// look asks everywhere.
func (p *canaryPlay) look(ctx context.Context) (map[string]sighting, error) {
	out := map[string]sighting{}
	for _, t := range p.traces() {
		began := time.Now()
		n, err := t.hits(ctx)
		s := sighting{hits: n}
		switch {
		case unserved(err):
			s.unserved = true
		case connect.CodeOf(err) == connect.CodeNotFound:
			s.hits = 0
		case err != nil:
			return nil, err
		}
		s.took = time.Since(began)
		out[t.name] = s
	}
	return out, nil
}

// compare demands of every place that it hit before, and misses now.
func (p *canaryPlay) compare(before, after map[string]sighting) {
	for _, t := range p.traces() {
		b, a := before[t.name], after[t.name]
		k := canaryCheck{Name: t.name, Control: b.hits, After: a.hits, Took: b.took + a.took, Result: canaryPass}
		switch {
		case b.unserved || a.unserved:
			k.Result, k.Reason = canaryNotRun, "unimplemented"
		case a.hits > 0:
			k.Result, k.Reason = canaryFail, "found"
		case b.hits == 0 && t.name == "memory_of_session" && p.c.Dimension > 0:
			k.Result, k.Reason = canaryNotRun, "no_embedder"
		case b.hits == 0:
			k.Result, k.Reason = canaryFail, "control_missed"
		}
		p.checks = append(p.checks, k)
	}
}

// events counts the events of a session that hold one of the words.
func (p *canaryPlay) events(ctx context.Context, session string, words ...string) (n int64, err error) {
	resp, err := p.server.Session.GetSession(ctx, &memdv1.GetSessionRequest{App: p.c.App, UserId: p.first, SessionId: session})
	for _, e := range resp.GetSession().GetEvents() {
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(e.GetContent(), w) }) {
			n++
		}
	}
	return n, err
}

// state counts the entries of a session's merged state that hold a word.
func (p *canaryPlay) state(ctx context.Context, session, word string) (n int64, err error) {
	resp, err := p.server.Session.GetSession(ctx, &memdv1.GetSessionRequest{App: p.c.App, UserId: p.first, SessionId: session})
	for _, v := range resp.GetSession().GetState() {
		if strings.Contains(v, word) {
			n++
		}
	}
	return n, err
}

// sessions counts those that were planted.
func (p *canaryPlay) sessions(ctx context.Context) (n int64, err error) {
	resp, err := p.server.Session.ListSessions(ctx, &memdv1.ListSessionsRequest{App: p.c.App, UserId: p.first})
	for _, s := range resp.GetSessions() {
		if s.GetSessionId() != p.session(canaryReturned) {
			n++
		}
	}
	return n, err
}

// artifact reports whether an artifact is there and holds the word.
func (p *canaryPlay) artifact(session, name, word string) func(context.Context) (int64, error) {
	return func(ctx context.Context) (int64, error) {
		resp, err := p.server.Artifacts.LoadArtifactInline(ctx, &memdv1.LoadArtifactInlineRequest{
			Load: &memdv1.LoadArtifactRequest{Owner: p.owner(p.first, session), Name: name},
		})
		if err != nil || !bytes.Contains(resp.GetData(), []byte(word)) {
			return 0, err
		}
		return 1, nil
	}
}

// artifactNames counts the names that are listed, the user's own with them.
func (p *canaryPlay) artifactNames(ctx context.Context) (n int64, err error) {
	for _, session := range []string{"", p.session(1)} {
		resp, err := p.server.Artifacts.ListArtifacts(ctx, &memdv1.ListArtifactsRequest{Owner: p.owner(p.first, session)})
		if err != nil && connect.CodeOf(err) != connect.CodeNotFound {
			return n, err
		}
		n += int64(len(resp.GetArtifacts()))
	}
	return n, nil
}

// canaryTopK is more than the rows of any of the users.
const canaryTopK = 100

// search counts the hits whose text holds the word.
func (p *canaryPlay) search(ctx context.Context, scope *memdv1.Scope, word string, shared bool) (n int64, err error) {
	resp, err := p.server.Memory.Search(ctx, &memdv1.SearchRequest{
		Scope: scope, Text: word, Vector: p.vector(word), TopK: canaryTopK, IncludeShared: shared,
	})
	for _, h := range resp.GetHits() {
		if strings.Contains(h.GetMemory().GetText(), word) {
			n++
		}
	}
	return n, err
}

func (p *canaryPlay) get(ctx context.Context, user, id string) (int64, error) {
	_, err := p.server.Memory.Get(ctx, &memdv1.GetRequest{Scope: p.scope(user), MemoryId: id})
	if err != nil {
		return 0, err
	}
	return 1, nil
}

func (p *canaryPlay) list(ctx context.Context, user string) ([]*memdv1.Memory, error) {
	resp, err := p.server.Memory.List(ctx, &memdv1.ListRequest{Scope: p.scope(user), PageSize: 1000})
	return resp.GetMemories(), err
}

// keeps lists what the second user has.
func (p *canaryPlay) keeps(ctx context.Context) ([]string, error) {
	memories, err := p.list(ctx, p.second)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, m := range memories {
		out = append(out, "memory "+m.GetMemoryId()+" "+m.GetText())
	}
	s, err := p.server.Session.GetSession(ctx, &memdv1.GetSessionRequest{App: p.c.App, UserId: p.second, SessionId: p.second + "-s1"})
	if err != nil && !unserved(err) {
		return nil, err
	}
	for _, e := range s.GetSession().GetEvents() {
		out = append(out, "event "+e.GetId()+" "+e.GetContent())
	}
	a, err := p.server.Artifacts.LoadArtifactInline(ctx, &memdv1.LoadArtifactInlineRequest{
		Load: &memdv1.LoadArtifactRequest{Owner: p.owner(p.second, p.second+"-s1"), Name: "own.txt"},
	})
	if err != nil && !unserved(err) {
		return nil, err
	}
	if err == nil {
		out = append(out, "artifact "+string(a.GetData()))
	}
	slices.Sort(out)
	return out, nil
}
