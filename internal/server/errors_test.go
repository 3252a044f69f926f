package server_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/server"
)

// sentinels reads the names of the root package's errors from its source, and
// their texts, which tell them apart.
func sentinels(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, name := range spec.Names {
			if !strings.HasPrefix(name.Name, "Err") || i >= len(spec.Values) {
				continue
			}
			call, ok := spec.Values[i].(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				t.Fatalf("%s is not errors.New(text)", name.Name)
			}
			found[name.Name] = strings.Trim(call.Args[0].(*ast.BasicLit).Value, `"`)
		}
		return true
	})
	if len(found) < 20 {
		t.Fatalf("found only %d errors in errors.go", len(found))
	}
	return found
}

func TestConnectError_KnowsEveryErrorOfMemd(t *testing.T) {
	known := map[string]bool{}
	for _, err := range server.Outcomes() {
		known[err.Error()] = true
	}
	for name, text := range sentinels(t) {
		if !known[text] {
			t.Errorf("memd.%s has no row in the map of errors", name)
		}
	}
}

func TestConnectError_GivesEachErrorACodeAReasonAndOpaqueText(t *testing.T) {
	reasons := map[memdv1.Reason]error{}
	for _, sentinel := range server.Outcomes() {
		// What wraps the sentinel must not reach the caller.
		got, reason := server.ConnectError(t.Context(), fmt.Errorf("reading the diary of alice: %w", sentinel))
		if got.Code() == connect.CodeInternal || got.Code() == connect.CodeUnknown {
			t.Errorf("%v: code %v", sentinel, got.Code())
		}
		if reason == memdv1.Reason_REASON_UNSPECIFIED || reasons[reason] != nil {
			t.Errorf("%v: reason %v, also of %v", sentinel, reason, reasons[reason])
		}
		reasons[reason] = sentinel
		if strings.Contains(got.Message(), "alice") {
			t.Errorf("%v: message %q tells the chain", sentinel, got.Message())
		}
		if info := errorInfo(t, got); info.GetDomain() != "memd" || "REASON_"+info.GetReason() != reason.String() {
			t.Errorf("%v: detail %v", sentinel, info)
		}
		if !errors.Is(got, sentinel) {
			t.Errorf("%v: the cause is lost to the log", sentinel)
		}
	}
}

func TestConnectError_Cases(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), -1)
	defer cancel()
	type want struct {
		code   connect.Code
		reason memdv1.Reason
		text   string
	}
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want want
	}{
		"hides what nobody foresaw": {
			t.Context(), errors.New(`duplicate key value violates unique constraint "users" DETAIL: (alice)`),
			want{connect.CodeInternal, memdv1.Reason_REASON_INTERNAL, "internal error"},
		},
		"says which field is wrong": {
			t.Context(), fmt.Errorf("adding row 3: %w", &memd.InvalidError{Field: "vector", Problem: "has another dimension"}),
			want{connect.CodeInvalidArgument, memdv1.Reason_REASON_INVALID, "vector has another dimension"},
		},
		"does not blame the database for a caller who left": {
			canceled, fmt.Errorf("selecting: %w", memd.ErrDatabaseUnavailable),
			want{connect.CodeCanceled, memdv1.Reason_REASON_CANCELED, "canceled by the caller"},
		},
		"does not blame the key service for a deadline": {
			late, fmt.Errorf("unwrapping: %w", memd.ErrKeyUnavailable),
			want{connect.CodeDeadlineExceeded, memdv1.Reason_REASON_DEADLINE_EXCEEDED, "the time for the call ran out"},
		},
		"keeps a refusal that came after the deadline": {
			late, memd.ErrFenced,
			want{connect.CodeFailedPrecondition, memdv1.Reason_REASON_FENCED, "the user is being erased"},
		},
		"says that an erasure goes on, deadline or not": {
			late, fmt.Errorf("waiting: %w", errors.Join(memd.ErrErasureUnfinished, context.DeadlineExceeded)),
			want{connect.CodeDeadlineExceeded, memdv1.Reason_REASON_ERASURE_UNFINISHED, "the erasure is accepted and goes on; ask again with the same request_id"},
		},
		"prefers destroyed to unavailable": {
			t.Context(), errors.Join(memd.ErrKeyUnavailable, memd.ErrShredded),
			want{connect.CodeFailedPrecondition, memdv1.Reason_REASON_SHREDDED, "the key was destroyed"},
		},
		"does not quote what it could not decode": {
			t.Context(), connect.NewError(connect.CodeInvalidArgument, `unmarshal message: proto: (line 1:20): invalid value for string field text: my secret`),
			want{connect.CodeInvalidArgument, memdv1.Reason_REASON_MALFORMED, "the request could not be decoded at line 1:20"},
		},
		"does not pass on what connect calls unknown": {
			t.Context(), connect.NewError(connect.CodeUnknown, "write tcp 10.0.0.1: broken pipe"),
			want{connect.CodeInternal, memdv1.Reason_REASON_INTERNAL, "internal error"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, reason := server.ConnectError(c.ctx, c.err)
			if g := (want{got.Code(), reason, got.Message()}); g != c.want {
				t.Errorf("got %v, want %v", g, c.want)
			}
		})
	}
}

func errorInfo(t *testing.T, err *connect.Error) *errdetails.ErrorInfo {
	t.Helper()
	for _, d := range err.Details() {
		m, e := connectproto.UnmarshalErrorDetail(d)
		if e != nil {
			t.Fatal(e)
		}
		if info, ok := m.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	return nil
}
