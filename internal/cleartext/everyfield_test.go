package cleartext_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// throughEveryField calls every procedure with each of its fields alone, with a
// canary in it: mostly to be refused. Also what is no procedure: health, links,
// headers, paths.
func (w *world) throughEveryField() {
	for _, m := range methods() {
		leaves(m.Input(), nil, func(way []protoreflect.FieldDescriptor) {
			for _, secret := range []string{w.everyRole, w.root} {
				message := dynamicpb.NewMessage(m.Input())
				w.set(message, way)
				body, err := proto.Marshal(message)
				if err != nil {
					w.t.Fatal(err)
				}
				ok := w.post("/"+string(m.Parent().FullName())+"/"+string(m.Name()), secret, "proto", body, m.IsStreamingClient() || m.IsStreamingServer())
				w.fed.note([]string{name(m, way)}, ok)
			}
		})
	}
	w.post("/grpc.health.v1.Health/Check", w.everyRole, "json", []byte(`{"service":"`+w.word("service")+`"}`), false)
	w.post("/memd.v1."+w.word("service")+"/"+w.word("method"), w.everyRole, "json", []byte(`{}`), false)
	w.post("/memd.v1.MemoryService/Search", w.word("secret"), "json", []byte(`{}`), false)
	w.post("/memd.v1.MemoryService/Search", w.everyRole, "json", []byte(`{"`+w.word("key")+`":1}`), false)
	for _, path := range []string{"/exports/" + w.word("secret"), "/" + w.word("path"), "/metrics?" + w.word("query"), "/readyz?q=" + w.word("query")} {
		w.get(path)
	}
}

// set puts a canary at the end of a way.
func (w *world) set(m protoreflect.Message, way []protoreflect.FieldDescriptor) {
	d := way[0]
	switch {
	case d.IsMap():
		m.Mutable(d).Map().Set(protoreflect.ValueOfString(w.word("key")).MapKey(), protoreflect.ValueOfString(w.word("value")))
	case len(way) > 1 && d.IsList():
		w.set(m.Mutable(d).List().AppendMutable().Message(), way[1:])
	case len(way) > 1:
		w.set(m.Mutable(d).Message(), way[1:])
	case d.Kind() == protoreflect.FloatKind:
		for _, x := range w.direction() {
			m.Mutable(d).List().Append(protoreflect.ValueOfFloat32(x))
		}
	case d.IsList():
		m.Mutable(d).List().Append(protoreflect.ValueOfString(w.word(string(d.Name()))))
	case d.Kind() == protoreflect.BytesKind:
		m.Set(d, protoreflect.ValueOfBytes([]byte(w.word(string(d.Name())))))
	default:
		m.Set(d, protoreflect.ValueOfString(w.word(string(d.Name()))))
	}
}

// post sends a request as it is, keeps what is said of a refusal, and reports
// whether it was none.
func (w *world) post(path, secret, codec string, body []byte, streams bool) bool {
	w.t.Helper()
	answer, ok := w.ask(path, secret, codec, body, streams)
	if !ok {
		w.answers.add(errors.New(string(answer)))
	}
	return ok
}

// ask is post without keeping anything.
func (w *world) ask(path, secret, codec string, body []byte, streams bool) (answer []byte, ok bool) {
	w.t.Helper()
	contentType := "application/" + codec
	if streams {
		contentType = "application/connect+" + codec
		body = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	}
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, "http://"+w.d.Address+path, bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Connect-Protocol-Version", "1")
	r.Header.Set("Connect-Timeout-Ms", "2000")
	r.Header.Set("Authorization", "Bearer "+secret)
	return w.send(r)
}

func (w *world) get(path string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://"+w.d.Address+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if answer, ok := w.send(r); !ok {
		w.answers.add(errors.New(string(answer)))
	}
}

func (w *world) send(r *http.Request) (said []byte, ok bool) {
	w.t.Helper()
	for _, header := range []string{"User-Agent", "X-Request-Id", "Referer", "Cookie"} {
		r.Header.Set(header, w.word("header"))
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	said, err = io.ReadAll(answer.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return said, answer.StatusCode == http.StatusOK && !strings.Contains(string(said), `"error"`)
}
