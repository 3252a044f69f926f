package shred

import (
	"context"
	"time"
)

// VersionState is the state of one version of a KMS key.
type VersionState uint8

// The states of a version. New ones are appended, never inserted.
const (
	// VersionUnknown is the zero value, and any state that memd has no use for
	// (import and external states among them). It proves nothing.
	VersionUnknown VersionState = iota
	// VersionPending: being generated; usable soon.
	VersionPending
	// VersionEnabled: usable.
	VersionEnabled
	// VersionDisabled: not usable until somebody enables it again.
	VersionDisabled
	// VersionDestroyScheduled: not usable, destroyed at Version.DestroyAt, and
	// until then restorable by an operator.
	VersionDestroyScheduled
	// VersionDestroyed: the key material is gone.
	VersionDestroyed
)

// String returns the state as Cloud KMS spells it.
func (s VersionState) String() string {
	switch s {
	case VersionPending:
		return "PENDING_GENERATION"
	case VersionEnabled:
		return "ENABLED"
	case VersionDisabled:
		return "DISABLED"
	case VersionDestroyScheduled:
		return "DESTROY_SCHEDULED"
	case VersionDestroyed:
		return "DESTROYED"
	default:
		return "UNKNOWN"
	}
}

// Doomed reports whether the version is destroyed or waits to be.
func (s VersionState) Doomed() bool {
	return s == VersionDestroyScheduled || s == VersionDestroyed
}

// Version is one version of a KMS key, as the KMS describes it.
type Version struct {
	// Name is the full resource name, …/cryptoKeys/K/cryptoKeyVersions/N.
	Name  string
	State VersionState
	// CreatedAt is when the version was made.
	CreatedAt time.Time
	// DestroyAt is when the material will be destroyed; zero unless the state is
	// VersionDestroyScheduled.
	DestroyAt time.Time
	// DestroyedAt is when it was; zero unless the state is VersionDestroyed.
	DestroyedAt time.Time
}

// KMS is one identity of the key service. Two implementations exist in shape:
// the Cloud KMS client of shred/gcpkms, against Google's service and against
// the emulator of shred/kmsemu. All methods are safe for concurrent use, and
// all of them repeat by themselves, within a bound, what failed in passing.
//
// Errors are, asked with errors.Is:
//
//   - memd.ErrShredded: the version exists and may not be used: scheduled for
//     destruction, destroyed, or disabled. Only the KMS's own answer says so.
//     Get tells which of the three it is.
//   - memd.ErrKeyUnavailable: the KMS could not be asked. Says nothing about the key.
//   - memd.ErrPermissionDenied, memd.ErrNotFound: as the KMS answered.
//   - memd.ErrCorrupt: a ciphertext or its associated data do not verify, an
//     answer kept failing its checksum, or it names another version than was asked for.
//   - memd.ErrUnauthenticated: the identity's own credentials were refused.
//   - memd.ErrInvalid: the KMS refused an argument; a destroy delay outside the
//     allowed range, for one.
//
// No error holds plaintext, associated data or ciphertext.
type KMS interface {
	// CreateKey makes a symmetric key without automatic rotation and returns its
	// full name and the name of its first version that is enabled. keyID is the
	// last part of the name. destroyDelay is how long a version stays scheduled
	// before it is destroyed, fixed for the key's life: 24 h to 120 days, 0 for
	// the service's default of 30 days. Safe to repeat: a key that exists with
	// the same delay is returned with its first enabled version; with another
	// delay or purpose, or with automatic rotation, the error is memd.ErrExists;
	// with no enabled version, memd.ErrShredded.
	CreateKey(ctx context.Context, keyID string, destroyDelay time.Duration) (key, version string, err error)
	// CreateVersion makes a new version of key and returns its name once it is
	// enabled. Not safe to repeat: an attempt whose answer was lost leaves a
	// version behind, which List shows.
	CreateVersion(ctx context.Context, key string) (version string, err error)
	// Encrypt encrypts under exactly this version: never "primary".
	Encrypt(ctx context.Context, version string, plaintext, aad []byte) ([]byte, error)
	// Decrypt decrypts what any enabled version of key encrypted with the same aad.
	Decrypt(ctx context.Context, key string, ciphertext, aad []byte) ([]byte, error)
	// Get describes one version.
	Get(ctx context.Context, version string) (Version, error)
	// List describes every version of key, oldest first, destroyed ones included.
	List(ctx context.Context, key string) ([]Version, error)
	// Destroy schedules a version for destruction and returns it as it is then.
	// Safe to repeat: a version already scheduled or destroyed is success.
	Destroy(ctx context.Context, version string) (Version, error)
}
