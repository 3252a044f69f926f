package eraser

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Headers of a webhook, as Standard Webhooks 1.0 names them. The signature is
// "v1," and base64 of HMAC-SHA256(key, id ‖ "." ‖ timestamp ‖ "." ‖ body), and
// there may be several, separated by spaces.
const (
	HeaderID        = "webhook-id"
	HeaderTimestamp = "webhook-timestamp"
	HeaderSignature = "webhook-signature"
)

const (
	// Tolerance is how far the time of a webhook may be from the receiver's,
	// either way.
	Tolerance = 5 * time.Minute

	keyPrefix       = "whsec_"
	signatureV1     = "v1,"
	minKeyBytes     = 24
	maxKeyBytes     = 64
	newKeyBytes     = 32
	maxMessageID    = 128
	maxSignatures   = 16
	maxHeaderLength = 4096
)

// Errors of a Verifier. None repeats what was received.
var (
	// ErrSignature: a header is missing or malformed, or no key made any of the
	// signatures.
	ErrSignature = errors.New("webhook is not signed by a known key")
	// ErrTimestamp: the webhook is older than Tolerance, or from the future.
	ErrTimestamp = errors.New("webhook is outside the tolerated time")
	// ErrKey: the text is no key, which is "whsec_" and base64 of 24 to 64 bytes.
	ErrKey = errors.New("webhook key is not whsec_ and base64 of 24 to 64 bytes")
)

// Key signs webhooks.
type Key struct{ secret []byte }

// NewKey draws a key from the system's random numbers.
func NewKey() Key {
	secret := make([]byte, newKeyBytes)
	_, _ = rand.Read(secret) // It never fails: the process ends instead.
	return Key{secret}
}

// ParseKey reads what Secret wrote.
func ParseKey(text string) (Key, error) {
	encoded, ok := strings.CutPrefix(text, keyPrefix)
	if !ok {
		return Key{}, ErrKey
	}
	secret, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || len(secret) < minKeyBytes || len(secret) > maxKeyBytes {
		return Key{}, ErrKey
	}
	return Key{secret}, nil
}

// Secret returns the key's text. It is the only way to get it: a Key prints as
// nothing that helps.
func (k Key) Secret() string { return keyPrefix + base64.StdEncoding.EncodeToString(k.secret) }

// String implements fmt.Stringer.
func (Key) String() string { return "[webhook key]" }

// GoString implements fmt.GoStringer.
func (Key) GoString() string { return "[webhook key]" }

// Sign sets the three headers for a body that is sent at the given time. The id
// must have no full stop, which separates the parts that are signed.
func (k Key) Sign(h http.Header, id string, at time.Time, body []byte) {
	stamp := strconv.FormatInt(at.Unix(), 10)
	h.Set(HeaderID, id)
	h.Set(HeaderTimestamp, stamp)
	h.Set(HeaderSignature, signatureV1+base64.StdEncoding.EncodeToString(k.mac(id, stamp, body)))
}

func (k Key) mac(id, stamp string, body []byte) []byte {
	h := hmac.New(sha256.New, k.secret)
	h.Write([]byte(id))
	h.Write([]byte{'.'})
	h.Write([]byte(stamp))
	h.Write([]byte{'.'})
	h.Write(body)
	return h.Sum(nil)
}

// Verifier tells memd's webhooks from everybody else's. It remembers nothing: a
// copy of a webhook passes for Tolerance, so a receiver has to know the ids that
// it has carried out, as Handler does.
type Verifier struct{ keys []Key }

// NewVerifier takes at least one key; the second is for the time in which the
// first is being replaced.
func NewVerifier(keys ...string) (*Verifier, error) {
	if len(keys) == 0 {
		return nil, ErrKey
	}
	v := &Verifier{}
	for _, text := range keys {
		k, err := ParseKey(text)
		if err != nil {
			return nil, err
		}
		v.keys = append(v.keys, k)
	}
	return v, nil
}

// Verify checks the signature first, then the time, and returns the webhook's
// id. body is what was received, byte for byte.
func (v *Verifier) Verify(h http.Header, body []byte, now time.Time) (id string, err error) {
	id, stamp, signatures := h.Get(HeaderID), h.Get(HeaderTimestamp), h.Get(HeaderSignature)
	at, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || strconv.FormatInt(at, 10) != stamp || at < 0 ||
		id == "" || len(id) > maxMessageID || strings.Contains(id, ".") || len(signatures) > maxHeaderLength {
		return "", ErrSignature
	}
	if !v.signed(id, stamp, signatures, body) {
		return "", ErrSignature
	}
	if off := now.Sub(time.Unix(at, 0)); off > Tolerance || off < -Tolerance {
		return "", ErrTimestamp
	}
	return id, nil
}

// signed compares every signature with every key, in constant time each.
func (v *Verifier) signed(id, stamp, signatures string, body []byte) bool {
	found := false
	for i, s := range strings.Fields(signatures) {
		if i == maxSignatures {
			break
		}
		encoded, ok := strings.CutPrefix(s, signatureV1)
		if !ok {
			continue // Of another scheme.
		}
		got, err := base64.StdEncoding.Strict().DecodeString(encoded)
		if err != nil {
			continue
		}
		for _, k := range v.keys {
			found = hmac.Equal(got, k.mac(id, stamp, body)) || found
		}
	}
	return found
}
