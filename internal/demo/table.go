package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
)

// reader is a line of the table: one of a customer's users, or the app itself.
type reader struct {
	c    *customer
	of   memd.Number
	name string
}

// promise is how much there was of a cell, and how much of it has to stay.
type promise struct{ all, stays int }

const sqlSubjects = `SELECT subject_no, kind, sealed_user_id FROM memd.subjects WHERE tenant_no = $1 ORDER BY kind, subject_no`

// kindShared is an app's own scope in the directory.
const kindShared = 2

// expect notes, while nobody has gone, who there is and what there is of them,
// and what of that has to stay readable.
func (d *demo) expect(ctx context.Context, copied *witness) error {
	d.promised, d.kmsKeys = map[cell]promise{}, map[memd.TenantNo]string{}
	opened, users := map[cell]count{}, 0
	for _, c := range []*customer{d.acme, d.globex} {
		tree, err := copied.tree(ctx, c.tenant)
		if err != nil {
			return err
		}
		d.kmsKeys[c.tenant] = tree.key
		k, err := d.keys.open(ctx, tree)
		if err != nil {
			return fmt.Errorf("opening a key tree: %w", err)
		}
		keys := keyring{k}
		defer keys.drop()
		all, err := c.things(ctx, copied)
		if err != nil {
			return err
		}
		tally(opened, c, all, keys)
		for i := range all {
			t := &all[i]
			at := cell{c.tenant, t.of, t.month}
			p := d.promised[at]
			p.all++
			if !d.goes(c, t) {
				p.stays++
			}
			d.promised[at] = p
			if text, _ := t.readWith(keys); strings.Contains(text, envPassword) {
				d.before.passwords++
			}
		}
		rows, err := copied.conn.Query(ctx, sqlSubjects, c.tenant)
		if err != nil {
			return fmt.Errorf("reading the directory: %w", err)
		}
		var kind int16
		var sealed []byte
		r := reader{c: c}
		_, err = pgx.ForEachRow(rows, []any{&r.of, &kind, &sealed}, func() error {
			r.name = "the app itself"
			if kind != kindShared {
				users++
				if r.name, err = k.OpenUserID(r.of, sealed); err != nil {
					return err
				}
			}
			d.readers = append(d.readers, r)
			sealed = nil
			return nil
		})
		if err != nil {
			return fmt.Errorf("reading the directory: %w", err)
		}
	}
	var n count
	for _, c := range opened {
		n.there, n.read = n.there+c.there, n.read+c.read
	}
	d.check(n.read == n.there && n.there > 0 && d.before.passwords > 0,
		"So can everything of everybody, a password that a tool of globex's read from a .env file included",
		"%d of %d memories, events, entries of state and files of %d users and both apps; the password: in %d of them",
		n.read, n.there, users, d.before.passwords)
	return nil
}

// goes reports whether a thing has to be unreadable in the end.
func (d *demo) goes(c *customer, t *thing) bool {
	return c == d.globex || t.month == d.expired() || t.has(d.mara.number)
}

// table shows, tenant by tenant, user by user and month by month, what can still
// be read with everything that there is, live and in the restored backup. Each
// cell is a check.
func (d *demo) table(ctx context.Context) (err error) {
	d.section("What can still be read, with both databases, the ledger and the worker's identity at the key service at hand")
	copied, err := openWitness(ctx, d.dev.Cluster.URL(restoredAfter, ""))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, copied.close()) }()
	live, backup := map[cell]count{}, map[cell]count{}
	for _, c := range []*customer{d.acme, d.globex} {
		keys, err := d.keysAtHand(ctx, c.tenant, d.live, copied)
		if err != nil {
			return err
		}
		defer keys.drop()
		for _, side := range []struct {
			w    *witness
			into map[cell]count
		}{{d.live, live}, {copied, backup}} {
			all, err := c.things(ctx, side.w)
			if err != nil {
				return err
			}
			tally(side.into, c, all, keys)
		}
	}
	if d.again != 0 {
		// She said one thing since, in a month of its own.
		d.readers = append(d.readers, reader{d.acme, d.again, "mara, again"})
		d.promised[cell{d.acme.tenant, d.again, d.months[len(d.months)-1]}] = promise{0, 1}
	}
	d.tableLines(live, backup)
	return nil
}

func (d *demo) tableLines(live, backup map[cell]count) {
	columns := append([]memd.Month{}, d.months...)
	columns = append(columns, 0)
	head := func(m memd.Month) string {
		if m == 0 {
			return "none"
		}
		return m.String()
	}
	var line strings.Builder
	for range 2 {
		for _, m := range columns {
			fmt.Fprintf(&line, "%*s", cellWidth, head(m))
		}
		line.WriteString("  ")
	}
	width := cellWidth * len(columns)
	d.show("%-21s%*s  %*s", "readable/there", width, "live", width, "in the restored backup")
	d.show("%-21s%s", "", strings.TrimRight(line.String(), " "))
	type surprise struct {
		where     string
		want, got count
	}
	var wrong []surprise
	cells := 0
	for _, r := range d.readers {
		line.Reset()
		for i, side := range []map[cell]count{live, backup} {
			for _, m := range columns {
				at := cell{r.c.tenant, r.of, m}
				p, got := d.promised[at], side[at]
				want := count{p.all, p.stays}
				if i == 0 {
					want.there = p.stays
				} else if p.all == 0 {
					want.read = 0
				}
				line.WriteString(d.shade(got))
				if p.all == 0 && got.there == 0 && want.there == 0 {
					continue // Nothing was ever there.
				}
				cells++
				if got != want {
					where := strings.Join([]string{[]string{"live", "backup"}[i], r.c.name, r.name, head(m)}, ", ")
					wrong = append(wrong, surprise{where, want, got})
				}
			}
			line.WriteString("  ")
		}
		name, _, _ := strings.Cut(r.name, "@")
		d.show("%-7s%-14s%s", r.c.name, shorten(name, 14), strings.TrimRight(line.String(), " "))
	}
	d.checks += cells - len(wrong)
	for _, w := range wrong {
		d.check(false, "What can be read is what has to be: "+w.where, "%s, and it has to be %s", w.got, w.want)
	}
	if len(wrong) == 0 {
		d.show("none: of no month. %s Each of the %d cells is what it has to be", d.paint(green, "✓"), cells)
	}
}

// cellWidth fits 100 columns.
const cellWidth = 8

// shade is a cell of the table, red where something is there and cannot be read.
func (d *demo) shade(c count) string {
	text := fmt.Sprintf("%*s", cellWidth, c)
	switch {
	case c.there == 0:
		return d.paint(dim, text)
	case c.read == 0:
		return d.paint(red, text)
	}
	return text
}
