package shred

import (
	"fmt"

	"forgettable.dev/memd"
)

// VersionStateError is the KMS's refusal to use a version because of its state.
// It is a memd.ErrShredded, and says which of the shredded states it was, so
// that a confirmation of destruction can be told from a version that somebody
// merely disabled.
type VersionStateError struct {
	// Version is the full name of the version, or empty when the KMS did not
	// give it.
	Version string
	// State is VersionDisabled, VersionDestroyScheduled or VersionDestroyed.
	State VersionState
}

// Error implements error.
func (e *VersionStateError) Error() string {
	if e.Version == "" {
		return fmt.Sprintf("%v: version is %v", memd.ErrShredded, e.State)
	}
	return fmt.Sprintf("%v: %s is %v", memd.ErrShredded, e.Version, e.State)
}

// Unwrap makes every VersionStateError a memd.ErrShredded.
func (e *VersionStateError) Unwrap() error { return memd.ErrShredded }
