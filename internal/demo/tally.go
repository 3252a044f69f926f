package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/ledger"
)

// thing is anything that is sealed in a tenant's tables: a memory, an event, an
// entry of state, a file's name or its bytes.
type thing struct {
	of    memd.Number
	month memd.Month // 0: of none
	// has reports whether a subject's words are in it, and open what it says.
	has  func(memd.Number) bool
	open func(*shred.Keys) (string, error)
	// said reports whether that is what was said.
	said func(string) bool
}

// readWith returns what it says, if one of the keys opens it.
func (t *thing) readWith(keys keyring) (string, bool) {
	for _, k := range keys {
		if text, err := t.open(k); err == nil {
			return text, t.said(text)
		}
	}
	return "", false
}

// things returns all that a database, live or restored, has of a customer.
func (c *customer) things(ctx context.Context, w *witness) ([]thing, error) {
	rows, err := w.rows(ctx, c.tenant)
	if err != nil {
		return nil, err
	}
	kept, err := w.content(ctx, c.tenant)
	if err != nil {
		return nil, err
	}
	var out []thing
	for i := range rows {
		r := &rows[i]
		out = append(out, thing{r.owner, r.month, r.has, r.open, func(text string) bool { return text == c.texts[r.id.String()] }})
	}
	for i := range kept {
		k := &kept[i]
		open := func(keys *shred.Keys) (string, error) {
			plain, err := k.open(keys)
			return string(plain), err
		}
		month := k.month
		if k.of.Session == memd.OwnScope {
			month = 0 // Of the user or the app, whenever it was written.
		}
		out = append(out, thing{k.of.Subject, month, k.has, open, func(text string) bool { return sayAny(text, c.said) }})
	}
	return out, nil
}

// cell is what a tenant has of one of its users, or of its app, of one month.
type cell struct {
	tenant memd.TenantNo
	of     memd.Number
	month  memd.Month
}

// count is how many things there are, and how many of them can be read.
type count struct{ there, read int }

func (c count) String() string {
	if c.there == 0 {
		return "–"
	}
	return fmt.Sprintf("%d/%d", c.read, c.there)
}

// tally counts things by cell, each with whichever of the keys opens it.
func tally(into map[cell]count, c *customer, all []thing, keys keyring) {
	for i := range all {
		t := &all[i]
		at := cell{c.tenant, t.of, t.month}
		n := into[at]
		n.there++
		if _, ok := t.readWith(keys); ok {
			n.read++
		}
		into[at] = n
	}
}

// keyring is every key tree of a tenant that opens.
type keyring []*shred.Keys

func (k keyring) drop() {
	for _, keys := range k {
		keys.Drop()
	}
}

// keysAtHand opens every key tree of a tenant that there is anywhere, as whoever
// has the databases, the ledger and the worker's identity at the key service. The
// caller drops them.
func (d *demo) keysAtHand(ctx context.Context, tenant memd.TenantNo, databases ...*witness) (keyring, error) {
	var trees []sealedTree
	for _, w := range databases {
		t, err := w.tree(ctx, tenant)
		if err == nil {
			trees = append(trees, t)
		} else if !errors.Is(err, pgx.ErrNoRows) {
			return nil, err
		}
	}
	folder, err := ledger.Open(ctx, d.dev.Ledger)
	if err != nil {
		return nil, fmt.Errorf("opening the ledger: %w", err)
	}
	names, err := folder.List(ctx, fmt.Sprintf("trees/%s/", tenant))
	if err != nil {
		return nil, fmt.Errorf("listing the ledger: %w", err)
	}
	for _, name := range names {
		sealed, err := folder.Get(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("reading the ledger: %w", err)
		}
		trees = append(trees, sealedTree{key: d.kmsKeys[tenant], sealed: sealed})
	}
	var keys keyring
	for _, t := range trees {
		k, err := d.keys.open(ctx, t)
		switch {
		case err == nil:
			keys = append(keys, k)
		case !shredded(err):
			return keys, fmt.Errorf("opening a key tree: %w", err)
		}
	}
	return keys, nil
}
