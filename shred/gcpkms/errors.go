package gcpkms

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// errDamaged is damage in transit: a checksum that does not fit, or an answer
// that does not say that ours was verified. Tried again; memd.ErrCorrupt when
// it stays.
var errDamaged = fmt.Errorf("%w: damaged in transit", memd.ErrCorrupt)

// errPending is a version that is still being generated.
var errPending = fmt.Errorf("%w: version is still being generated", memd.ErrKeyUnavailable)

// answerError is a refusal of the KMS, reduced to what cannot hold content.
type answerError struct {
	class  error // a memd sentinel
	code   codes.Code
	reason string // of a google.rpc.ErrorInfo; may be empty
}

func (e *answerError) Error() string {
	if e.reason != "" {
		return fmt.Sprintf("%v (%v, %s)", e.class, e.code, e.reason)
	}
	return fmt.Sprintf("%v (%v)", e.class, e.code)
}

func (e *answerError) Unwrap() error { return e.class }

// classify turns the error of one attempt into one of this package's and says
// whether the attempt is worth repeating. Errors that this package made pass
// unchanged.
func classify(method string, err error) (error, bool) {
	if err == nil {
		return nil, false
	}
	if errors.Is(err, errDamaged) || errors.Is(err, errPending) {
		return err, true
	}
	s, ok := status.FromError(err)
	if !ok {
		if errors.Is(err, context.DeadlineExceeded) {
			return &answerError{memd.ErrKeyUnavailable, codes.DeadlineExceeded, ""}, true
		}
		if isOurs(err) {
			return err, false
		}
		// The client library's own trouble (credentials that cannot be fetched,
		// say). Its text is dropped like every foreign one.
		return &answerError{memd.ErrKeyUnavailable, codes.Unknown, ""}, false
	}
	answer := func(class error) error { return &answerError{class, s.Code(), reason(s)} }
	switch s.Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return answer(memd.ErrKeyUnavailable), true
	case codes.FailedPrecondition:
		switch state, version := refusedState(s); state {
		case shred.VersionDisabled, shred.VersionDestroyScheduled, shred.VersionDestroyed:
			return &shred.VersionStateError{Version: version, State: state}, false
		case shred.VersionPending:
			return errPending, true
		default:
			return answer(memd.ErrKeyUnavailable), false
		}
	case codes.PermissionDenied:
		return answer(memd.ErrPermissionDenied), false
	case codes.Unauthenticated:
		return answer(memd.ErrUnauthenticated), false
	case codes.NotFound:
		return answer(memd.ErrNotFound), false
	case codes.AlreadyExists:
		return answer(memd.ErrExists), false
	case codes.InvalidArgument:
		switch {
		// The service found that what arrived is not what was sent. Documented
		// text: "The checksum in field F_crc32c did not match the data in field F."
		case strings.Contains(s.Message(), "did not match the data in field"):
			return errDamaged, true
		case method == "Decrypt":
			return answer(memd.ErrCorrupt), false
		default:
			return answer(memd.ErrInvalid), false
		}
	default:
		return answer(memd.ErrKeyUnavailable), false
	}
}

func isOurs(err error) bool {
	for _, class := range []error{memd.ErrCorrupt, memd.ErrInvalid, memd.ErrKeyUnavailable, memd.ErrExists, memd.ErrShredded, memd.ErrNotFound} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

var (
	statePattern  = regexp.MustCompile(`^(\S+) is not enabled, current state is: ([A-Z_]+)\.?$`)
	reasonPattern = regexp.MustCompile(`^[A-Z0-9_]{1,63}$`)
)

var stateNames = map[string]shred.VersionState{
	"DISABLED":           shred.VersionDisabled,
	"DESTROY_SCHEDULED":  shred.VersionDestroyScheduled,
	"DESTROYED":          shred.VersionDestroyed,
	"PENDING_GENERATION": shred.VersionPending,
}

// refusedState reads out of a FAILED_PRECONDITION which version was refused for
// which state. It returns VersionUnknown unless the answer names the state, and
// also when its two places contradict each other.
func refusedState(s *status.Status) (state shred.VersionState, version string) {
	for _, d := range s.Details() {
		failure, ok := d.(*errdetails.PreconditionFailure)
		if !ok {
			continue
		}
		for _, v := range failure.GetViolations() {
			if named, ok := stateNames[strings.TrimPrefix(v.GetType(), "KEY_")]; ok {
				state, version = named, versionName(v.GetSubject())
			}
		}
	}
	match := statePattern.FindStringSubmatch(s.Message())
	if match == nil {
		return state, version
	}
	named := stateNames[match[2]]
	if state == shred.VersionUnknown {
		return named, versionName(match[1])
	}
	if named != state {
		return shred.VersionUnknown, ""
	}
	return state, version
}

// versionName lets a resource name through into an error and nothing else.
func versionName(s string) string {
	if versionPattern.MatchString(s) {
		return s
	}
	return ""
}

func reason(s *status.Status) string {
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && reasonPattern.MatchString(info.GetReason()) {
			return info.GetReason()
		}
	}
	return ""
}

// refusedForState reports whether err is a FAILED_PRECONDITION, whatever state
// it names or fails to name.
func refusedForState(err error) bool {
	var state *shred.VersionStateError
	var answer *answerError
	return errors.As(err, &state) || errors.As(err, &answer) && answer.code == codes.FailedPrecondition
}

// timedOut reports whether err is an attempt that ran into its deadline.
func timedOut(err error) bool {
	var answer *answerError
	return errors.As(err, &answer) && answer.code == codes.DeadlineExceeded
}
