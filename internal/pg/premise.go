package pg

import "errors"

// ErrPremise says that what a call relied on is no longer so, or cannot be told
// to be. Nothing that the call found is to be used.
var ErrPremise = errors.New("what the call relies on has changed")

// Premise is what an earlier statement found and a call relies on. Instead of
// asking again first, the call has its own statement compare the revision with
// the view memd.premises: in the same snapshot as its answer, and without a
// round trip. A nil Premise relies on nothing and always holds. It belongs to
// one call.
type Premise struct {
	// Of names what was found, and Revision in which version.
	Of       []byte
	Revision []uint32

	held bool
}

// Args adds the arguments @premise and @revision, which are NULL without a
// premise.
func (p *Premise) Args(to Args) {
	if p == nil {
		to["premise"], to["revision"] = []byte(nil), []uint32(nil)
		return
	}
	to["premise"], to["revision"] = p.Of, p.Revision
}

// Settle takes what the statement said, and returns ErrPremise unless the
// premise holds. The last answer counts.
func (p *Premise) Settle(held bool) error {
	if p == nil {
		return nil
	}
	if p.held = held; !held {
		return ErrPremise
	}
	return nil
}

// Held reports whether the call's own statement found that the premise holds.
func (p *Premise) Held() bool { return p != nil && p.held }
