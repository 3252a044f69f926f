package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// maraQueries are what Mara's agent asks before and after.
var maraQueries = []string{"daughter with asthma, which inhaler", "parcel to 14 Tannery Lane, Millbrook", "peak flow after a night of coughing"}

// person is the one who is forgotten, as the database knows her: by number.
type person struct {
	number   memd.Number
	sessions map[memd.Number][]byte // sealed ids
	memories []string               // ids of rows with her words in them
}

// observation is what was seen while nobody was forgotten.
type observation struct {
	hits      int // of maraQueries
	trace     trace
	kept      keptView
	traceKept traceOfKept
	backup    reading // Mara's rows in the dump
	inDump    reading // what was kept of her, there
	others    map[string]view
	jonasRows int
	// outside and outsideJonas count in the store outside memd.
	outside, outsideJonas int64
	passwords             int // things of globex's in the dump that say one
}

// view is all that one user sees: every row, one search, and what was kept, as
// text.
type view struct {
	rows, hits []string
	kept       keptView
}

// without leaves out the rows and hits of some memories.
func (v view) without(ids []string) view {
	drop := func(s string) bool {
		return slices.ContainsFunc(ids, func(id string) bool { return strings.HasPrefix(s, id) })
	}
	return view{slices.DeleteFunc(slices.Clone(v.rows), drop), slices.DeleteFunc(slices.Clone(v.hits), drop), v.kept}
}

func (v view) equal(w view) bool {
	return slices.Equal(v.rows, w.rows) && slices.Equal(v.hits, w.hits) && slices.Equal(v.kept.events, w.kept.events) &&
		slices.Equal(v.kept.state, w.kept.state) && slices.Equal(v.kept.files, w.kept.files)
}

// lookBefore searches as the agents do and notes what must be gone later, and
// what must not.
func (d *demo) lookBefore(ctx context.Context) (err error) {
	d.section("Their agents search")
	for _, q := range maraQueries {
		hits, err := d.acme.search(ctx, mara, q, false)
		if err != nil {
			return err
		}
		d.before.hits += len(hits)
		if len(hits) > 0 {
			d.show("acme, Mara: %q", q)
			d.show("  %.2f  %s", hits[0].GetScore(), shorten(hits[0].GetMemory().GetText(), 100))
		}
	}
	if d.mara.number, err = d.live.owner(ctx, d.acme.tenant, d.derived.own); err != nil {
		return err
	}
	for session, ids := range d.acme.added {
		if strings.HasPrefix(session, "mara-") {
			d.mara.memories = append(d.mara.memories, ids...)
		}
	}
	d.mara.memories = append(d.mara.memories, d.derived.falls()...)
	if _, d.mara.sessions, err = d.live.directory(ctx, d.acme.tenant, d.mara.number); err != nil {
		return err
	}
	if d.before.trace, err = d.live.trace(ctx, d.acme.tenant, d.mara.number, d.mara.memories); err != nil {
		return err
	}
	d.check(d.before.hits > 0 && d.before.trace.Owned > 0 && d.before.trace.Contributed+d.before.trace.Further > d.before.trace.Owned,
		"Mara's words are found, by search and by SQL, so that later checks have something to miss",
		"%d hits of %d searches; %s", d.before.hits, len(maraQueries), d.before.trace)
	if err := d.lookAtKept(ctx); err != nil {
		return err
	}
	if d.before.others, err = d.others(ctx); err != nil {
		return err
	}
	shared := d.before.others["acme "+jonas]
	d.before.jonasRows = len(shared.without(d.derived.falls()).rows)
	found := strings.Join(shared.hits, "\n")
	d.check(strings.Contains(found, d.derived.household) && strings.Contains(found, d.derived.notice),
		"Jonas finds a summary that was drawn from Mara's words and his, and a notice drawn from that summary",
		"%d hits in his own and the shared scope, of %d rows of his", len(shared.hits), len(shared.rows))
	return nil
}

// lookAtKept looks at what was kept of Mara, in memd and outside.
func (d *demo) lookAtKept(ctx context.Context) (err error) {
	if d.before.kept, err = d.kept(ctx, d.acme, mara); err != nil {
		return err
	}
	if d.before.traceKept, err = d.live.traceKept(ctx, d.acme.tenant, d.mara.number); err != nil {
		return err
	}
	d.before.outside, d.before.outsideJonas = d.outside.of(d.acme.app, mara), d.outside.of(d.acme.app, jonas)
	t := d.before.traceKept
	d.check(len(d.before.kept.events) > 0 && len(d.before.kept.state) > 1 && len(d.before.kept.files) > 1 && d.before.kept.missing == 0 &&
		t.Events > 0 && t.State > 0 && t.UserState > 0 && t.AppState > 0 && t.Files > 0 && t.Chunks > 0 && d.before.outside > 0,
		"So are her conversations, what was noted about her, and her files",
		"by API: %s; by SQL: %s", d.before.kept, t)
	return nil
}

// others returns what everybody but Mara of acme sees.
func (d *demo) others(ctx context.Context) (map[string]view, error) {
	out := map[string]view{}
	for _, c := range []*customer{d.acme, d.globex} {
		for _, user := range append(c.users(), "") {
			if c == d.acme && user == mara {
				continue
			}
			v, err := c.view(ctx, user)
			if err != nil {
				return nil, err
			}
			if v.kept, err = d.kept(ctx, c, user); err != nil {
				return nil, err
			}
			out[c.name+" "+user] = v
		}
	}
	return out, nil
}

// allHits is more than any user has rows.
const allHits = 1000

func (c *customer) search(ctx context.Context, user, text string, shared bool) ([]*memdv1.Hit, error) {
	resp, err := c.api.Memory.Search(ctx, &memdv1.SearchRequest{
		Scope: c.scope(user), Text: text, TopK: allHits, IncludeShared: shared,
	})
	if err != nil {
		return nil, fmt.Errorf("searching as %s: %w", c.name, err)
	}
	return resp.GetHits(), nil
}

func (c *customer) list(ctx context.Context, user string) ([]*memdv1.Memory, error) {
	resp, err := c.api.Memory.List(ctx, &memdv1.ListRequest{Scope: c.scope(user), PageSize: allHits})
	if err != nil {
		return nil, fmt.Errorf("listing as %s: %w", c.name, err)
	}
	return resp.GetMemories(), nil
}

// view lists a user's rows and searches them and the shared scope.
func (c *customer) view(ctx context.Context, user string) (view, error) {
	var v view
	rows, err := c.list(ctx, user)
	if err != nil {
		return v, err
	}
	for _, m := range rows {
		v.rows = append(v.rows, fmt.Sprintf("%s %d %s", m.GetMemoryId(), m.GetVersion(), m.GetText()))
	}
	hits, err := c.search(ctx, user, "parcels for the household at Tannery Lane", user != "")
	if err != nil {
		return v, err
	}
	for _, h := range hits {
		v.hits = append(v.hits, fmt.Sprintf("%s %.6f %s", h.GetMemory().GetMemoryId(), h.GetScore(), h.GetMemory().GetText()))
	}
	return v, nil
}
