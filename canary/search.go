package canary

import (
	"context"
	"slices"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// everywhere reads the tenant's whole store within the budget. What it did not
// see is counted.
func (v *Verifier) everywhere(ctx context.Context, e *exam, f func(r *row, o *opened)) (total coverage, unseen int64, err error) {
	s := v.budget(e).begin()
	for _, r := range readers() {
		c, err := v.rows(ctx, e.Tenant, r, s, f)
		if err != nil {
			return total, 0, err
		}
		total.scanned += c.scanned
		total.unopened += c.unopened
	}
	unseen = total.unopened
	if s.left() {
		return total, unseen, nil
	}
	all, err := v.size(ctx, e.Tenant, total.scanned+min(v.budget(e).Rows, DefaultBudget.Rows))
	return total, max(unseen, all-total.scanned), err
}

// size counts the rows that everywhere would look at without a budget, of each
// table no more than most: counting a million takes longer than a brief search.
func (v *Verifier) size(ctx context.Context, tenant memd.TenantNo, most int64) (int64, error) {
	var all int64
	err := v.c.Pool.With(ctx, func(db pg.DB) error {
		for _, sql := range []string{
			sqlAllMemories, sqlAllEvents, sqlAllSessionState, sqlAllUserState, sqlAllAppState, sqlAllArtifacts, sqlAllVersions, sqlAllChunks,
		} {
			var n int64
			args := pg.Args{"tenant": tenant, "limit": most}
			if err := db.QueryRow(ctx, sqlCountHead+sql+sqlCountSome, args).Scan(&n); err != nil {
				return err
			}
			all += n
		}
		return nil
	})
	return all, err
}

// draw collects what the target says, then looks for it everywhere: what must
// go has to be hit, which is the control, and what others say too is shared.
func (v *Verifier) draw(ctx context.Context, e *exam, d *drawn) error {
	if e.Whole {
		return nil // Of a whole tenant nothing is looked for afterwards: no row may be left.
	}
	key, err := v.wordKey(ctx, e)
	if err != nil {
		return err
	}
	defer clear(key[:])
	c := newCandidates(&key)
	targets, err := v.targetReaders(ctx, e)
	if err != nil {
		return err
	}
	s := v.c.Budget.begin()
	for _, r := range targets {
		if _, err := v.rows(ctx, e.Tenant, r, s, c.take); err != nil {
			return err
		}
	}
	if len(c.words)+len(c.vectors) > 0 {
		_, unseen, err := v.everywhere(ctx, e, func(r *row, o *opened) {
			c.compare(e.standing(r), o)
		})
		if err != nil {
			return err
		}
		d.Partial = unseen > 0
	}
	c.settle(d)
	return nil
}

// compare counts which candidates a row has.
func (c *candidates) compare(s standing, o *opened) {
	if s == kin {
		return
	}
	count := func(w *candidate) {
		if s == doomed {
			w.Before++
		} else {
			w.elsewhere++
		}
	}
	for _, i := range c.index.hits(o) {
		count(&c.words[i])
	}
	for i := range c.vectors {
		if alike(c.vectors[i].unit, o.unit) {
			count(&c.vectors[i])
		}
	}
}

// wordIndex finds indexed words in rows.
type wordIndex struct {
	key    *[32]byte
	filter *filter
	at     map[hash]int
	seen   []int // of each word, the last row that had it
	row    int
	found  []int
}

func newWordIndex(key *[32]byte) wordIndex {
	return wordIndex{key: key, filter: new(filter), at: map[hash]int{}}
}

func (x *wordIndex) add(h hash, text []byte) {
	x.at[h] = len(x.at)
	x.filter.add(x.key, text)
}

// hits returns which of the indexed words a row has, each once. The slice is
// valid until the next call.
func (x *wordIndex) hits(o *opened) []int {
	if len(x.seen) < len(x.at) {
		x.seen = append(x.seen, make([]int, len(x.at)-len(x.seen))...)
	}
	x.row++
	x.found = x.found[:0]
	for _, texts := range [][][]byte{o.said, o.other} {
		for _, text := range texts {
			eachWord(text, x.look)
		}
	}
	return x.found
}

func (x *wordIndex) look(w word) {
	if !x.filter.has(x.key, w.text) {
		return
	}
	if i, ok := x.at[hashWord(x.key, w.text)]; ok && x.seen[i] != x.row {
		x.seen[i] = x.row
		x.found = append(x.found, i)
	}
}

// search is the look afterwards.
type search struct {
	d      *drawn
	index  wordIndex // of the unique words, then the shared ones
	nonces map[[nonceBytes]byte]bool
	// own are all numbers of the same users, of other lives too: whoever returned,
	// or goes on talking in another session, may say the same again.
	own map[memd.Number]bool

	copied, hinted, alike, alikeOwn, shared rowList
}

// rowList counts rows and names the first of them.
type rowList struct {
	n    int64
	rows []memd.RowRef
}

func (l *rowList) add(r memd.RowRef) {
	l.n++
	if len(l.rows) < maxRows {
		l.rows = append(l.rows, r)
	}
}

func newSearch(key *[32]byte, d *drawn) *search {
	s := &search{d: d, index: newWordIndex(key), nonces: map[[nonceBytes]byte]bool{}}
	for _, probes := range [][]probe{d.Unique, d.Shared} {
		for _, p := range probes {
			s.index.at[p.Hash] = len(s.index.at)
		}
	}
	copy(s.index.filter[:], d.Filter)
	for n := d.Nonces; len(n) >= nonceBytes; n = n[nonceBytes:] {
		s.nonces[[nonceBytes]byte(n)] = true
	}
	return s
}

// look judges one row. A number or the like, several words together, or the same
// sealed bytes make a copy of it, and so does the same vector, unless the text
// with it has none of the words: then it is a phrase that anybody uses. One or two ordinary words may be a coincidence:
// users of one app speak of the same things, and an erasure must not be held up
// by what somebody else says meanwhile, nor by what the same user says again.
// Then a person has to look, as with what others said before.
func (s *search) look(r *row, o *opened, st standing) {
	if st == kin {
		return
	}
	unique, strong, shared := 0, false, false
	for _, i := range s.index.hits(o) {
		if i < len(s.d.Unique) {
			unique++
			strong = strong || s.d.Unique[i].Strong
		} else {
			shared = true
		}
	}
	again := st == stranger && s.sameUser(r)
	strong = strong || unique >= manyWords
	switch {
	case s.sealedCopy(r), strong && !again:
		s.copied.add(r.name)
	case unique > 0:
		s.hinted.add(r.name)
	}
	for _, u := range s.d.Vectors {
		if !alike(u, o.unit) {
			continue
		}
		if again || unique == 0 && len(o.said) > 0 {
			s.alikeOwn.add(r.name)
		} else {
			s.alike.add(r.name)
		}
		break
	}
	for _, u := range s.d.SharedVectors {
		shared = shared || alike(u, o.unit)
	}
	if shared && !strong {
		s.shared.add(r.name)
	}
}

// sameUser reports whether a row is somebody's whose other words go.
func (s *search) sameUser(r *row) bool {
	return s.own[r.owner] || slices.ContainsFunc(r.of, func(c memd.Contribution) bool { return s.own[c.Subject] })
}

// sqlSameUsers returns every number of the users that some numbers are of.
const sqlSameUsers = `
SELECT DISTINCT s.subject_no FROM memd.subjects t JOIN memd.subjects s ON s.tenant_no = t.tenant_no AND s.user_ref = t.user_ref
WHERE t.tenant_no = @tenant AND t.subject_no = ANY (@subjects::bigint[])`

func (v *Verifier) sameUsers(ctx context.Context, e *exam) (map[memd.Number]bool, error) {
	subjects := make([]memd.Number, len(e.Target))
	for i, t := range e.Target {
		subjects[i] = t.Subject
	}
	found, err := v.ownScopes(ctx, sqlSameUsers, pg.Args{"tenant": e.Tenant, "subjects": subjects})
	out := make(map[memd.Number]bool, len(found))
	for _, c := range found {
		out[c.Subject] = true
	}
	return out, err
}

func (s *search) sealedCopy(r *row) bool {
	for _, b := range r.sealed {
		if len(b) >= nonceBytes && s.nonces[[nonceBytes]byte(b[:nonceBytes])] {
			return true
		}
	}
	return false
}

// checkProbes searches the tenant's whole store for what was drawn.
func (v *Verifier) checkProbes(ctx context.Context, e *exam, before map[string]int64, d *drawn) ([]memd.Check, error) {
	began := time.Now()
	none := func(reason string) []memd.Check {
		return []memd.Check{
			notRun(CheckUnique, reason, before[CheckUnique]), notRun(CheckVectors, reason, before[CheckVectors]),
			notRun(CheckShared, reason, before[CheckShared]),
		}
	}
	switch {
	case e.Whole:
		return none(reasonNotMeant), nil
	case d == nil:
		return none(reasonNoProbes), nil
	case d.nothing():
		// Of somebody whom nobody knows: the whole store need not be read for it.
		out := none(reasonNoUnique)
		out[1].Reason, out[2].Reason = reasonNoVectors, reasonNothing
		return out, nil
	}
	key, err := v.wordKey(ctx, e)
	if err != nil {
		return nil, err
	}
	defer clear(key[:])
	s := newSearch(&key, d)
	if s.own, err = v.sameUsers(ctx, e); err != nil {
		return nil, err
	}
	total, unseen, err := v.everywhere(ctx, e, func(r *row, o *opened) { s.look(r, o, e.standing(r)) })
	if err != nil {
		return nil, err
	}
	unique := s.verdict(CheckUnique, before[CheckUnique], reasonNoUnique, &s.copied, &s.hinted, unseen)
	vectors := s.verdict(CheckVectors, before[CheckVectors], reasonNoVectors, &s.alike, &s.alikeOwn, unseen)
	shared := memd.Check{
		Name: CheckShared, ControlBefore: before[CheckShared], CountAfter: s.shared.n, Rows: s.shared.rows,
		Result: memd.ResultReview, Reason: reasonSharedHits,
	}
	switch {
	case s.shared.n > 0:
	case len(d.Shared)+len(d.SharedVectors) == 0:
		shared.Result, shared.Reason = memd.ResultNotRun, reasonNothing
	case unseen > 0:
		shared.Result, shared.Reason = memd.ResultNotRun, reasonBudget
	default:
		shared.Result, shared.Reason = memd.ResultPass, ""
	}
	out := []memd.Check{unique, vectors, shared}
	for i := range out {
		out[i].Scanned, out[i].Unscanned, out[i].Duration = total.scanned, unseen, time.Since(began)
	}
	return out, nil
}

// verdict on unique probes. When the draw did not see the whole store, a hit may
// be somebody's who said it before.
func (s *search) verdict(name string, control int64, without string, certain, weak *rowList, unseen int64) memd.Check {
	c := memd.Check{Name: name, ControlBefore: control, CountAfter: certain.n + weak.n}
	c.Rows = append(c.Rows, certain.rows...)
	c.Rows = append(c.Rows, weak.rows[:min(len(weak.rows), maxRows-len(c.Rows))]...)
	switch {
	case certain.n > 0 && !s.d.Partial:
		c.Result, c.Reason = memd.ResultFail, reasonElsewhere
	case certain.n+weak.n > 0:
		c.Result, c.Reason = memd.ResultReview, reasonElsewhere
	case control == 0:
		c.Result, c.Reason = memd.ResultNotRun, without
	case unseen > 0:
		c.Result, c.Reason = memd.ResultNotRun, reasonBudget
	default:
		c.Result = memd.ResultPass
	}
	return c
}
