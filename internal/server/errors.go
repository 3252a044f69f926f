package server

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// errorDomain is the domain of every google.rpc.ErrorInfo.
const errorDomain = "memd"

// outcome is what a caller is told about an error: a code, a reason that a
// program can act on, and a text that says nothing about the inside.
type outcome struct {
	err    error
	code   connect.Code
	reason memdv1.Reason
	text   string
}

// outcomes has a row for each of memd's errors; a test fails when one has none.
// The first row whose error is in the chain counts, so what is permanent or
// special stands before what is general.
var outcomes = []outcome{
	{memd.ErrUnauthenticated, connect.CodeUnauthenticated, memdv1.Reason_REASON_UNAUTHENTICATED, "no valid API key"},
	{memd.ErrPermissionDenied, connect.CodePermissionDenied, memdv1.Reason_REASON_PERMISSION_DENIED, "the API key does not allow this call"},
	{memd.ErrNotFound, connect.CodeNotFound, memdv1.Reason_REASON_NOT_FOUND, "not found"},
	{memd.ErrExists, connect.CodeAlreadyExists, memdv1.Reason_REASON_EXISTS, "exists already, and differs"},
	{memd.ErrRequestReused, connect.CodeAlreadyExists, memdv1.Reason_REASON_REQUEST_REUSED, "request_id was used for another request"},
	{memd.ErrTenantInactive, connect.CodeFailedPrecondition, memdv1.Reason_REASON_TENANT_INACTIVE, "the tenant is not active"},

	{memd.ErrExportNotReady, connect.CodeFailedPrecondition, memdv1.Reason_REASON_EXPORT_NOT_READY, "the archive is being made, or made anew, or has ended"},
	{memd.ErrExportsUnavailable, connect.CodeUnavailable, memdv1.Reason_REASON_EXPORTS_UNAVAILABLE, "the place of archives is not available"},
	{memd.ErrNotApproved, connect.CodeFailedPrecondition, memdv1.Reason_REASON_NOT_APPROVED, "no approval of somebody else holds"},

	{memd.ErrFenced, connect.CodeFailedPrecondition, memdv1.Reason_REASON_FENCED, "the user is being erased"},
	{memd.ErrSessionForgotten, connect.CodeFailedPrecondition, memdv1.Reason_REASON_SESSION_FORGOTTEN, "the session was erased"},
	{memd.ErrMemoryDeleted, connect.CodeFailedPrecondition, memdv1.Reason_REASON_MEMORY_DELETED, "the memory was deleted"},
	{memd.ErrSourceTimeRequired, connect.CodeFailedPrecondition, memdv1.Reason_REASON_SOURCE_TIME_REQUIRED, "source_time is required: the user was erased before"},
	{memd.ErrErasedBefore, connect.CodeFailedPrecondition, memdv1.Reason_REASON_ERASED_BEFORE, "the source is older than the user's last erasure"},
	{memd.ErrMonthKept, connect.CodeFailedPrecondition, memdv1.Reason_REASON_MONTH_KEPT, "the month is to be kept"},
	{memd.ErrMonthExpired, connect.CodeFailedPrecondition, memdv1.Reason_REASON_MONTH_EXPIRED, "the month of the source has expired"},
	{memd.ErrSourceGone, connect.CodeFailedPrecondition, memdv1.Reason_REASON_SOURCE_GONE, "a source is gone or has changed"},
	{memd.ErrTooManyContributions, connect.CodeFailedPrecondition, memdv1.Reason_REASON_TOO_MANY_CONTRIBUTIONS, fmt.Sprintf("the row would draw on more than %d sessions", memd.MaxContributions)},
	{memd.ErrStateFull, connect.CodeFailedPrecondition, memdv1.Reason_REASON_STATE_FULL, fmt.Sprintf("the session, user or app would have more state than %d entries or %d MiB", memd.MaxStateKeys, memd.MaxStateOfOwner>>20)},
	{memd.ErrQuotaReached, connect.CodeResourceExhausted, memdv1.Reason_REASON_QUOTA_REACHED, "the tenant has reached its quota; nothing was written"},
	{memd.ErrSessionChanged, connect.CodeAborted, memdv1.Reason_REASON_SESSION_CHANGED, "the session has changed since it was read: get it again"},
	{memd.ErrVersionConflict, connect.CodeAborted, memdv1.Reason_REASON_VERSION_CONFLICT, "the row has another version"},

	{memd.ErrErasureUnfinished, connect.CodeDeadlineExceeded, memdv1.Reason_REASON_ERASURE_UNFINISHED, "the erasure is accepted and goes on; ask again with the same request_id"},
	{memd.ErrCorrupt, connect.CodeDataLoss, memdv1.Reason_REASON_CORRUPT, "stored data does not verify"},
	{memd.ErrShredded, connect.CodeFailedPrecondition, memdv1.Reason_REASON_SHREDDED, "the key was destroyed"},
	{memd.ErrSchemaVersion, connect.CodeFailedPrecondition, memdv1.Reason_REASON_SCHEMA_VERSION, "server and database do not fit each other"},
	{memd.ErrKeyUnavailable, connect.CodeUnavailable, memdv1.Reason_REASON_KEY_UNAVAILABLE, "the key service is unavailable; nothing was written"},
	{memd.ErrLedgerUnavailable, connect.CodeUnavailable, memdv1.Reason_REASON_LEDGER_UNAVAILABLE, "the ledger is unavailable; what was asked for may be done and is not durable yet: call again with the same ids"},
	{memd.ErrEmbedderUnavailable, connect.CodeUnavailable, memdv1.Reason_REASON_EMBEDDER_UNAVAILABLE, "the embedder is unavailable; nothing was written"},
	{memd.ErrDatabaseBusy, connect.CodeResourceExhausted, memdv1.Reason_REASON_DATABASE_BUSY, "no database connection became free in time; nothing was written"},
	{memd.ErrTooManyStreams, connect.CodeResourceExhausted, memdv1.Reason_REASON_TOO_MANY_STREAMS, "this process streams as many artifacts as it may at once; nothing was written"},
	{memd.ErrTooManyCalls, connect.CodeResourceExhausted, memdv1.Reason_REASON_TOO_MANY_CALLS, "the tenant's agents make more calls a second than its quota gives them; nothing was done: repeat later"},
	{memd.ErrDatabaseUnavailable, connect.CodeUnavailable, memdv1.Reason_REASON_DATABASE_UNAVAILABLE, "the database is unavailable"},
	{memd.ErrTargetUnavailable, connect.CodeUnavailable, memdv1.Reason_REASON_TARGET_UNAVAILABLE, "a purge target is unavailable"},
	{memd.ErrTargetRefused, connect.CodeFailedPrecondition, memdv1.Reason_REASON_TARGET_REFUSED, "a purge target refused"},
	{memd.ErrRolledBack, connect.CodeUnavailable, memdv1.Reason_REASON_GATE_CLOSED, "the database was rolled back or is being compared with its ledger; nothing was written. If it does not open by itself, the operator runs memd restore"},
	{memd.ErrStale, connect.CodeAborted, memdv1.Reason_REASON_STALE, "state changed underneath the call; nothing was written"},

	// The text of an InvalidError is ours, names a field and repeats no value:
	// connectError uses it instead of this one.
	{memd.ErrInvalid, connect.CodeInvalidArgument, memdv1.Reason_REASON_INVALID, "the request is invalid"},
}

var (
	outcomeInternal  = outcome{nil, connect.CodeInternal, memdv1.Reason_REASON_INTERNAL, "internal error"}
	outcomeCanceled  = outcome{nil, connect.CodeCanceled, memdv1.Reason_REASON_CANCELED, "canceled by the caller"}
	outcomeDeadline  = outcome{nil, connect.CodeDeadlineExceeded, memdv1.Reason_REASON_DEADLINE_EXCEEDED, "the time for the call ran out"}
	outcomeMalformed = outcome{nil, connect.CodeInvalidArgument, memdv1.Reason_REASON_MALFORMED, "the request could not be decoded"}
	outcomeTooLarge  = outcome{nil, connect.CodeResourceExhausted, memdv1.Reason_REASON_TOO_LARGE, "the request or its answer is too large"}
	outcomeUnknown   = outcome{nil, connect.CodeUnimplemented, memdv1.Reason_REASON_UNIMPLEMENTED, "no such procedure"}
)

// connectError is the one place where an error becomes an answer. The answer's
// cause is err, for the log; it is not sent. ctx is the call's.
func connectError(ctx context.Context, err error) (*connect.Error, memdv1.Reason) {
	var invalid *memd.InvalidError
	var violations *protovalidate.ValidationError
	switch {
	case errors.As(err, &violations):
		o := outcomeOf(memd.ErrInvalid)
		bad := badRequest(violations)
		o.text = bad.FieldViolations[0].GetField() + ": " + bad.FieldViolations[0].GetDescription()
		return o.answer(err, bad), o.reason
	case errors.As(err, &invalid):
		o := outcomeOf(memd.ErrInvalid)
		o.text = invalid.Error()
		return o.answer(err, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: invalid.Field, Description: invalid.Problem},
		}}), o.reason
	}
	o := classify(ctx, err)
	var limited *limitedError
	if errors.As(err, &limited) {
		return o.answer(err, &errdetails.RetryInfo{RetryDelay: durationpb.New(limited.after)}), o.reason
	}
	var refusal *memd.RefusalError
	if errors.As(err, &refusal) && errors.Is(refusal.Class, o.err) {
		o.text += ": " + refusal.Problem // Ours, like that of an InvalidError.
	}
	return o.answer(err), o.reason
}

func classify(ctx context.Context, err error) outcome {
	o, known := lookUp(err)
	// What broke because the caller left is the caller's doing, and must not
	// count as an outage. An accepted erasure is worth knowing all the same.
	callerLeft := ctx.Err() != nil && !errors.Is(err, memd.ErrErasureUnfinished) && (!known || memd.Transient(err))
	switch {
	case known && !callerLeft:
		return o
	case errors.Is(ctx.Err(), context.Canceled), !callerLeft && errors.Is(err, context.Canceled):
		return outcomeCanceled
	case callerLeft, errors.Is(err, context.DeadlineExceeded):
		return outcomeDeadline
	}
	var transport *connect.Error
	if errors.As(err, &transport) {
		return ofTransport(transport)
	}
	return outcomeInternal
}

func lookUp(err error) (outcome, bool) {
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o, true
		}
	}
	return outcome{}, false
}

func outcomeOf(sentinel error) outcome {
	o, ok := lookUp(sentinel)
	if !ok {
		return outcomeInternal
	}
	return o
}

// ofTransport classifies what connect itself says about a request. Its texts
// may quote the request, so they are reduced to what a caller needs.
func ofTransport(err *connect.Error) outcome {
	switch err.Code() {
	case connect.CodeInvalidArgument:
		o := outcomeMalformed
		o.text += decodeHint(err.Message())
		return o
	case connect.CodeResourceExhausted:
		return outcomeTooLarge
	case connect.CodeUnimplemented:
		return outcomeUnknown
	case connect.CodeCanceled:
		return outcomeCanceled
	case connect.CodeDeadlineExceeded:
		return outcomeDeadline
	}
	return outcomeInternal
}

var decodePlace = regexp.MustCompile(`\(line (\d{1,9}:\d{1,9})\)`)

// decodeHint returns where it went wrong, for whoever wrote JSON by hand.
func decodeHint(message string) string {
	if m := decodePlace.FindStringSubmatch(message); m != nil {
		return " at line " + m[1]
	}
	return ""
}

// answer makes the error that is sent.
func (o outcome) answer(cause error, more ...proto.Message) *connect.Error {
	e := connect.NewError(o.code, o.text).WithCause(cause)
	info := &errdetails.ErrorInfo{Domain: errorDomain, Reason: reasonName(o.reason)}
	for _, m := range append([]proto.Message{info}, more...) {
		if d, err := connectproto.NewErrorDetail(m); err == nil {
			e = e.WithDetail(d)
		}
	}
	return e
}
