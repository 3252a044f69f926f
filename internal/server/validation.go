package server

import (
	"fmt"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"connectrpc.com/connect/v2"
	rpcvalidate "connectrpc.com/validate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// maxViolations bounds what one answer lists: 256 bad rows say the same thing
// 256 times.
const maxViolations = 16

// validation checks every request against the rules beside its fields in
// proto/. Its errors carry the violations as their cause and no detail of their
// own, because the violations name map keys, which are the caller's content.
func validation() (connect.ServerInterceptor, error) {
	v, err := protovalidate.New()
	if err != nil {
		return nil, fmt.Errorf("making the validator: %w", err)
	}
	return rpcvalidate.NewServerInterceptor(rpcvalidate.WithValidator(v), rpcvalidate.WithoutErrorDetails()), nil
}

// badRequest lists violations by field and rule, without any value.
func badRequest(e *protovalidate.ValidationError) *errdetails.BadRequest {
	bad := &errdetails.BadRequest{}
	for _, v := range e.Violations {
		if len(bad.FieldViolations) == maxViolations {
			break
		}
		description := v.Proto.GetMessage()
		if description == "" {
			description = "breaks the rule " + v.Proto.GetRuleId()
		}
		bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{
			Field: fieldPath(v.Proto.GetField()), Description: description,
		})
	}
	if len(bad.FieldViolations) == 0 {
		bad.FieldViolations = []*errdetails.BadRequest_FieldViolation{{Field: "request", Description: "is invalid"}}
	}
	return bad
}

// fieldPath renders a path like rows[3].metadata[…]. Map keys are left out.
func fieldPath(p *validate.FieldPath) string {
	var b strings.Builder
	for _, e := range p.GetElements() {
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(e.GetFieldName())
		switch e.GetSubscript().(type) {
		case nil:
		case *validate.FieldPathElement_Index:
			fmt.Fprintf(&b, "[%d]", e.GetIndex())
		default:
			b.WriteString("[…]")
		}
	}
	if b.Len() == 0 {
		return "request"
	}
	return b.String()
}

// reasonName is the form in which a reason is sent.
func reasonName(r memdv1.Reason) string { return strings.TrimPrefix(r.String(), "REASON_") }
