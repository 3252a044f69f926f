package eraser_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"forgettable.dev/memd/eraser"
)

// signer signs as the specification of Standard Webhooks says, without any of
// memd's code.
func signer(secret, id string, at int64, body string) http.Header {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		panic(err)
	}
	h := hmac.New(sha256.New, key)
	fmt.Fprintf(h, "%s.%d.%s", id, at, body)
	header := http.Header{}
	header.Set("webhook-id", id)
	header.Set("webhook-timestamp", fmt.Sprint(at))
	header.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(h.Sum(nil)))
	return header
}

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func TestVerifier(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	const id, body = "msg_1", `{"test": 2432232314}`
	v, err := eraser.NewVerifier(eraser.NewKey().Secret(), secret)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(h http.Header)
		body   string
		want   error
	}{
		"as it was signed":       {func(http.Header) {}, body, nil},
		"several signatures":     {func(h http.Header) { h.Set("webhook-signature", "v1a,xx v1,AAAA "+h.Get("webhook-signature")) }, body, nil},
		"another body":           {func(http.Header) {}, body + " ", eraser.ErrSignature},
		"another id":             {func(h http.Header) { h.Set("webhook-id", "msg_2") }, body, eraser.ErrSignature},
		"another time":           {func(h http.Header) { h.Set("webhook-timestamp", fmt.Sprint(now.Unix()+1)) }, body, eraser.ErrSignature},
		"no id":                  {func(h http.Header) { h.Del("webhook-id") }, body, eraser.ErrSignature},
		"no time":                {func(h http.Header) { h.Del("webhook-timestamp") }, body, eraser.ErrSignature},
		"a time that is none":    {func(h http.Header) { h.Set("webhook-timestamp", "+1700000000") }, body, eraser.ErrSignature},
		"no signature":           {func(h http.Header) { h.Del("webhook-signature") }, body, eraser.ErrSignature},
		"a signature of nothing": {func(h http.Header) { h.Set("webhook-signature", "v1,") }, body, eraser.ErrSignature},
		"another scheme": {func(h http.Header) {
			h.Set("webhook-signature", strings.Replace(h.Get("webhook-signature"), "v1,", "v2,", 1))
		}, body, eraser.ErrSignature},
	} {
		h := signer(secret, id, now.Unix(), body)
		c.change(h)
		got, err := v.Verify(h, []byte(c.body), now)
		if !errors.Is(err, c.want) || err == nil && got != id {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	// Clocks that differ, either way, and a copy that comes too late.
	for off, want := range map[time.Duration]error{
		0: nil, eraser.Tolerance: nil, -eraser.Tolerance: nil,
		eraser.Tolerance + time.Second: eraser.ErrTimestamp, -eraser.Tolerance - time.Second: eraser.ErrTimestamp, 24 * time.Hour: eraser.ErrTimestamp,
	} {
		if _, err := v.Verify(signer(secret, id, now.Unix(), body), []byte(body), now.Add(off)); !errors.Is(err, want) {
			t.Errorf("clocks apart by %v: %v", off, err)
		}
	}
	// An id with a full stop would let two messages be signed alike.
	h := signer(secret, "msg.1", now.Unix(), body)
	if _, err := v.Verify(h, []byte(body), now); !errors.Is(err, eraser.ErrSignature) {
		t.Errorf("an id with a full stop: %v", err)
	}
	h = signer(eraser.NewKey().Secret(), id, now.Unix(), body)
	if _, err := v.Verify(h, []byte(body), now); !errors.Is(err, eraser.ErrSignature) {
		t.Errorf("a key of nobody's: %v", err)
	}
}

func TestKey(t *testing.T) {
	k, err := eraser.ParseKey(secret)
	if err != nil || k.Secret() != secret {
		t.Errorf("%v, %v", k.Secret(), err)
	}
	h := http.Header{}
	k.Sign(h, "msg_1", time.Unix(1_700_000_000, 5), []byte("body"))
	for name, want := range signer(secret, "msg_1", 1_700_000_000, "body") {
		if h.Get(name) != want[0] {
			t.Errorf("%s is %q, want %q", name, h.Get(name), want)
		}
	}
	if printed := fmt.Sprintf("%v %+v %#v %s", k, k, k, k); strings.Contains(printed, "MfKQ") || strings.Contains(printed, "secret:") {
		t.Errorf("prints %s", printed)
	}
	for _, bad := range []string{"", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_MfKQ", "whsec_" + strings.Repeat("A", 200), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS*", "whpk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"} {
		if _, err := eraser.ParseKey(bad); !errors.Is(err, eraser.ErrKey) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if one, another := eraser.NewKey(), eraser.NewKey(); one.Secret() == another.Secret() {
		t.Error("two keys are alike")
	}
	if _, err := eraser.NewVerifier(); !errors.Is(err, eraser.ErrKey) {
		t.Errorf("no key: %v", err)
	}
}

func FuzzVerify(f *testing.F) {
	v, err := eraser.NewVerifier(secret)
	if err != nil {
		f.Fatal(err)
	}
	now := time.Unix(1_700_000_000, 0)
	good := signer(secret, "msg_1", now.Unix(), "body")
	f.Add("msg_1", "1700000000", good.Get("webhook-signature"), "body")
	f.Add("", "", "", "")
	f.Fuzz(func(t *testing.T, id, stamp, signature, body string) {
		h := http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {stamp}, "Webhook-Signature": {signature}}
		if _, err := v.Verify(h, []byte(body), now); err == nil && (id != "msg_1" || stamp != "1700000000" || body != "body") {
			t.Errorf("accepted %q %q %q %q", id, stamp, signature, body)
		}
	})
}
