package shred

import (
	"fmt"

	"forgettable.dev/memd"
)

// The directory's columns: the ids of users and sessions, sealed without a
// month, each under a key that dies with whom it names.

// SealUserID seals a user id under the subject's own-scope leaf.
func (k *Keys) SealUserID(subject memd.Number, userID string) ([]byte, error) {
	s, err := k.Subject(subject)
	if err != nil {
		return nil, err
	}
	return s.Seal([]byte(userID), AADUserID(k.tenant, subject))
}

// OpenUserID opens what SealUserID sealed. A forgotten user's is
// memd.ErrShredded.
func (k *Keys) OpenUserID(subject memd.Number, sealed []byte) (string, error) {
	s, err := k.Subject(subject)
	if err != nil {
		return "", err
	}
	b, err := s.Open(sealed, AADUserID(k.tenant, subject))
	if err != nil {
		return "", fmt.Errorf("opening a user id: %w", err)
	}
	return string(b), nil
}

// SealSessionID seals a session id under the session's own leaf of the memory
// class, so that the id of a forgotten session cannot be read in a backup
// while its user lives on.
func (k *Keys) SealSessionID(subject, session memd.Number, sessionID string) ([]byte, error) {
	s, err := k.Session(subject, session)
	if err != nil {
		return nil, err
	}
	return s.Seal([]byte(sessionID), AADSessionID(k.tenant, subject, session))
}

// OpenSessionID opens what SealSessionID sealed. A forgotten session's is
// memd.ErrShredded.
func (k *Keys) OpenSessionID(subject, session memd.Number, sealed []byte) (string, error) {
	s, err := k.Session(subject, session)
	if err != nil {
		return "", err
	}
	b, err := s.Open(sealed, AADSessionID(k.tenant, subject, session))
	if err != nil {
		return "", fmt.Errorf("opening a session id: %w", err)
	}
	return string(b), nil
}
