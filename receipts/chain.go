package receipts

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"forgettable.dev/memd"
)

// Chain is what a set of bundles of one log shows.
type Chain struct {
	Origin string
	// First and Next bound the entries: First is the index of the first, Next
	// one above the last.
	First, Next uint64
	// Head is the last entry's checkpoint.
	Head Checkpoint
}

// VerifyChain checks bundles of one log, in any order, and that nothing is
// missing among them, nothing was put in another order, and no entry has two
// contents. old are checkpoints of the same log that were kept: the bundles must
// be a continuation of each, so that a log that was rewritten is found out, and
// must reach at least as far, so that a dropped end is. Without one, the bundles
// must begin at the log's first entry.
//
// A checkpoint older than the first bundle, or between bundles that are not
// given, cannot be compared; that is an error too. All are memd.ErrCorrupt.
func VerifyChain(bundles []Bundle, keys *Keys, old ...Checkpoint) (Chain, error) {
	bundles, err := inOrder(bundles)
	if err != nil {
		return Chain{}, err
	}
	first := bundles[0].Entry
	chain := Chain{Origin: first.Origin, First: first.Index, Next: first.Index}
	for _, c := range old {
		if c.Origin != chain.Origin {
			return Chain{}, corrupt("checkpoint is another log's")
		}
	}
	if len(old) == 0 && first.Index != 0 {
		return Chain{}, corrupt(fmt.Sprintf("receipts before number %d are missing", first.Index))
	}
	line, err := borderBefore(first.Index, bundles[0].Inclusion)
	if err != nil {
		return Chain{}, err
	}
	if err := checkOld(line, old); err != nil {
		return Chain{}, err
	}
	previous := first.Previous
	provisional := map[Digest]Receipt{}
	for _, b := range bundles {
		if b.Entry.Origin != chain.Origin {
			return Chain{}, corrupt("receipts are of two logs")
		}
		if b.Entry.Index != chain.Next {
			return Chain{}, corrupt(fmt.Sprintf("receipt number %d is missing", chain.Next))
		}
		if chain.Head, err = b.Verify(keys); err != nil {
			return Chain{}, fmt.Errorf("receipt number %d: %w", b.Entry.Index, err)
		}
		leaf, err := b.Entry.Leaf()
		if err != nil {
			return Chain{}, err
		}
		if b.Entry.Previous != previous || !slices.Equal(line.proofOfNext(), b.Inclusion) {
			return Chain{}, corrupt(fmt.Sprintf("receipt number %d does not continue the one before it", b.Entry.Index))
		}
		if err := line.append(leaf); err != nil {
			return Chain{}, err
		}
		previous = leaf
		chain.Next++
		if err := checkOld(line, old); err != nil {
			return Chain{}, err
		}
		if err := checkPrior(b.Entry.Receipt, provisional, chain.First == 0); err != nil {
			return Chain{}, fmt.Errorf("receipt number %d: %w", b.Entry.Index, err)
		}
		if b.Entry.Receipt.Stage == Provisional {
			provisional[leaf] = b.Entry.Receipt
		}
	}
	for _, c := range old {
		switch {
		case c.Size < chain.First:
			return Chain{}, corrupt(fmt.Sprintf("receipts from number %d to %d are missing, between checkpoint and first receipt", c.Size, chain.First-1))
		case c.Size > chain.Next:
			return Chain{}, corrupt(fmt.Sprintf("receipts from number %d to %d are missing, which the checkpoint counts", chain.Next, c.Size-1))
		}
	}
	return chain, nil
}

// inOrder sorts by place, drops repetitions and finds forks.
func inOrder(bundles []Bundle) ([]Bundle, error) {
	if len(bundles) == 0 {
		return nil, corrupt("no receipts were given")
	}
	bundles = slices.SortedStableFunc(slices.Values(bundles), func(a, b Bundle) int {
		return cmp.Or(cmp.Compare(a.Entry.Origin, b.Entry.Origin), cmp.Compare(a.Entry.Index, b.Entry.Index))
	})
	out := bundles[:1]
	for _, b := range bundles[1:] {
		last := out[len(out)-1]
		if b.Entry.Origin != last.Entry.Origin || b.Entry.Index != last.Entry.Index {
			out = append(out, b)
			continue
		}
		one, err := last.Encode()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", memd.ErrCorrupt, err)
		}
		two, err := b.Encode()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", memd.ErrCorrupt, err)
		}
		if !bytes.Equal(one, two) {
			return nil, corrupt(fmt.Sprintf("there are two different receipts number %d: the log was forked", b.Entry.Index))
		}
	}
	return out, nil
}

// checkOld compares the line with the checkpoints of its size.
func checkOld(line border, old []Checkpoint) error {
	for _, c := range old {
		if c.Size != line.size() {
			continue
		}
		root, err := line.root()
		if err != nil {
			return err
		}
		if root != c.Root {
			return corrupt(fmt.Sprintf("the log's first %d receipts are not those of the checkpoint: it was rewritten", c.Size))
		}
	}
	return nil
}

// checkPrior demands that a final receipt continues a provisional one of the
// same request, where the whole log is given.
func checkPrior(r Receipt, provisional map[Digest]Receipt, whole bool) error {
	if r.Stage != Final {
		return nil
	}
	prior, ok := provisional[*r.Prior]
	switch {
	case !ok && whole:
		return corrupt("its provisional receipt is not in the log")
	case ok && (prior.RequestID != r.RequestID || prior.Commitment != r.Commitment || prior.Kind != r.Kind || prior.Tenant != r.Tenant):
		return corrupt("its provisional receipt is another erasure's")
	}
	return nil
}
