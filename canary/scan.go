package canary

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// Budget bounds one search through a tenant's store. What it left out is
// reported, and then the search is not a pass.
type Budget struct {
	// Rows and Bytes (sealed) that are looked at, and the time that it may take.
	Rows  int64
	Bytes int64
	Time  time.Duration
	// PageBytes bounds the raw pages that are searched for residue.
	PageBytes int64
}

// DefaultBudget is what a Config without one has.
var DefaultBudget = Budget{Rows: 250_000, Bytes: 512 << 20, Time: 10 * time.Second, PageBytes: 256 << 20}

// brief is the most that a search takes which somebody waits for: whoever asked
// for an erasure waits until its keys are destroyed and everything was verified
// once, and for the last look nobody does. It bounds rows and pages more than
// time, so that a store is searched as far on any machine.
var brief = Budget{Rows: 5_000, Bytes: 64 << 20, Time: 10 * time.Second, PageBytes: 4 << 20}

// budget is what a search of an examination may take.
func (v *Verifier) budget(e *exam) Budget {
	b := v.c.Budget
	if e.Budget != (memd.SearchBudget{}) {
		return b.asked(e.Budget)
	}
	if e.Final {
		return b
	}
	return Budget{
		Rows: min(b.Rows, brief.Rows), Bytes: min(b.Bytes, brief.Bytes),
		Time: min(b.Time, brief.Time), PageBytes: min(b.PageBytes, brief.PageBytes),
	}
}

// asked is the budget with what somebody has said about it.
func (b Budget) asked(s memd.SearchBudget) Budget {
	b.Rows, b.Bytes, b.Time = cmp.Or(s.Rows, b.Rows), cmp.Or(s.Bytes, b.Bytes), cmp.Or(s.Takes(), b.Time)
	if s.Whole {
		b.Rows, b.Bytes = math.MaxInt64, math.MaxInt64
	}
	return b
}

// spending is a Budget under way.
type spending struct {
	rows, bytes int64
	deadline    time.Time
}

func (b Budget) begin() *spending {
	return &spending{rows: b.Rows, bytes: b.Bytes, deadline: time.Now().Add(b.Time)}
}

func (s *spending) spend(page []row) {
	for i := range page {
		s.rows--
		for _, b := range page[i].sealed {
			s.bytes -= int64(len(b))
		}
	}
}

func (s *spending) left() bool { return s.rows > 0 && s.bytes > 0 && time.Now().Before(s.deadline) }

// row is one stored row, sealed.
type row struct {
	name memd.RowRef
	// of is whose words are in it; owner the subject in whose scope it is found.
	of     []memd.Contribution
	owner  memd.Number
	memory bool // a memory, and no content of a session
	sealed [][]byte
	open   func(k *shred.Keys) (opened, error)
	key    pg.Args // where the next page begins
}

// opened is what a row says.
type opened struct {
	// said is what its contributors said; other texts are names and ids.
	said, other [][]byte
	unit        []float32 // its vector, or nil
}

func (o *opened) wipe() {
	for _, t := range o.said {
		clear(t)
	}
	for _, t := range o.other {
		clear(t)
	}
	clear(o.unit)
}

// reader reads the rows of one table in the order of a key.
type reader struct {
	table string
	sql   string // with @tenant, @limit, the names in start and in args
	start pg.Args
	args  pg.Args
	page  int
	scan  func(c pgx.CollectableRow) (row, error)
}

// span bounds the subjects and sessions of a reader, both inclusive.
type span struct{ lo, hi, from, to memd.Number }

var everything = span{0, math.MaxInt64, 0, math.MaxInt64}

func spanOf(c memd.Contribution) span {
	s := span{c.Subject, c.Subject, c.Session, c.Session}
	if c.Session == 0 {
		s.to = math.MaxInt64
	}
	return s
}

func (s span) args() pg.Args { return pg.Args{"lo": s.lo, "hi": s.hi, "from": s.from, "to": s.to} }

// coverage counts what was looked at.
type coverage struct{ scanned, unopened int64 }

// rows opens every row of a reader within what is left to spend and calls f. A
// row whose key is gone says nothing for good; one that does not open is counted
// apart: somebody copied it to where it does not belong. f gets both, empty.
// What f gets is wiped afterwards. The database reads a page while the one before
// is looked at.
func (v *Verifier) rows(ctx context.Context, tenant memd.TenantNo, r reader, s *spending, f func(r *row, o *opened)) (coverage, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type read struct {
		page []row
		err  error
	}
	var limit int
	begin := func(after pg.Args) <-chan read {
		limit = int(min(int64(r.page), s.rows))
		done := make(chan read, 1)
		go func() {
			page, err := v.page(ctx, tenant, r, after, limit)
			done <- read{page, err}
		}()
		return done
	}
	var c coverage
	if !s.left() {
		return c, nil
	}
	for next := begin(r.start); next != nil; {
		now := <-next
		if now.err != nil {
			return c, fmt.Errorf("reading %s: %w", r.table, now.err)
		}
		s.spend(now.page)
		next = nil
		if len(now.page) == limit && s.left() {
			next = begin(now.page[limit-1].key)
		}
		if err := v.openPage(ctx, tenant, now.page, &c, f); err != nil {
			cancel()
			if next != nil {
				<-next
			}
			return c, fmt.Errorf("opening %s: %w", r.table, err)
		}
	}
	return c, nil
}

func (v *Verifier) openPage(ctx context.Context, tenant memd.TenantNo, page []row, c *coverage, f func(r *row, o *opened)) error {
	out := make([]*opened, len(page))
	err := v.c.Keys.Do(ctx, tenant, 0, func(k *shred.Keys) error {
		for i := range page {
			o, err := page[i].open(k)
			switch {
			case err == nil, errors.Is(err, memd.ErrShredded):
				out[i] = &o
			case errors.Is(err, memd.ErrCorrupt):
				out[i] = nil
			default:
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, o := range out {
		if o == nil {
			o = &opened{}
			c.unopened++
		} else {
			c.scanned++
		}
		f(&page[i], o)
		o.wipe()
	}
	return nil
}

func (v *Verifier) page(ctx context.Context, tenant memd.TenantNo, r reader, after pg.Args, limit int) ([]row, error) {
	args := pg.Args{"tenant": tenant, "limit": limit}
	maps.Copy(args, r.args)
	maps.Copy(args, after)
	var page []row
	err := v.c.Pool.With(ctx, func(db pg.DB) error {
		rows, err := db.Query(ctx, r.sql, args)
		if err != nil {
			return err
		}
		page, err = pgx.CollectRows(rows, r.scan)
		return err
	})
	return page, err
}

// standing is how a row stands to what is being erased.
type standing uint8

const (
	stranger standing = iota // has nothing to do with it
	doomed                   // must go
	kin                      // stays, and may say the same: drawn from what goes
)

func (e *exam) standing(r *row) standing {
	if e.Whole {
		return doomed
	}
	meant := slices.ContainsFunc(e.Target, func(t memd.Contribution) bool {
		return t.Session == 0 && t.Subject == r.owner || slices.ContainsFunc(r.of, func(c memd.Contribution) bool {
			return c.Subject == t.Subject && (t.Session == 0 || t.Session == c.Session)
		})
	})
	switch {
	case !meant:
		return stranger
	case e.Content && r.memory:
		return kin
	}
	return doomed
}

// readers are those of a whole tenant, in the order in which a budget is spent:
// many words in few bytes first. Within a table the order is that of its key;
// ids of memories are random, so what a budget reaches of them is a sample.
func readers() []reader {
	all := []reader{memories()}
	return append(all, contents(everything)...)
}

// targetReaders are those of what goes.
func (v *Verifier) targetReaders(ctx context.Context, e *exam) ([]reader, error) {
	var out []reader
	if !e.Content {
		ids, err := v.targetMemories(ctx, e)
		if err != nil {
			return nil, err
		}
		for page := range slices.Chunk(ids, memoryPage) { // all of them at once would be looked up for each page
			out = append(out, memoriesOf(page))
		}
	}
	for _, t := range e.Target {
		out = append(out, contents(spanOf(t))...)
	}
	return out, nil
}
