package memd

import (
	"errors"
	"fmt"
)

// Errors that callers can test for with errors.Is. Each has one row in the
// server's error map, which gives it a code and a machine-readable reason; none
// carries content, ids or a driver's text.
var (
	// ErrNotFound: the thing is not there, or is another tenant's or owner's.
	// The two cannot be told apart.
	ErrNotFound = errors.New("not found")
	// ErrExists: a thing of that name exists and differs.
	ErrExists = errors.New("exists already")
	// ErrUnauthenticated: no API key, an unknown one, or a revoked one. From the
	// KMS: it refused the credentials of this process.
	ErrUnauthenticated = errors.New("not authenticated")
	// ErrPermissionDenied: the API key's roles do not allow the call. From the
	// KMS: the rights of this process do not.
	ErrPermissionDenied = errors.New("permission denied")
	// ErrTenantInactive: the tenant is being set up, suspended or gone.
	ErrTenantInactive = errors.New("tenant is not active")

	// ErrNotApproved: what cannot be undone needs the approval of somebody else,
	// and there is none that holds.
	ErrNotApproved = errors.New("not approved")

	// ErrFenced: the user is being erased; nothing may be written. Temporary.
	ErrFenced = errors.New("subject is being erased")
	// ErrSessionForgotten: the session was erased; its id is refused for ever.
	ErrSessionForgotten = errors.New("session was erased")
	// ErrMemoryDeleted: the memory was deleted and may not come back.
	ErrMemoryDeleted = errors.New("memory was deleted")
	// ErrSourceTimeRequired: a user who was once erased must say when the words
	// were spoken.
	ErrSourceTimeRequired = errors.New("source time is required for a user who was erased before")
	// ErrErasedBefore: the words are older than the user's last erasure.
	ErrErasedBefore = errors.New("source is older than the user's last erasure")
	// ErrMonthExpired: the month of the source was expired by retention.
	ErrMonthExpired = errors.New("month of the source has expired")
	// ErrMonthKept: the tenant's policy or a legal hold keeps the month, so that it
	// cannot be expired.
	ErrMonthKept = errors.New("month is to be kept")
	// ErrSourceGone: a source of a derived row is erased, deleted, changed
	// since it was read, or not visible to the writer.
	ErrSourceGone = errors.New("source is gone or has changed")
	// ErrStale: a cached number or key was out of date. Safe to retry; the
	// service retries once by itself.
	ErrStale = errors.New("state changed underneath the call")
	// ErrVersionConflict: the row has another version than the caller expected.
	ErrVersionConflict = errors.New("version conflict")
	// ErrSessionChanged: the session was written to since the caller read it.
	// Read it again and decide again.
	ErrSessionChanged = errors.New("session has changed since it was read")
	// ErrStateFull: a session, user or app would have more state than MaxStateKeys
	// or MaxStateOfOwner. Replace values with smaller ones, or keep them in
	// artifacts.
	ErrStateFull = errors.New("owner would have too much state")
	// ErrQuotaReached: the tenant has all the rows or bytes that its quotas give it.
	// What adds to them is refused until something is deleted or a quota raised.
	ErrQuotaReached = errors.New("tenant has reached its quota")
	// ErrRequestReused: a request id came again with different contents.
	ErrRequestReused = errors.New("request id was used for another request")
	// ErrTooManyContributions: a derived row would draw on more than
	// MaxContributions sessions.
	ErrTooManyContributions = errors.New("row draws on too many sessions")

	// ErrShredded: the key was destroyed. Permanent, and the aim of erasure.
	ErrShredded = errors.New("key was shredded")
	// ErrKeyUnavailable: the KMS could not be asked, or refuses this process.
	// Temporary, though the latter needs an operator.
	ErrKeyUnavailable = errors.New("key is unavailable")
	// ErrCorrupt: a sealed value or a stored state does not verify.
	ErrCorrupt = errors.New("stored data does not verify")
	// ErrEmbedderUnavailable: the embedder could not be asked. Temporary.
	ErrEmbedderUnavailable = errors.New("embedder is unavailable")
	// ErrDatabaseBusy: no database connection became free in time. Temporary.
	ErrDatabaseBusy = errors.New("no database connection in time")
	// ErrTooManyStreams: this process streams as many artifacts as it may at once.
	// Temporary.
	ErrTooManyStreams = errors.New("too many artifact streams at once")
	// ErrTooManyCalls: the tenant's agents make more calls a second than its quota
	// gives them. Temporary.
	ErrTooManyCalls = errors.New("tenant makes too many calls a second")
	// ErrDatabaseUnavailable: the database could not be reached, or gave up on
	// the statement, or this process's lease in it has ended. Temporary.
	ErrDatabaseUnavailable = errors.New("database is unavailable")
	// ErrLedgerUnavailable: a ledger location could not be read or written.
	// Temporary; a write may have taken effect.
	ErrLedgerUnavailable = errors.New("ledger is unavailable")
	// ErrRolledBack: the database was rolled back, is behind its ledger or another
	// one's, or nobody has compared the two yet. It does not serve until memd
	// restore has run; when nothing is missing it opens by itself.
	ErrRolledBack = errors.New("database was rolled back and does not serve")
	// ErrSchemaVersion: the database has another schema than this binary.
	ErrSchemaVersion = errors.New("database has another schema version")
	// ErrErasureUnfinished: the erasure is accepted and goes on, but was not
	// finished when the caller's time ran out. Ask again with the same id.
	ErrErasureUnfinished = errors.New("erasure is still running")

	// ErrTargetUnavailable: a purge target did not do what it was asked, and may
	// do it later. Temporary.
	ErrTargetUnavailable = errors.New("purge target is unavailable")
	// ErrTargetRefused: a purge target will not do it until somebody changes
	// something: its secret, its address, its right to a file.
	ErrTargetRefused = errors.New("purge target refused")

	// ErrExportNotReady: the archive is still being made, or made anew because
	// somebody in it was erased, or has ended.
	ErrExportNotReady = errors.New("export is not ready")
	// ErrExportsUnavailable: the place of archives is not set, or could not be
	// asked. Temporary.
	ErrExportsUnavailable = errors.New("place of export archives is unavailable")

	// ErrInvalid is the class of every InvalidError.
	ErrInvalid = errors.New("invalid request")
)

// InvalidError says which field of a request is wrong and what to do about it.
// Neither part repeats the value.
type InvalidError struct {
	Field   string
	Problem string
}

// Error implements error.
func (e *InvalidError) Error() string { return fmt.Sprintf("%s %s", e.Field, e.Problem) }

// Is makes every InvalidError an ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// RefusalError is an error of a class, such as ErrNotApproved, that says what to
// do about it. The text is for the caller: it repeats no value of anybody's.
type RefusalError struct {
	Class   error
	Problem string
}

// Error implements error.
func (e *RefusalError) Error() string { return e.Class.Error() + ": " + e.Problem }

// Unwrap makes it one of its class.
func (e *RefusalError) Unwrap() error { return e.Class }

// Transient reports whether the same call may succeed later without the caller
// changing anything. It asks the whole chain.
func Transient(err error) bool {
	for _, t := range []error{
		ErrKeyUnavailable, ErrEmbedderUnavailable, ErrDatabaseBusy, ErrTooManyStreams, ErrTooManyCalls, ErrDatabaseUnavailable, ErrLedgerUnavailable, ErrStale, ErrErasureUnfinished, ErrTargetUnavailable, ErrRolledBack, ErrExportsUnavailable,
	} {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}
