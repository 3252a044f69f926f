package sessions

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// Whose an entry of state is, as stored.
type stateKind int16

const (
	kindTemp    stateKind = 0 // nobody's: never stored
	kindSession stateKind = 1
	kindUser    stateKind = 2
	kindApp     stateKind = 3
)

// The prefixes of keys, which are ADK's.
const (
	prefixApp  = "app:"
	prefixUser = "user:"
	prefixTemp = "temp:"
)

func kindOf(key string) stateKind {
	switch {
	case strings.HasPrefix(key, prefixApp):
		return kindApp
	case strings.HasPrefix(key, prefixUser):
		return kindUser
	case strings.HasPrefix(key, prefixTemp):
		return kindTemp
	}
	return kindSession
}

func validateDelta(field string, delta map[string]string) error {
	if len(delta) > memd.MaxStateChanges {
		return invalid(field, "has more than %d entries", memd.MaxStateChanges)
	}
	for k, v := range delta {
		switch {
		case len(k) > memd.MaxIDBytes:
			return invalid(field, "has a key longer than %d bytes", memd.MaxIDBytes)
		case !utf8.ValidString(k) || !validJSON(v):
			return invalid(field, "has a value that is no JSON, such as \"text\" without its quotes")
		}
	}
	return nil
}

// sealers are the keys of one writer or reader of a session.
type sealers struct {
	k       *shred.Keys
	ref     memd.Ref          // the user's; of writers alone, and so
	session memd.Ref          // the session's
	of      memd.Contribution // the session; its session is the own scope where none is meant
	month   memd.Month
	app     memd.Number // the app's shared subject, 0 if nobody has needed it yet
	writer  memd.Number // whose word app state is, 0 for nobody's
	content *shred.Sealer
	opened  int // bytes that a reader opened
}

// user seals the user's state.
func (s *sealers) user() (*shred.Sealer, error) {
	return s.k.State(memd.Contribution{Subject: s.of.Subject, Session: memd.OwnScope})
}

// shared seals the app's state that contributor wrote, or nobody (0).
func (s *sealers) shared(contributor memd.Number) (*shred.Sealer, error) {
	cs := []memd.Contribution{{Subject: s.app, Session: memd.OwnScope}}
	if contributor != 0 {
		cs = append(cs, memd.Contribution{Subject: contributor, Session: memd.OwnScope})
	}
	return s.k.State(cs...)
}

func digestKey(s *shred.Sealer, kind stateKind, key string) [16]byte {
	return s.Digest([]byte{'s', 't', 'a', 't', 'e', byte(kind)}, []byte(key))
}

// entries are sealed changes of state, column by column as the database takes
// them. events says which event of the batch each came with, from 1.
type entries struct {
	events []int32
	kinds  []int16
	keys   [][]byte
	values [][]byte
	bytes  int
}

// emptyEntries has no nil, which would be NULL.
func emptyEntries() *entries {
	return &entries{events: []int32{}, kinds: []int16{}, keys: [][]byte{}, values: [][]byte{}}
}

// add seals a delta. temp: keys are left out.
func (e *entries) add(s *sealers, event int, delta map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(delta)) {
		kind := kindOf(key)
		if kind == kindTemp {
			continue
		}
		plain := appendText(nil, key)
		plain = append(plain, delta[key]...)
		digest, sealed, err := s.seal(kind, key, plain)
		if err != nil {
			return err
		}
		e.events, e.kinds = append(e.events, int32(event)), append(e.kinds, int16(kind))
		e.keys, e.values = append(e.keys, digest[:]), append(e.values, sealed)
		e.bytes += len(plain)
	}
	if len(e.kinds) > memd.MaxStateChanges || e.bytes > memd.MaxStateBytes {
		return invalid("state_delta", "entries of one write are more than %d, or larger than %d bytes; split it", memd.MaxStateChanges, memd.MaxStateBytes)
	}
	return nil
}

func (s *sealers) seal(kind stateKind, key string, plain []byte) (digest [16]byte, sealed []byte, err error) {
	by, index := s.content, s.content
	var aad func(digest [16]byte) []byte
	switch kind {
	case kindSession:
		aad = func(d [16]byte) []byte {
			return shred.AADSessionState(s.k.Tenant(), s.of.Subject, s.of.Session, d)
		}
	case kindUser:
		if by, err = s.user(); err != nil {
			return digest, nil, err
		}
		index = by
		aad = func(d [16]byte) []byte { return shred.AADUserState(s.k.Tenant(), s.of.Subject, d) }
	default:
		if index, err = s.shared(0); err != nil {
			return digest, nil, err
		}
		if by, err = s.shared(s.writer); err != nil {
			return digest, nil, err
		}
		aad = func(d [16]byte) []byte { return shred.AADAppState(s.k.Tenant(), s.app, s.writer, d) }
	}
	digest = digestKey(index, kind, key)
	if sealed, err = by.SealWhole(plain, aad(digest)); err != nil {
		return digest, nil, fmt.Errorf("sealing state: %w", err)
	}
	return digest, sealed, nil
}

// open opens an entry of state and returns its key, prefix included, and value.
func (s *sealers) open(kind stateKind, contributor memd.Number, digest [16]byte, sealed []byte) (key, value string, err error) {
	by := s.content
	var aad []byte
	switch kind {
	case kindSession:
		aad = shred.AADSessionState(s.k.Tenant(), s.of.Subject, s.of.Session, digest)
	case kindUser:
		by, err = s.user()
		aad = shred.AADUserState(s.k.Tenant(), s.of.Subject, digest)
	default:
		by, err = s.shared(contributor)
		aad = shred.AADAppState(s.k.Tenant(), s.app, contributor, digest)
	}
	if err != nil {
		return "", "", err
	}
	plain, err := by.Open(sealed, aad)
	if err != nil {
		return "", "", fmt.Errorf("opening state: %w", err)
	}
	key, rest, err := cutText(plain)
	return key, string(rest), err
}
