package server_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// violations returns the fields that an answer complains about.
func violations(t *testing.T, err error) []string {
	t.Helper()
	var e *connect.Error
	if !errors.As(err, &e) || e.Code() != connect.CodeInvalidArgument || errorInfo(t, e).GetReason() != "INVALID" {
		t.Fatalf("%v is not the answer to an invalid request", err)
	}
	var fields []string
	for _, d := range e.Details() {
		m, err := connectproto.UnmarshalErrorDetail(d)
		if err != nil {
			t.Fatal(err)
		}
		if bad, ok := m.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				fields = append(fields, v.GetField())
			}
		}
	}
	return fields
}

func metadata(entries, size int) map[string]string {
	m := map[string]string{}
	for i := range entries {
		m[fmt.Sprint(i)] = strings.Repeat("v", size)
	}
	return m
}

// TestValidation_Rows tries each limit of a row from both sides: the row that
// just fits must pass, and the one beyond must be refused by its field.
func TestValidation_Rows(t *testing.T) {
	c := newChain()
	type change func(*memdv1.Row)
	rawUser := func() *memdv1.Row {
		return &memdv1.Row{Scope: user("app", "alice"), Kind: memdv1.Kind_KIND_RAW, Text: "tea"}
	}
	rawShared := func() *memdv1.Row {
		return &memdv1.Row{Scope: shared("app"), Kind: memdv1.Kind_KIND_RAW, Text: "tea", Impersonal: true}
	}
	source := &memdv1.Source{Source: &memdv1.Source_MemoryId{MemoryId: uuid.NewString()}}
	sources := func(n int) []*memdv1.Source {
		var all []*memdv1.Source
		for range n {
			all = append(all, source)
		}
		return all
	}
	long := func(n int) string { return strings.Repeat("x", n) }
	for name, tc := range map[string]struct {
		row    func() *memdv1.Row
		change change
		field  string // "" for a row that passes
	}{
		"a user's row":              {rawUser, func(*memdv1.Row) {}, ""},
		"a shared row":              {rawShared, func(*memdv1.Row) {}, ""},
		"no scope":                  {rawUser, func(r *memdv1.Row) { r.Scope = nil }, "rows[0].scope"},
		"an empty scope":            {rawUser, func(r *memdv1.Row) { r.Scope = &memdv1.Scope{} }, "rows[0].scope.owner"},
		"no app":                    {rawUser, func(r *memdv1.Row) { r.Scope = user("", "alice") }, "rows[0].scope.user.app"},
		"no user":                   {rawUser, func(r *memdv1.Row) { r.Scope = user("app", "") }, "rows[0].scope.user.user_id"},
		"a NUL in an app":           {rawUser, func(r *memdv1.Row) { r.Scope = user("a\x00", "alice") }, "rows[0].scope.user.app"},
		"a newline in a shared app": {rawShared, func(r *memdv1.Row) { r.Scope = shared("a\n") }, "rows[0].scope.shared.app"},
		"a NUL in a user id":        {rawUser, func(r *memdv1.Row) { r.Scope = user("a", "a\x00") }, ""},
		"the longest ids": {rawUser, func(r *memdv1.Row) {
			r.Scope, r.SessionId, r.EventId = user(long(512), long(512)), long(512), long(512)
		}, ""},
		"a longer user id":                {rawUser, func(r *memdv1.Row) { r.Scope = user("app", long(513)) }, "rows[0].scope.user.user_id"},
		"a longer session id":             {rawUser, func(r *memdv1.Row) { r.SessionId = long(513) }, "rows[0].session_id"},
		"a longer event id":               {rawUser, func(r *memdv1.Row) { r.EventId = long(513) }, "rows[0].event_id"},
		"no kind":                         {rawUser, func(r *memdv1.Row) { r.Kind = 0 }, "rows[0].kind"},
		"an unknown kind":                 {rawUser, func(r *memdv1.Row) { r.Kind = 4 }, "rows[0].kind"},
		"neither text nor vector":         {rawUser, func(r *memdv1.Row) { r.Text = "" }, "rows[0]"},
		"a vector alone":                  {rawUser, func(r *memdv1.Row) { r.Text, r.Vector = "", []float32{1} }, ""},
		"the longest text":                {rawUser, func(r *memdv1.Row) { r.Text = long(memd.MaxTextBytes) }, ""},
		"a longer text":                   {rawUser, func(r *memdv1.Row) { r.Text = long(memd.MaxTextBytes + 1) }, "rows[0].text"},
		"a text whose bytes are too many": {rawUser, func(r *memdv1.Row) { r.Text = strings.Repeat("ä", memd.MaxTextBytes/2+1) }, "rows[0].text"},
		"the largest vector":              {rawUser, func(r *memdv1.Row) { r.Vector = make([]float32, memd.MaxDimension) }, ""},
		"a larger vector":                 {rawUser, func(r *memdv1.Row) { r.Vector = make([]float32, memd.MaxDimension+1) }, "rows[0].vector"},
		"the most metadata":               {rawUser, func(r *memdv1.Row) { r.Metadata = metadata(64, 10) }, ""},
		"more metadata":                   {rawUser, func(r *memdv1.Row) { r.Metadata = metadata(65, 10) }, "rows[0].metadata"},
		"an empty metadata key":           {rawUser, func(r *memdv1.Row) { r.Metadata = map[string]string{"": "v"} }, "rows[0].metadata[…]"},
		"a long metadata value":           {rawUser, func(r *memdv1.Row) { r.Metadata = metadata(1, 16385) }, "rows[0].metadata[…]"},
		"sources of a raw row":            {rawUser, func(r *memdv1.Row) { r.Sources = sources(1) }, "rows[0]"},
		"the most sources":                {rawUser, func(r *memdv1.Row) { r.Kind, r.Sources = memdv1.Kind_KIND_FACT, sources(256) }, ""},
		"more sources":                    {rawUser, func(r *memdv1.Row) { r.Kind, r.Sources = memdv1.Kind_KIND_FACT, sources(257) }, "rows[0].sources"},
		"a source that is none": {rawUser, func(r *memdv1.Row) {
			r.Kind, r.Sources = memdv1.Kind_KIND_FACT, []*memdv1.Source{{}}
		}, "rows[0].sources[0].source"},
		"a source that is no UUID": {rawUser, func(r *memdv1.Row) {
			r.Kind, r.Sources = memdv1.Kind_KIND_FACT, []*memdv1.Source{{Source: &memdv1.Source_MemoryId{MemoryId: "7"}}}
		}, "rows[0].sources[0].memory_id"},
		"a session source without its id": {rawUser, func(r *memdv1.Row) {
			r.Kind, r.Sources = memdv1.Kind_KIND_FACT, []*memdv1.Source{{Source: &memdv1.Source_Session{Session: &memdv1.Session{UserId: "bob"}}}}
		}, "rows[0].sources[0].session"},
		"a contributor in a user's scope": {rawUser, func(r *memdv1.Row) { r.Contributor = &memdv1.Session{UserId: "bob"} }, "rows[0]"},
		"impersonal in a user's scope":    {rawUser, func(r *memdv1.Row) { r.Impersonal = true }, "rows[0]"},
		"a session in a shared scope":     {rawShared, func(r *memdv1.Row) { r.SessionId = "s" }, "rows[0]"},
		"nobody's words, undeclared":      {rawShared, func(r *memdv1.Row) { r.Impersonal = false }, "rows[0]"},
		"somebody's words, declared impersonal": {rawShared, func(r *memdv1.Row) {
			r.Contributor = &memdv1.Session{UserId: "bob"}
		}, "rows[0]"},
		"somebody's words": {rawShared, func(r *memdv1.Row) {
			r.Impersonal, r.Contributor = false, &memdv1.Session{UserId: "bob", SessionId: "s"}
		}, ""},
		"a contributor without a user": {rawShared, func(r *memdv1.Row) {
			r.Impersonal, r.Contributor = false, &memdv1.Session{SessionId: "s"}
		}, "rows[0]"},
	} {
		row := tc.row()
		tc.change(row)
		_, err := c.client.Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
		if tc.field == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: passes", name)
			continue
		}
		if fields := violations(t, err); len(fields) == 0 || fields[0] != tc.field {
			t.Errorf("%s: complains about %q", name, fields)
		}
	}
}

func TestValidation_Batches(t *testing.T) {
	c := newChain()
	rows := func(n int, text string) (all []*memdv1.Row) {
		for range n {
			all = append(all, &memdv1.Row{Scope: user("app", "alice"), Kind: memdv1.Kind_KIND_RAW, Text: text})
		}
		return all
	}
	for name, tc := range map[string]struct {
		rows   []*memdv1.Row
		fields int
	}{
		"none":              {nil, 1},
		"the most":          {rows(memd.MaxBatch, "tea"), 0},
		"more":              {rows(memd.MaxBatch+1, "tea"), 1},
		"many that are bad": {rows(memd.MaxBatch, ""), 16},
	} {
		_, err := c.client.Add(t.Context(), &memdv1.AddRequest{Rows: tc.rows})
		if tc.fields == 0 {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if fields := violations(t, err); len(fields) != tc.fields {
			t.Errorf("%s: complains about %q", name, fields)
		}
	}
}

// TestValidation_AnswersDoNotQuoteTheRequest: map keys are content too.
func TestValidation_AnswersDoNotQuoteTheRequest(t *testing.T) {
	c := newChain()
	_, err := c.client.Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{{
		Scope: user("app", "alice"), Kind: memdv1.Kind_KIND_RAW, Text: "tea",
		Metadata: map[string]string{"the-secret-key": strings.Repeat("the-secret-value", 2000)},
	}}})
	if violations(t, err); strings.Contains(fmt.Sprintf("%+v", err), "the-secret") || strings.Contains(c.log.String(), "the-secret") {
		t.Errorf("the request is in the answer (%v) or the log (%s)", err, c.log)
	}
	var e *connect.Error
	errors.As(err, &e)
	for _, d := range e.Details() {
		if strings.Contains(string(d.Value), "the-secret") {
			t.Errorf("the request is in the detail %s", d.Type)
		}
	}
}

func TestValidation_SearchAndUpdate(t *testing.T) {
	c := newChain()
	search := func(r *memdv1.SearchRequest) error {
		_, err := c.client.Search(t.Context(), r)
		return err
	}
	update := func(r *memdv1.UpdateRequest) error {
		_, err := c.client.Update(t.Context(), r)
		return err
	}
	alice, id := user("app", "alice"), uuid.NewString()
	noon := timestamppb.New(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	for name, tc := range map[string]struct {
		err   error
		field string
	}{
		"a search":                {search(&memdv1.SearchRequest{Scope: alice, Text: "tea", TopK: 1000, MinScore: new(float32(-1))}), ""},
		"without scope":           {search(&memdv1.SearchRequest{Text: "tea"}), "scope"},
		"for too many":            {search(&memdv1.SearchRequest{Scope: alice, Text: "tea", TopK: 1001}), "top_k"},
		"for less than none":      {search(&memdv1.SearchRequest{Scope: alice, Text: "tea", TopK: -1}), "top_k"},
		"above the largest score": {search(&memdv1.SearchRequest{Scope: alice, Text: "tea", MinScore: new(float32(1.01))}), "min_score"},
		"for an empty time": {search(&memdv1.SearchRequest{Scope: alice, Text: "tea", Filter: &memdv1.Filter{
			SourceTime: &memdv1.TimeRange{From: noon, To: noon}}}), "filter.source_time"},
		"for an open time": {search(&memdv1.SearchRequest{Scope: alice, Text: "tea", Filter: &memdv1.Filter{
			SourceTime: &memdv1.TimeRange{From: noon}}}), ""},
		"for no kind": {search(&memdv1.SearchRequest{Scope: alice, Text: "tea", Filter: &memdv1.Filter{
			Kinds: []memdv1.Kind{0}}}), "filter.kinds[0]"},
		"an update":         {update(&memdv1.UpdateRequest{Scope: alice, MemoryId: id, ExpectedVersion: 1, Text: "tea"}), ""},
		"of no version":     {update(&memdv1.UpdateRequest{Scope: alice, MemoryId: id, Text: "tea"}), "expected_version"},
		"of no row":         {update(&memdv1.UpdateRequest{Scope: alice, ExpectedVersion: 1, Text: "tea"}), "memory_id"},
		"of the row's kind": {update(&memdv1.UpdateRequest{Scope: alice, MemoryId: id, ExpectedVersion: 1, UpdateMask: mask("text", "kind")}), "request"},
		"that clears":       {update(&memdv1.UpdateRequest{Scope: alice, MemoryId: id, ExpectedVersion: 1, UpdateMask: mask("expires_at")}), ""},
		"by nobody":         {update(&memdv1.UpdateRequest{Scope: alice, MemoryId: id, ExpectedVersion: 1, Text: "t", Impersonal: true}), "request"},
	} {
		if tc.field == "" {
			if tc.err != nil {
				t.Errorf("%s: %v", name, tc.err)
			}
			continue
		}
		if fields := violations(t, tc.err); len(fields) == 0 || fields[0] != tc.field {
			t.Errorf("%s: complains about %q", name, fields)
		}
	}
}

func mask(paths ...string) *fieldmaskpb.FieldMask { return &fieldmaskpb.FieldMask{Paths: paths} }
