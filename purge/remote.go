package purge

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"forgettable.dev/memd/eraser"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

// userAgent says who is calling.
const userAgent = "memd-purge/1"

func plain(url string) bool { return strings.HasPrefix(url, "http://") }

// connect is one try of an EraserService. Only the numbers of the answer are
// kept, and of an error only its code.
func (c *Caller) connect(ctx context.Context, x *exchange, t Target, token string, op Op, r eraser.Request, _ time.Time) (outcome, error) {
	client, err := c.client(t)
	if err != nil {
		return outcome{}, err
	}
	authorise := func(next connect.ClientFunc) connect.ClientFunc {
		return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
			if info, ok := connect.CallInfoForClientContext(ctx); ok {
				info.RequestHeader().Set("Authorization", "Bearer "+token)
			}
			return next(ctx, spec)
		}
	}
	service := memdv1connect.NewEraserServiceClient(connect.NewClient(
		connecthttp.NewTransport(client, strings.TrimRight(t.URL, "/"), connecthttp.WithReadMaxBytes(maxAnswerBytes)), authorise))
	out := outcome{counted: true}
	switch op {
	case OpCount:
		var resp *memdv1.CountResponse
		if resp, err = service.Count(ctx, &memdv1.CountRequest{Subject: r.ToProto()}); err == nil {
			out.n = resp.GetCount()
		}
	case OpErase:
		var resp *memdv1.EraseResponse
		if resp, err = service.Erase(ctx, &memdv1.EraseRequest{Subject: r.ToProto()}); err == nil {
			out.n, out.pending = resp.GetErased(), resp.GetPending()
		}
	default:
		var resp *memdv1.VerifyResponse
		if resp, err = service.Verify(ctx, &memdv1.VerifyRequest{Subject: r.ToProto()}); err == nil {
			out.n = resp.GetRemaining()
		}
	}
	switch {
	case err != nil:
		return outcome{}, failed(codeOfConnect(ctx, x, err))
	case out.n < 0:
		return outcome{}, failed(CodeMalformed)
	}
	return out, nil
}

// codeOfConnect prefers what the transport saw to what the library makes of it.
func codeOfConnect(ctx context.Context, x *exchange, err error) Code {
	if x.problem != "" {
		return x.problem
	}
	if ctx.Err() != nil {
		return CodeTimeout
	}
	var e *connect.Error
	if x.status == http.StatusOK {
		return CodeMalformed // Connect's own errors have other statuses.
	}
	if errors.As(err, &e) {
		switch e.Code() {
		case connect.CodeUnauthenticated, connect.CodePermissionDenied:
			return CodeUnauthorised
		case connect.CodeUnimplemented, connect.CodeNotFound:
			return CodeUnimplemented
		case connect.CodeInvalidArgument, connect.CodeOutOfRange, connect.CodeFailedPrecondition, connect.CodeAlreadyExists:
			return CodeRefused
		case connect.CodeDeadlineExceeded:
			return CodeTimeout
		case connect.CodeUnavailable, connect.CodeResourceExhausted:
			return CodeBusy
		}
	}
	if x.status != 0 {
		return codeOfStatus(x.status)
	}
	return CodeFailed
}

// webhook is one try of a signed POST. Every try has a time of its own, so that
// a receiver can refuse old ones, and the same id and body, so that it can tell
// that it has done this.
func (c *Caller) webhook(ctx context.Context, x *exchange, t Target, secret string, op Op, r eraser.Request, first time.Time) (outcome, error) {
	client, err := c.client(t)
	if err != nil {
		return outcome{}, err
	}
	key, err := eraser.ParseKey(secret)
	if err != nil {
		return outcome{}, failed(CodeSecret)
	}
	body, err := eraser.EncodeMessage(op, r, first)
	if err != nil {
		return outcome{}, failed(CodeRefused)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.URL, bytes.NewReader(body))
	if err != nil {
		return outcome{}, failed(CodeAddress)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", userAgent)
	key.Sign(req.Header, eraser.MessageID(op, r), c.c.Clock.Now(), body)
	resp, err := client.Do(req)
	if err != nil {
		if x.problem == "" {
			x.problem = problemOf(err)
		}
		return outcome{}, failed(x.problem)
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		// Reading a little lets the connection be used again.
		_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
		return outcome{}, failed(codeOfStatus(resp.StatusCode))
	}
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		if x.problem == "" {
			x.problem = problemOf(err)
		}
		return outcome{}, failed(x.problem)
	}
	return answerOf(op, resp.Header.Get("Content-Type"), data)
}

// answerOf reads an answer in JSON. What is not declared to be JSON, "OK" say,
// acknowledges without a number.
func answerOf(op Op, contentType string, data []byte) (outcome, error) {
	if kind, _, err := mime.ParseMediaType(contentType); err != nil || kind != "application/json" {
		return outcome{}, nil
	}
	a, err := eraser.DecodeAnswer(op, data)
	if err != nil {
		return outcome{}, failed(CodeMalformed)
	}
	out := outcome{pending: a.Pending}
	for _, n := range []*int64{a.Count, a.Erased, a.Remaining} {
		if n != nil {
			out.n, out.counted = *n, true
		}
	}
	return out, nil
}
