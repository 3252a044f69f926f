package memory_test

import (
	"bytes"
	stdcmp "cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/tenants"
)

// known is a row as the test knows it.
type known struct {
	memory.Row
	id       uuid.UUID
	sessions []string
}

// scored is a hit as the oracle has it.
type scored struct {
	id    uuid.UUID
	score float64
}

// oracle is the brute-force search: every row, in float64.
func oracle(rows []known, q memory.Query, now time.Time) []scored {
	var out []scored
	for _, r := range rows {
		if r.Vector == nil || !matches(r, q, now) {
			continue
		}
		s := scored{r.id, cosine(q.Vector, r.Vector)}
		if q.MinScore == nil || s.score >= float64(*q.MinScore) {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b scored) int {
		return stdcmp.Or(-stdcmp.Compare(a.score, b.score), bytes.Compare(a.id[:], b.id[:]))
	})
	return out
}

func oracleScores(rows []known, q memory.Query, now time.Time) []float64 {
	q.MinScore = nil
	var scores []float64
	for _, s := range oracle(rows, q, now) {
		scores = append(scores, s.score)
	}
	return scores
}

// apart moves a least score down into the next gap between the scores, best first:
// a row whose score is that of the limit, up to rounding, may be a hit or not.
// Without a gap there is no limit.
func apart(scores []float64, least *float32, tolerance float64) *float32 {
	if least == nil {
		return nil
	}
	for i, s := range scores {
		if s >= float64(*least)-tolerance {
			continue
		}
		if above := scores[max(0, i-1)]; i == 0 || above-s > 4*tolerance {
			return new(float32(s + 2*tolerance))
		}
	}
	return nil
}

func matches(r known, q memory.Query, now time.Time) bool {
	f := q.Filter
	switch {
	case r.Scope != q.Scope && (!q.IncludeShared || r.Scope != (memd.Scope{App: q.Scope.App})):
		return false
	case !r.ExpiresAt.IsZero() && !r.ExpiresAt.After(now):
		return false
	case len(f.Kinds) > 0 && !slices.Contains(f.Kinds, r.Kind):
		return false
	case !f.From.IsZero() && r.SourceTime.Before(f.From), !f.To.IsZero() && !r.SourceTime.Before(f.To):
		return false
	case len(f.SessionIDs) > 0 && !slices.ContainsFunc(f.SessionIDs, func(s string) bool { return slices.Contains(r.sessions, s) }):
		return false
	}
	for k, v := range f.Metadata {
		if have, ok := r.Metadata[k]; !ok || have != v {
			return false
		}
	}
	return true
}

func cosine(a, b []float32) float64 {
	var dot, aa, bb float64
	for i := range a {
		dot += float64(a[i]) * float64(b[i])
		aa += float64(a[i]) * float64(a[i])
		bb += float64(b[i]) * float64(b[i])
	}
	return dot / math.Sqrt(aa*bb)
}

// compare holds hits against the oracle's answer: the same rows and scores
// within the tolerance, in the right order; ties of equal vectors by id.
func compare(t *testing.T, hits []memory.Hit, want []scored, topK int, tolerance float64) {
	t.Helper()
	all := map[uuid.UUID]float64{}
	for _, s := range want {
		all[s.id] = s.score
	}
	if len(hits) != min(topK, len(want)) {
		t.Errorf("%d hits, want %d", len(hits), min(topK, len(want)))
		return
	}
	for i, h := range hits {
		score, ok := all[h.Memory.ID]
		switch {
		case !ok:
			t.Errorf("hit %d is none, or came twice", i)
		case math.Abs(score-float64(h.Score)) > tolerance:
			t.Errorf("hit %d has score %v, want %v", i, h.Score, score)
		case math.Abs(want[i].score-float64(h.Score)) > tolerance:
			t.Errorf("hit %d has score %v, the oracle's has %v", i, h.Score, want[i].score)
		case i > 0 && (hits[i-1].Score < h.Score ||
			hits[i-1].Score == h.Score && bytes.Compare(hits[i-1].Memory.ID[:], h.Memory.ID[:]) >= 0):
			t.Errorf("hits %d and %d are in the wrong order", i-1, i)
		}
		delete(all, h.Memory.ID)
	}
}

const oracleDimension = 16

// population makes rows in two users' scopes and the shared one.
func (b *bundle) population(r *rand.Rand, n int) []known {
	b.t.Helper()
	scopes := []memd.Scope{user("ada"), user("ada"), user("ada"), user("bob"), shared(), {App: "other", UserID: "ada"}, {App: "other"}}
	var vectors [][]float32
	rows := make([]memory.Row, n)
	sessions := make([][]string, n)
	for i := range rows {
		scope := scopes[r.IntN(len(scopes))]
		v := randomVector(r)
		switch {
		case len(vectors) > 0 && r.IntN(5) == 0:
			v = vectors[r.IntN(len(vectors))] // ties
		case r.IntN(20) == 0:
			v = nil
		}
		if v != nil {
			vectors = append(vectors, v)
		}
		session := fmt.Sprint("s", r.IntN(3))
		row := memory.Row{
			Scope: scope, Kind: memory.KindRaw, Text: fmt.Sprint("row ", i), Vector: v,
			SourceTime: day(2025, time.Month(1+r.IntN(12)), 1+r.IntN(28)),
			Metadata:   map[string]string{"colour": []string{"red", "green"}[r.IntN(2)], "n": fmt.Sprint(r.IntN(5))},
		}
		if r.IntN(10) == 0 {
			row.ExpiresAt = b.clock.Now().Add(time.Hour)
		}
		if scope.Shared() {
			row.Contributor = &memory.Contributor{UserID: "ada", SessionID: session}
		} else {
			row.SessionID = session
		}
		sessions[i] = []string{session}
		if r.IntN(4) == 0 {
			row.Kind = memory.Kind(2 + r.IntN(2))
			extra := fmt.Sprint("s", r.IntN(3))
			who := "ada"
			if scope == user("bob") {
				who = "bob"
			}
			row.Sources = []memory.Source{{UserID: who, SessionID: extra}}
			sessions[i] = append(sessions[i], extra)
		}
		rows[i] = row
	}
	out := make([]known, 0, n)
	for from := 0; from < n; from += memd.MaxBatch {
		part := rows[from:min(n, from+memd.MaxBatch)]
		for i, a := range b.addAny(part) {
			out = append(out, known{Row: part[i], id: a.ID, sessions: sessions[from+i]})
		}
	}
	return out
}

// addAny adds rows of which some have no vector, which the policy of a tenant
// with vectors of its own refuses: those are added as if there were an embedder.
func (b *bundle) addAny(rows []memory.Row) []memory.Added {
	b.t.Helper()
	out := make([]memory.Added, len(rows))
	var with []memory.Row
	var at []int
	for i, r := range rows {
		if r.Vector != nil {
			with, at = append(with, r), append(at, i)
			continue
		}
		r.Vector = randomVector(rand.New(rand.NewPCG(1, uint64(i))))
		a := b.addOne(r)
		m := b.update(r.Scope, a.ID, memory.Change{Expected: 1, Vector: &[]float32{}, Sources: sourcesOf(r)})
		out[i] = memory.Added{ID: a.ID, Version: m.Version}
	}
	for i, a := range b.add(with...) {
		out[at[i]] = a
	}
	return out
}

func sourcesOf(r memory.Row) []memory.Source {
	if !r.Scope.Shared() {
		return nil
	}
	return []memory.Source{{UserID: r.Contributor.UserID, SessionID: r.Contributor.SessionID}}
}

func randomVector(r *rand.Rand) []float32 {
	v := make([]float32, oracleDimension)
	for i := range v {
		v[i] = float32(r.NormFloat64() * 3)
	}
	return v
}

func randomQuery(r *rand.Rand) memory.Query {
	q := memory.Query{
		Scope:  []memd.Scope{user("ada"), user("ada"), user("bob"), shared(), {App: "other", UserID: "ada"}, user("nobody")}[r.IntN(6)],
		Vector: randomVector(r), TopK: []int{1, 3, 10, 100, memd.MaxTopK}[r.IntN(5)], IncludeShared: r.IntN(2) == 0,
	}
	if r.IntN(3) == 0 {
		q.MinScore = new(float32(r.Float64() - 0.5))
	}
	if r.IntN(3) == 0 {
		q.Filter.Kinds = [][]memory.Kind{{memory.KindRaw}, {memory.KindFact, memory.KindSummary}}[r.IntN(2)]
	}
	if r.IntN(3) == 0 && !q.Scope.Shared() && q.Scope == user("ada") {
		q.Filter.SessionIDs = [][]string{{"s0"}, {"s1", "never"}, {"s0", "s2"}, {"never"}}[r.IntN(4)]
	}
	if r.IntN(3) == 0 {
		q.Filter.From = day(2025, time.Month(1+r.IntN(6)), 1)
	}
	if r.IntN(3) == 0 {
		q.Filter.To = day(2025, time.Month(7+r.IntN(6)), 1)
	}
	if r.IntN(3) == 0 {
		q.Filter.Metadata = []map[string]string{{"colour": "red"}, {"colour": "green", "n": "3"}, {"colour": "n"}, {"none": ""}}[r.IntN(4)]
	}
	return q
}

// Search is exact: in memory, from the database, and where there is hardly any
// memory; before and after rows expire; and the three agree to the last bit.
func TestService_Search_exact(t *testing.T) {
	for _, tc := range []struct {
		format    tenants.VectorFormat
		tolerance float64
	}{{tenants.Float32, 1e-5}, {tenants.Float16, 1e-3}} {
		t.Run(fmt.Sprint("format ", tc.format), func(t *testing.T) {
			b := setup(t, func(p *tenants.Policy) { p.Dimension, p.VectorFormat = oracleDimension, tc.format })
			few, _ := b.ServerWith(func(c *node.ServerConfig) { c.MaxScopeRows, c.MaxCodedRows = 20, 20 })
			coded, _ := b.ServerWith(func(c *node.ServerConfig) { c.MaxScopeRows = 20 })
			coded.Memory.Exhaust()
			little, _ := b.ServerWith(func(c *node.ServerConfig) { c.MaxResidentBytes = 1 << 14 })
			seed := uint64(time.Now().UnixNano())
			t.Log("seed ", seed)
			r := rand.New(rand.NewPCG(seed, 0))
			rows := b.population(r, 2500)
			for i := range 90 {
				if i == 60 {
					b.clock.advance(2 * time.Hour)
				}
				q := randomQuery(r)
				q.MinScore = apart(oracleScores(rows, q, b.clock.Now()), q.MinScore, tc.tolerance)
				got := b.search(b.m, q)
				want := oracle(rows, q, b.clock.Now())
				compare(t, got.Hits, want, q.TopK, tc.tolerance)
				for name, srv := range map[string]*node.Server{"few": few, "coded": coded, "little": little} {
					if diff := cmp.Diff(got, b.search(srv.Memory, q)); diff != "" {
						t.Errorf("query %d: in memory and %s differ:\n%s", i, name, diff)
					}
				}
				if t.Failed() {
					t.Fatalf("query %d: %+v", i, q)
				}
			}
		})
	}
}
