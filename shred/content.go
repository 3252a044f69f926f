package shred

import (
	"slices"

	"forgettable.dev/memd"
)

// Purposes of what belongs to class content: a session's events, state and
// artifacts, and the state and artifacts of users and apps.
const (
	purposeContent = "memd/content/v1"
	purposeState   = "memd/state/v1"
)

// Content returns the Sealer of a session's content. It needs the session's leaf
// of class content and the month's: erasing the session, or expiring the month,
// makes the content unreadable, and neither touches what memory took from it. With
// the own scope as session it is of what is a subject's and of no conversation, and
// has no month, whichever is given.
func (k *Keys) Content(m memd.Month, subject, session memd.Number) (*Sealer, error) {
	if session == memd.OwnScope {
		id := sealerID{purpose: purposeContent, subject: subject, session: session}
		return k.sealer(id, func() ([]byte, error) {
			return k.joined(leafID{branch: leafContent, subject: subject, session: session})
		})
	}
	if m < 1 {
		return nil, &memd.InvalidError{Field: "month", Problem: "must be given"}
	}
	id := sealerID{purpose: purposeContent, month: m, subject: subject, session: session}
	return k.sealer(id, func() ([]byte, error) {
		return k.joined(leafID{branch: leafContentMonth, month: m}, leafID{branch: leafContent, subject: subject, session: session})
	})
}

// State returns the Sealer of what lives as long as its contributors and is
// looked up without knowing a month: state, and the names of a user's
// artifacts. It needs the class content leaf of every contributor, so that
// erasing any one of them makes the value unreadable. Order and repetition of
// cs do not matter.
func (k *Keys) State(cs ...memd.Contribution) (*Sealer, error) {
	switch {
	case len(cs) == 0:
		return nil, &memd.InvalidError{Field: "contributions", Problem: "must not be empty"}
	case len(cs) > 1:
		cs = slices.Clone(cs)
		slices.SortFunc(cs, memd.Contribution.Compare)
		cs = slices.Compact(cs)
	}
	id := sealerID{purpose: purposeState}
	if len(cs) == 1 {
		id.subject, id.session = cs[0].Subject, cs[0].Session
	} else {
		id.closure = closureDigest(cs)
	}
	return k.sealer(id, func() ([]byte, error) {
		leaves := make([]leafID, len(cs))
		for i, c := range cs {
			leaves[i] = leafID{branch: leafContent, subject: c.Subject, session: c.Session}
		}
		return k.joined(leaves...)
	})
}

// joined returns the keys of several leaves, one after the other. The caller
// holds mu.
func (k *Keys) joined(leaves ...leafID) ([]byte, error) {
	secret := make([]byte, 0, len(leaves)*len(Key{}))
	for _, leaf := range leaves {
		key, err := k.leaf(leaf)
		if err != nil {
			clear(secret)
			return nil, err
		}
		secret = append(secret, key[:]...)
	}
	return secret, nil
}
