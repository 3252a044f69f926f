package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// errNotConfirmed: the person was asked and did not say yes. Nothing was done.
var errNotConfirmed = errors.New("not confirmed; nothing was done")

// hintedError adds what to do about it to an error.
type hintedError struct {
	err  error
	hint string
}

func (e *hintedError) Error() string { return e.err.Error() }
func (e *hintedError) Unwrap() error { return e.err }

// printFailure writes an error for a person: what happened, with the server's
// code and reason when it came from there, and what to do about it.
func printFailure(w io.Writer, err error) {
	text, hint := explain(err)
	fmt.Fprintf(w, "memd: %s\n", text)
	if hint != "" {
		fmt.Fprintf(w, "  %s\n", hint)
	}
}

// explain puts an error into words, and says what to do about it or nothing.
func explain(err error) (text, hint string) {
	var hinted *hintedError
	var call *connect.Error
	switch {
	case errors.As(err, &hinted):
		text, hint = explain(hinted.err)
		if hinted.hint != "" {
			hint = hinted.hint
		}
		return text, hint
	case errors.Is(err, context.Canceled):
		return "stopped", ""
	case !errors.As(err, &call):
		return err.Error(), ""
	case !call.IsRemote():
		return explainConnection(call)
	}
	reason := reasonOf(err)
	if reason == memdv1.Reason_REASON_UNSPECIFIED {
		// Not one of ours: a proxy, or another service at this address.
		return fmt.Sprintf("%s: %s", call.Code(), oneLine(call.Message())),
			"The answer is not memd's. Check --url (MEMD_URL)."
	}
	return fmt.Sprintf("%s (%s): %s", call.Code(), reasonName(reason), oneLine(call.Message())), advice[reason]
}

// explainConnection words an error that no server wrote. The library's own text
// is replaced: it repeats addresses and says little.
func explainConnection(call *connect.Error) (text, hint string) {
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case call.Code() == connect.CodeCanceled:
		return "stopped", ""
	case call.Code() == connect.CodeDeadlineExceeded:
		return "deadline_exceeded: the server did not answer in time",
			"A write may have happened. Give it longer with --timeout (MEMD_TIMEOUT)."
	case errors.As(call, &dns):
		return "unavailable: the server's host name cannot be resolved", "Check --url (MEMD_URL)."
	case errors.As(call, &op) && op.Op == "dial":
		return "unavailable: nothing answers at the server's address",
			"Start one with \"memd dev\", or name another with --url (MEMD_URL)."
	}
	return fmt.Sprintf("%s: the call did not reach a memd server", call.Code()),
		"Check --url (MEMD_URL), http against https included."
}

// reasonOf returns the machine-readable reason of a server's error, or
// UNSPECIFIED when there is none that this program knows.
func reasonOf(err error) memdv1.Reason {
	var call *connect.Error
	if !errors.As(err, &call) {
		return memdv1.Reason_REASON_UNSPECIFIED
	}
	for _, detail := range call.Details() {
		msg, err := connectproto.UnmarshalErrorDetail(detail)
		if err != nil {
			continue
		}
		if info, ok := msg.(*errdetails.ErrorInfo); ok && info.GetDomain() == "memd" {
			return memdv1.Reason(memdv1.Reason_value["REASON_"+info.GetReason()])
		}
	}
	return memdv1.Reason_REASON_UNSPECIFIED
}

func reasonName(r memdv1.Reason) string { return enumName(r, "REASON_", false) }

// transient reports whether the same call may succeed later without anybody
// changing anything.
func transient(err error) bool {
	switch reasonOf(err) {
	case memdv1.Reason_REASON_KEY_UNAVAILABLE, memdv1.Reason_REASON_EMBEDDER_UNAVAILABLE,
		memdv1.Reason_REASON_DATABASE_BUSY, memdv1.Reason_REASON_TOO_MANY_CALLS, memdv1.Reason_REASON_DATABASE_UNAVAILABLE,
		memdv1.Reason_REASON_LEDGER_UNAVAILABLE, memdv1.Reason_REASON_STALE, memdv1.Reason_REASON_ERASURE_UNFINISHED,
		memdv1.Reason_REASON_DEADLINE_EXCEEDED, memdv1.Reason_REASON_GATE_CLOSED:
		return true
	case memdv1.Reason_REASON_UNSPECIFIED:
		var call *connect.Error
		return errors.As(err, &call) &&
			(call.Code() == connect.CodeUnavailable || call.Code() == connect.CodeDeadlineExceeded)
	}
	return false
}
