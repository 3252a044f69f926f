package server_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"forgettable.dev/memd/internal/auth"
)

// spoken is in every string that the test makes up and that is not an id: no
// error and no log line may repeat it. It is no name for a tenant, which are
// logged.
const spoken = "Q7spoken7Q"

// malformed makes requests up: of the right shape and full of nonsense, and
// bytes of no shape at all.
type malformed struct{ *rand.Rand }

// odd are strings that something along the way may stumble over.
var odd = []string{
	"", " ", "*", "%", "\x00", "\u202e", "..", "/", "'; --", "$1", "null", "-1", "0", "1e999",
	"00000000-0000-0000-0000-000000000000", strings.Repeat("a", 513), strings.Repeat("ä", 300),
}

func (m malformed) text() string {
	switch m.IntN(5) {
	case 0:
		return odd[m.IntN(len(odd))]
	case 1:
		return uuid.NewString()
	case 2:
		return spoken + strings.Repeat("x", m.IntN(2000))
	default:
		return spoken + strconv.Itoa(m.IntN(3))
	}
}

func (m malformed) number() int64 {
	return []int64{0, 1, 2, -1, 7, 1000, 1001, math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64}[m.IntN(11)]
}

func (m malformed) float() float64 {
	return []float64{0, 1, -1, 0.5, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat32, math.SmallestNonzeroFloat32}[m.IntN(9)]
}

func (m malformed) scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(m.IntN(2) == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(int32(m.number())))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(m.number()))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(m.number())
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(m.number()))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(m.number()))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(m.float()))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(m.float())
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(m.text()))
	default:
		return protoreflect.ValueOfString(m.text())
	}
}

// fill sets about two thirds of a message's fields.
func (m malformed) fill(message protoreflect.Message, depth int) {
	fields := message.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if m.IntN(3) == 0 || depth > 5 {
			continue
		}
		switch {
		case f.IsMap():
			for range m.IntN(3) {
				k := m.scalar(f.MapKey()).MapKey()
				if f.MapValue().Kind() == protoreflect.MessageKind {
					v := message.Mutable(f).Map().NewValue()
					m.fill(v.Message(), depth+1)
					message.Mutable(f).Map().Set(k, v)
				} else {
					message.Mutable(f).Map().Set(k, m.scalar(f.MapValue()))
				}
			}
		case f.IsList():
			for range []int{0, 1, 3, 300}[m.IntN(4)] {
				if f.Kind() == protoreflect.MessageKind {
					m.fill(message.Mutable(f).List().AppendMutable().Message(), depth+2)
				} else {
					message.Mutable(f).List().Append(m.scalar(f))
				}
			}
		case f.Kind() == protoreflect.MessageKind:
			m.fill(message.Mutable(f).Message(), depth+1)
		default:
			message.Set(f, m.scalar(f))
		}
	}
}

// request returns a body and its codec.
func (m malformed) request(t *testing.T, method protoreflect.MethodDescriptor) (body []byte, codec string) {
	message := dynamicpb.NewMessage(method.Input())
	m.fill(message, 0)
	body, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	codec = "proto"
	if j, err := (protojson.MarshalOptions{AllowPartial: true}).Marshal(message); err == nil && m.IntN(2) == 0 {
		body, codec = j, "json" // Times out of range have no JSON.
	}
	switch m.IntN(4) {
	case 0: // Broken bytes.
		for range 1 + m.IntN(8) {
			if len(body) > 0 {
				body[m.IntN(len(body))] = byte(m.Uint32())
			}
		}
	case 1: // Cut off.
		body = body[:m.IntN(len(body)+1)]
	}
	return body, codec
}

// TestMalformed_NoRequestIsAFault sends nonsense to every procedure, as callers
// who may call it. Each is refused as the caller's mistake, or is good by
// chance; none is a fault of the server, none makes it panic, and no answer and
// no log line repeats what was sent. MEMD_MALFORMED says how many of each.
func TestMalformed_NoRequestIsAFault(t *testing.T) {
	each := 40
	if n, err := strconv.Atoi(os.Getenv("MEMD_MALFORMED")); err == nil && n > 0 {
		each = n
	}
	seed := rand.Uint64()
	if n, err := strconv.ParseUint(os.Getenv("MEMD_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("seed %d, %d requests for each procedure", seed, each)
	in := setup(t)
	in.work()
	s := in.serve()
	acme := in.tenant("acme")
	_, agent := in.key(acme.No, auth.Agent|auth.Eraser|auth.Auditor|auth.Operator|auth.Approver)
	_, root := in.key(auth.Installation, auth.Auditor|auth.Operator|auth.Approver)
	m := malformed{rand.New(rand.NewPCG(seed, 0))}
	refused := 0
	for _, method := range methods() {
		procedure := "/" + string(method.Parent().FullName()) + "/" + string(method.Name())
		for i := range each {
			body, codec := m.request(t, method)
			secret := agent
			if strings.Contains(procedure, "AdminService") && i%2 == 0 {
				secret = root
			}
			status, answer := s.post(t, impatience, procedure, secret, codec, body, method.IsStreamingClient() || method.IsStreamingServer())
			if fault := faultIn(status, answer); fault != "" {
				t.Errorf("%s of %d bytes of %s, number %d: %s", procedure, len(body), codec, i, fault)
			}
			if status != http.StatusOK {
				refused++
				if strings.Contains(answer, spoken) {
					t.Errorf("%s: a refusal repeats what was sent", procedure)
				}
			}
		}
	}
	if refused == 0 {
		t.Error("nothing was refused: the requests are not malformed")
	}
	log := s.log.String()
	for line := range strings.Lines(log) {
		if strings.Contains(line, spoken) {
			t.Errorf("the log repeats what was sent: %.400s", line)
		}
	}
	if strings.Contains(log, "panic") {
		t.Error("a call panicked")
	}
	// It still works.
	if status, answer := s.post(t, patience, "/memd.v1.MemoryService/List", agent, "json", []byte(`{"scope":{"user":{"app":"a","userId":"u"}}}`), false); status != http.StatusOK {
		t.Errorf("afterwards: %d %s", status, answer)
	}
}

// patience is how long a call may take in tests that care for its answer;
// impatience, where waiting for an erasure is no finding.
const (
	patience   = time.Minute
	impatience = 2 * time.Second
)

// post sends one request, in an envelope where the procedure streams.
func (s *instance) post(t *testing.T, limit time.Duration, procedure, secret, codec string, body []byte, streams bool) (int, string) {
	t.Helper()
	contentType := "application/" + codec
	if streams {
		contentType = "application/connect+" + codec
		head := make([]byte, 5)
		binary.BigEndian.PutUint32(head[1:], uint32(len(body)))
		body = append(head, body...)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+procedure, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Connect-Protocol-Version", "1")
	req.Header.Set("Connect-Timeout-Ms", fmt.Sprint(limit.Milliseconds()))
	req.Header.Set("Authorization", "Bearer "+secret)
	res, err := s.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(answer)
}

// faultIn says what is wrong with an answer, if anything is: a caller's mistake
// never is the server's fault.
func faultIn(status int, answer string) string {
	if status == http.StatusInternalServerError || status == http.StatusNotFound && !strings.Contains(answer, `"code"`) {
		return fmt.Sprintf("status %d: %.200q", status, answer)
	}
	at := strings.Index(answer, `{"`)
	if status == http.StatusOK && !strings.Contains(answer, `"error"`) || at < 0 {
		return ""
	}
	var e struct {
		Code  string `json:"code"`
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	if err := json.NewDecoder(strings.NewReader(answer[at:])).Decode(&e); err != nil {
		return ""
	}
	for _, code := range []string{e.Code, e.Error.Code} {
		switch code {
		case "internal", "unknown", "data_loss", "unimplemented":
			return fmt.Sprintf("code %s: %.300q", code, answer)
		}
	}
	return ""
}
