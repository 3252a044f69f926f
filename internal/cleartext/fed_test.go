package cleartext_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

// fed notes which fields of which procedures have carried a canary, in calls
// that were let through and in calls that were not.
type fed struct {
	mu                sync.Mutex
	accepted, refused map[string]bool
}

func newFed() *fed { return &fed{accepted: map[string]bool{}, refused: map[string]bool{}} }

func (f *fed) note(fields []string, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, field := range fields {
		if ok {
			f.accepted[field] = true
		} else {
			f.refused[field] = true
		}
	}
}

// intercept notes what a client sends.
func (f *fed) intercept(next connect.ClientFunc) connect.ClientFunc {
	return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
		stream, err := next(ctx, spec)
		if err != nil {
			return nil, err
		}
		return &fedStream{ClientStream: stream, fed: f, procedure: spec.Procedure}, nil
	}
}

type fedStream struct {
	connect.ClientStream
	fed       *fed
	procedure string
	sent      []string
}

func (s *fedStream) Send(message any) error {
	if m, ok := message.(proto.Message); ok {
		said(m.ProtoReflect(), short(s.procedure)+" ", func(field string) { s.sent = append(s.sent, field) })
	}
	return s.ClientStream.Send(message)
}

func (s *fedStream) Receive(message any) error {
	err := s.ClientStream.Receive(message)
	s.fed.note(s.sent, err == nil || errors.Is(err, io.EOF))
	return err
}

// short is MemoryService/Add of /memd.v1.MemoryService/Add.
func short(procedure string) string { return strings.TrimPrefix(procedure, "/memd.v1.") }

// mark is in every canary word and in nothing else.
const mark = "canary"

func marked(s string) bool { return strings.Contains(strings.ToLower(s), mark) }

// said calls f with each field of m that has a canary in it: a marked word, or a
// vector.
func said(m protoreflect.Message, at string, f func(field string)) {
	one := func(d protoreflect.FieldDescriptor, v protoreflect.Value, at string) {
		switch d.Kind() {
		case protoreflect.MessageKind:
			said(v.Message(), at+".", f)
		case protoreflect.StringKind:
			if marked(v.String()) {
				f(at)
			}
		case protoreflect.BytesKind:
			if marked(string(v.Bytes())) {
				f(at)
			}
		}
	}
	m.Range(func(d protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := at + string(d.Name())
		switch {
		case d.IsMap():
			v.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
				one(d.MapKey(), key.Value(), at+".key")
				one(d.MapValue(), value, at+".value")
				return true
			})
		case d.IsList() && d.Kind() == protoreflect.FloatKind:
			if v.List().Len() == dimension {
				f(at)
			}
		case d.IsList():
			for i := range v.List().Len() {
				one(d, v.List().Get(i), at)
			}
		default:
			one(d, v, at)
		}
		return true
	})
}

// leaves calls f with each field that a message can carry words in, or a vector.
func leaves(m protoreflect.MessageDescriptor, way []protoreflect.FieldDescriptor, f func(way []protoreflect.FieldDescriptor)) {
	for i := range m.Fields().Len() {
		d := m.Fields().Get(i)
		way := append(slices.Clone(way), d)
		switch {
		case d.Kind() == protoreflect.MessageKind:
			leaves(d.Message(), way, f)
		case d.Kind() == protoreflect.StringKind, d.Kind() == protoreflect.BytesKind, d.Kind() == protoreflect.FloatKind && d.IsList():
			f(way)
		}
	}
}

// name is how said calls the field at the end of a way.
func name(m protoreflect.MethodDescriptor, way []protoreflect.FieldDescriptor) string {
	s := string(m.Parent().Name()) + "/" + string(m.Name()) + " "
	for i, d := range way {
		if i > 0 {
			s += "."
		}
		s += string(d.Name())
	}
	return s
}

// methods are all that a server of memd serves. The EraserService is what memd
// calls elsewhere.
func methods() []protoreflect.MethodDescriptor {
	var all []protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFilesByPackage("memd.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			for j := range s.Methods().Len() {
				if s.FullName() != memdv1connect.EraserServiceName {
					all = append(all, s.Methods().Get(j))
				}
			}
		}
		return true
	})
	slices.SortFunc(all, func(a, b protoreflect.MethodDescriptor) int {
		return strings.Compare(string(a.FullName()), string(b.FullName()))
	})
	return all
}

// wordless are the fields that no call with a canary can get through, and why:
// to be refused with one is all that can be asked of them. UUIDs are known by
// their rule.
var wordless = map[protoreflect.FullName]string{
	"google.protobuf.FieldMask.paths":                "names of fields",
	"memd.v1.Policy.embedder":                        "one of three names",
	"memd.v1.StartExportRequest.recipients":          "public keys",
	"memd.v1.ApproveDeletionRequest.digest":          "hexadecimal",
	"memd.v1.RemoveSurvivorsRequest.rows":            "tables and ids",
	"memd.v1.RemoveSurvivorsRequest.tenant":          "nothing survived to be removed",
	"memd.v1.RevokeExportLinkRequest.tenant":         "answers alike whether there was a link",
	"memd.v1.ListRequest.page_token":                 "made by the server",
	"memd.v1.ListTenantsRequest.page_token":          "made by the server",
	"memd.v1.ListApiKeysRequest.page_token":          "made by the server",
	"memd.v1.ListSessionsRequest.page_token":         "made by the server",
	"memd.v1.ListErasuresRequest.page_token":         "made by the server",
	"memd.v1.ListArtifactsRequest.page_token":        "made by the server",
	"memd.v1.ListArtifactVersionsRequest.page_token": "made by the server",
}

func isUUID(d protoreflect.FieldDescriptor) bool {
	rules, ok := proto.GetExtension(d.Options(), validate.E_Field).(*validate.FieldRules)
	return ok && rules.GetString().GetUuid()
}

// complete fails for every field of every request that no canary went through,
// so that a new one is not forgotten here.
func (f *fed) complete(t *testing.T) {
	t.Helper()
	n := 0
	for _, m := range methods() {
		leaves(m.Input(), nil, func(way []protoreflect.FieldDescriptor) {
			n++
			field, last := name(m, way), way[len(way)-1]
			_, never := wordless[last.FullName()]
			switch {
			case f.accepted[field]:
			case !never && !isUUID(last):
				t.Errorf("%s: no call with a canary in it was let through", field)
			case !f.refused[field]:
				t.Errorf("%s: no call with a canary in it was refused", field)
			}
		})
	}
	t.Logf("%d fields of %d procedures: %d carried canaries in, %d were refused with some", n, len(methods()), len(f.accepted), len(f.refused))
}
