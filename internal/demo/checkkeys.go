package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/ledger"
)

// checkKeys tries to derive Mara's keys: from the tree in the database, and
// from every tree in the ledger.
func (d *demo) checkKeys(ctx context.Context) error {
	d.section("Her keys")
	tree, err := d.live.tree(ctx, d.acme.tenant)
	if err != nil {
		return err
	}
	others, err := d.live.owner(ctx, d.acme.tenant, d.acme.added["jonas-2025-01-knee"][0])
	if err != nil {
		return err
	}
	k, err := d.keys.open(ctx, tree)
	if err != nil {
		return fmt.Errorf("opening the current tree: %w", err)
	}
	hers, neighbour := d.derivable(k, others)
	k.Drop()
	d.check(hers == 0 && neighbour, "The current tree does not derive them",
		"epoch %d, opened as the worker: %d of %d keys of hers; Jonas's key derives: %t", tree.epoch, hers, 1+len(d.mara.sessions), neighbour)
	return d.checkLedger(ctx, tree, others)
}

// derivable counts how many of Mara's keys can be derived, and reports whether
// another subject's can.
func (d *demo) derivable(k *shred.Keys, other memd.Number) (hers int, neighbour bool) {
	if _, err := k.Subject(d.mara.number); !errors.Is(err, memd.ErrShredded) {
		hers++
	}
	for n := range d.mara.sessions {
		if _, err := k.Session(d.mara.number, n); !errors.Is(err, memd.ErrShredded) {
			hers++
		}
	}
	_, err := k.Subject(other)
	return hers, err == nil
}

// checkLedger opens what the ledger keeps of acme's trees. Nothing is ever
// removed from it: what must not be read any more has lost its key.
func (d *demo) checkLedger(ctx context.Context, head sealedTree, other memd.Number) error {
	folder, err := ledger.Open(ctx, d.dev.Ledger)
	if err != nil {
		return fmt.Errorf("opening the ledger: %w", err)
	}
	names, err := folder.List(ctx, fmt.Sprintf("trees/%s/", d.acme.tenant))
	if err != nil {
		return fmt.Errorf("listing the ledger: %w", err)
	}
	opened, refused, hers := 0, 0, 0
	neighbours := true
	for _, name := range names {
		sealed, err := folder.Get(ctx, name)
		if err != nil {
			return fmt.Errorf("reading the ledger: %w", err)
		}
		k, err := d.keys.open(ctx, sealedTree{key: head.key, sealed: sealed})
		switch {
		case shredded(err):
			refused++
			continue
		case err != nil:
			return fmt.Errorf("opening a tree of the ledger: %w", err)
		}
		opened++
		n, ok := d.derivable(k, other)
		hers, neighbours = hers+n, neighbours && ok
		k.Drop()
	}
	versions, err := d.keys.worker.List(ctx, head.key)
	if err != nil {
		return fmt.Errorf("listing acme's key versions: %w", err)
	}
	var states []string
	for _, v := range versions {
		states = append(states, v.Name[strings.LastIndex(v.Name, "/")+1:]+" "+v.State.String())
	}
	d.check(opened == 1 && refused == len(names)-1 && refused > 0 && hers == 0 && neighbours,
		"Nor does any tree that was ever made: the key service refuses the old ones",
		"ledger: %d trees, %d refused, %d of her keys derived from the other; key versions: %s",
		len(names), refused, hers, strings.Join(states, ", "))
	return nil
}
