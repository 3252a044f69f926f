package fault

import (
	"context"

	"forgettable.dev/memd/shred/ledger"
)

// Ledgers are ledger locations behind a fuse.
func Ledgers(f *Fuse, locations []ledger.Ledger) []ledger.Ledger {
	all := make([]ledger.Ledger, len(locations))
	for i, l := range locations {
		all[i] = fusedLedger{f, l}
	}
	return all
}

type fusedLedger struct {
	f *Fuse
	l ledger.Ledger
}

func (l fusedLedger) Put(ctx context.Context, name string, data []byte) error {
	return l.f.through(Ledger, func() error { return l.l.Put(ctx, name, data) })
}

func (l fusedLedger) Get(ctx context.Context, name string) (data []byte, err error) {
	err = l.f.through(Ledger, func() (err error) { data, err = l.l.Get(ctx, name); return err })
	return data, err
}

func (l fusedLedger) List(ctx context.Context, prefix string) (names []string, err error) {
	err = l.f.through(Ledger, func() (err error) { names, err = l.l.List(ctx, prefix); return err })
	return names, err
}
