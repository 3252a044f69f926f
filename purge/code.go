package purge

import (
	"fmt"
	"time"

	"forgettable.dev/memd"
)

// Code says how a call ended, in a word that is stable, safe to log, and tells
// nothing about anybody.
type Code string

// Codes of calls that were acknowledged.
const (
	// CodeOK: done, with a count.
	CodeOK Code = "ok"
	// CodeUncounted: the target says that it did it and gave no number. As an
	// answer to Verify it proves nothing.
	CodeUncounted Code = "uncounted"
	// CodeResidual: the target erases by its retention alone: what it holds goes
	// by Ack.ResidualUntil.
	CodeResidual Code = "residual"
)

// Codes of calls that may end better later.
const (
	// CodePending: the target erases in the background.
	CodePending Code = "pending"
	// CodeRemaining: Verify found something.
	CodeRemaining Code = "remaining"
	// CodeTimeout: no answer within the target's timeout.
	CodeTimeout Code = "timeout"
	// CodeUnreachable: no connection, or it broke.
	CodeUnreachable Code = "unreachable"
	// CodeBusy: the target asks for fewer calls, or is down for now.
	CodeBusy Code = "busy"
	// CodeFailed: the target says that it failed.
	CodeFailed Code = "failed"
	// CodeLogBusy: the log file changed under the hand, or its last line is being
	// written.
	CodeLogBusy Code = "log_busy"
	// CodeLogMissing: there is no such file. It may be being rotated; a path that
	// was never right must not count as an empty log.
	CodeLogMissing Code = "log_missing"
	// CodeLogFailed: the file could not be read or written.
	CodeLogFailed Code = "log_failed"
	// CodeCanceled: the caller gave up.
	CodeCanceled Code = "canceled"
	// CodeKey: the secret could not be opened for now.
	CodeKey Code = "key"
)

// Codes of calls that end alike until somebody changes something.
const (
	// CodeUnauthorised: the target refuses memd's secret.
	CodeUnauthorised Code = "unauthorised"
	// CodeUnimplemented: there is nothing at that address that erases, or the
	// target cannot do what was asked.
	CodeUnimplemented Code = "unimplemented"
	// CodeRefused: the target refuses the request.
	CodeRefused Code = "refused"
	// CodeMalformed: the answer is not what a target may say.
	CodeMalformed Code = "malformed"
	// CodeTooLarge: the answer is larger than a target's may be.
	CodeTooLarge Code = "too_large"
	// CodeRedirected: the target sends elsewhere, where memd does not follow.
	CodeRedirected Code = "redirected"
	// CodeAddress: the address is private, loopback, link-local or a machine's
	// metadata, and not allowed.
	CodeAddress Code = "address_refused"
	// CodeTLS: the target's certificate is not valid, or it speaks no TLS.
	CodeTLS Code = "tls"
	// CodeSecret: the target's secret does not verify, or its key is gone.
	CodeSecret Code = "secret"
	// CodePath: the path is outside the folders that the installation allows, or
	// is a link, or no regular file.
	CodePath Code = "path_refused"
	// CodeLogFormat: the file is compressed, or has a line that is too long.
	CodeLogFormat Code = "log_format"
	// CodeRetention: something is older than the declared retention.
	CodeRetention Code = "retention_exceeded"
)

// transient are the codes that may end better later by themselves.
var transient = map[Code]bool{
	CodePending: true, CodeRemaining: true, CodeTimeout: true, CodeUnreachable: true, CodeBusy: true, CodeFailed: true,
	CodeLogBusy: true, CodeLogMissing: true, CodeLogFailed: true,
}

// CallError says why a target did not acknowledge. It is a
// memd.ErrTargetUnavailable or a memd.ErrTargetRefused.
type CallError struct {
	Code Code
	// After is how long the target asks to be left alone; 0 when it does not
	// say.
	After time.Duration
}

// Error implements error.
func (e *CallError) Error() string { return fmt.Sprintf("purge target: %s", string(e.Code)) }

// Unwrap gives the class.
func (e *CallError) Unwrap() error {
	if transient[e.Code] {
		return memd.ErrTargetUnavailable
	}
	return memd.ErrTargetRefused
}

func failed(c Code) error { return &CallError{Code: c} }
