package pg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"forgettable.dev/memd"
)

// Error is what is left of a database error when everything that could be data
// is taken out. It wraps one of memd's errors where one fits.
type Error struct {
	// Doing is what the caller was doing, from its wrapping. May be empty.
	Doing string
	// Code is the SQLSTATE. Empty when the server did not answer.
	Code string
	// Constraint is the violated constraint's name, if any.
	Constraint string
	// Routine is the C function that raised the error, for whoever debugs a
	// statement.
	Routine string

	cause error
	ended error
}

// Error implements error. It never repeats the driver's text.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Doing != "" {
		b.WriteString(e.Doing + ": ")
	}
	b.WriteString(e.cause.Error())
	if e.ended != nil {
		b.WriteString(": " + e.ended.Error())
	}
	var more []string
	if e.Code != "" {
		more = append(more, "SQLSTATE "+e.Code)
	}
	if e.Constraint != "" {
		more = append(more, "constraint "+e.Constraint)
	}
	if e.Routine != "" {
		more = append(more, "in "+e.Routine)
	}
	if len(more) > 0 {
		b.WriteString(" (" + strings.Join(more, ", ") + ")")
	}
	return b.String()
}

// Unwrap gives memd's error, and the context's when that ended the statement.
func (e *Error) Unwrap() []error {
	if e.ended != nil {
		return []error{e.cause, e.ended}
	}
	return []error{e.cause}
}

// SQLState returns the SQLSTATE, or "".
func (e *Error) SQLState() string { return e.Code }

var (
	errStatement  = errors.New("database refused the statement")
	errIsolation  = errors.New("isolation above READ COMMITTED is refused")
	errNoContrib  = errors.New("memory without its contributions")
	errEncoding   = errors.New("argument does not fit its parameter")
	errScanning   = errors.New("column does not fit its variable")
	errCharacter  = &memd.InvalidError{Field: "request", Problem: "holds a NUL or bytes that are not UTF-8, which cannot be stored in clear; leave them out"}
	errTooManySub = &memd.InvalidError{Field: "subjects", Problem: fmt.Sprintf("number more than %d in one write", memd.MaxSubjects)}
)

// byState maps what the triggers of the migrations raise (MDxxx) and the states
// of PostgreSQL that mean more than "refused".
var byState = map[string]error{
	"MD001": memd.ErrFenced,
	"MD002": memd.ErrSessionForgotten,
	"MD003": memd.ErrMemoryDeleted,
	"MD004": memd.ErrTenantInactive,
	"MD005": memd.ErrErasedBefore,
	"MD006": memd.ErrStale,
	"MD007": errIsolation,
	"MD008": errNoContrib,
	"MD009": memd.ErrSourceGone,
	"MD010": memd.ErrMonthExpired,
	"MD011": errTooManySub,
	"MD012": memd.ErrSourceTimeRequired,
	"MD013": memd.ErrNotApproved,
	"MD014": memd.ErrExportNotReady,
	"MD015": memd.ErrStale,
	"MD020": memd.ErrNotFound,
	"MD021": memd.ErrSessionChanged,
	"MD022": memd.ErrStateFull,
	"MD023": memd.ErrQuotaReached,
	"MD030": memd.ErrMonthKept,

	"22021": errCharacter,                // character_not_in_repertoire
	"40001": memd.ErrStale,               // serialization_failure
	"40P01": memd.ErrStale,               // deadlock_detected
	"53300": memd.ErrDatabaseBusy,        // too_many_connections
	"55P03": memd.ErrDatabaseUnavailable, // lock_not_available: lock_timeout
	"57014": memd.ErrDatabaseUnavailable, // query_canceled: statement_timeout
	"25P03": memd.ErrDatabaseUnavailable, // idle_in_transaction_session_timeout
	"25P04": memd.ErrDatabaseUnavailable, // transaction_timeout
	"25006": memd.ErrDatabaseUnavailable, // read_only_sql_transaction: a standby
}

// byClass maps whole classes of SQLSTATEs.
var byClass = map[string]error{
	"08": memd.ErrDatabaseUnavailable, // connection exceptions
	"53": memd.ErrDatabaseUnavailable, // insufficient resources
	"57": memd.ErrDatabaseUnavailable, // operator intervention: shutdown, crash
	"58": memd.ErrDatabaseUnavailable, // system error: I/O
}

// Classify turns a database error into memd's, stripped of the driver's text.
// Errors that are not the database's pass unchanged, and so do ErrNoRows and
// errors that were classified before. Classify(nil) is nil.
func Classify(err error) error {
	var done *Error
	var state *pgconn.PgError
	var connect *pgconn.ConnectError
	var scan pgx.ScanArgError
	switch {
	case err == nil, errors.As(err, &done):
		return err
	case errors.As(err, &state):
		e := &Error{
			Doing: prefix(err, state.Error()), Code: state.Code,
			Constraint: state.ConstraintName, Routine: state.Routine, cause: causeOf(state.Code),
		}
		if errors.As(err, &connect) {
			e.Doing = prefix(err, connect.Error())
			if !errors.Is(e.cause, memd.ErrDatabaseBusy) {
				e.cause = memd.ErrDatabaseUnavailable
			}
		}
		return e
	case errors.As(err, &connect):
		return &Error{Doing: prefix(err, connect.Error()), cause: memd.ErrDatabaseUnavailable, ended: contextError(err)}
	case errors.As(err, &scan):
		return &Error{Doing: prefix(err, scan.Error()), cause: errScanning}
	case errors.Is(err, pgx.ErrNoRows), memd.Transient(err), contextError(err) != nil:
		return err
	case encodes(err):
		return &Error{Doing: before(err, encodeMarks...), cause: errEncoding}
	case lostConnection(err):
		return &Error{cause: memd.ErrDatabaseUnavailable}
	}
	return err
}

// classify also knows the context of the call: a statement that the server
// cancelled because the caller gave up is the caller's doing.
func classify(ctx context.Context, err error) error {
	err = Classify(err)
	var e *Error
	if ctx.Err() != nil && errors.As(err, &e) && errors.Is(e.cause, memd.ErrDatabaseUnavailable) && e.ended == nil {
		e.ended = ctx.Err()
	}
	return err
}

// SQLState returns the SQLSTATE in err's chain, or "".
func SQLState(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}

func causeOf(code string) error {
	if cause, ok := byState[code]; ok {
		return cause
	}
	if len(code) == 5 {
		if cause, ok := byClass[code[:2]]; ok {
			return cause
		}
	}
	return errStatement
}

// encodeMarks begin pgx's texts about arguments, which print the argument.
var encodeMarks = []string{"failed to encode args[", "unable to encode "}

func encodes(err error) bool {
	text := err.Error()
	for _, m := range encodeMarks {
		if strings.Contains(text, m) {
			return true
		}
	}
	return false
}

// lostConnection reports what the driver returns when the connection broke
// under a statement, without a type of its own.
func lostConnection(err error) bool {
	var driver interface{ SafeToRetry() bool }
	var op *net.OpError
	return errors.As(err, &driver) || errors.As(err, &op) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

func contextError(err error) error {
	for _, c := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, c) {
			return c
		}
	}
	return nil
}

// prefix returns the text that wrapping put before the driver's, which is the
// caller's own. Where the driver's text does not end the whole, nothing is
// kept.
func prefix(err error, foreign string) string {
	own, ok := strings.CutSuffix(err.Error(), foreign)
	if !ok || encodes(errors.New(own)) {
		return ""
	}
	return strings.TrimSuffix(strings.TrimSpace(own), ":")
}

// before returns the text before the first of the marks.
func before(err error, marks ...string) string {
	text := err.Error()
	for _, m := range marks {
		text, _, _ = strings.Cut(text, m)
	}
	return strings.TrimSuffix(strings.TrimSpace(text), ":")
}
