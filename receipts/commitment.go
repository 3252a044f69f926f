package receipts

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"

	"forgettable.dev/memd"
)

// Salt is what opens a commitment. It is given to the requester and to nobody
// else; without it, a commitment cannot be tested against any list of names.
type Salt [32]byte

// NewSalt draws a salt.
func NewSalt() (Salt, error) {
	var s Salt
	if _, err := rand.Read(s[:]); err != nil {
		return Salt{}, fmt.Errorf("drawing a salt: %w", err)
	}
	return s, nil
}

// ParseSalt reads what Reveal wrote. The error does not repeat it.
func ParseSalt(text string) (Salt, error) {
	var s Salt
	if err := unhex(s[:], []byte(text)); err != nil {
		return Salt{}, &memd.InvalidError{Field: "salt", Problem: err.Error()}
	}
	return s, nil
}

// Reveal returns the salt in hexadecimal, for the requester.
func (s Salt) Reveal() string { return hex.EncodeToString(s[:]) }

// String hides the salt, so that printing one is not a leak.
func (s Salt) String() string { return "salt" }

// GoString hides it from %#v.
func (s Salt) GoString() string { return "salt" }

// Format hides it from every other verb.
func (s Salt) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("salt")) } // A writer of fmt's own.

// LogValue implements slog.LogValuer.
func (s Salt) LogValue() slog.Value { return slog.StringValue("salt") }

// commitmentLabel keeps a commitment apart from any other digest.
const commitmentLabel = "memd/receipt/subject/v1"

// Commit returns SHA-256(salt ‖ parts), each part behind its length in four
// bytes, big-endian: a label, the tenant's name, app, user id, session id. What
// an erasure is not about is empty: the session for a user, all three for a
// tenant. No two subjects have the same parts.
func Commit(salt Salt, tenant, app, user, session string) Digest {
	h := sha256.New()
	h.Write(salt[:])
	for _, part := range []string{commitmentLabel, tenant, app, user, session} {
		var length [4]byte
		binary.BigEndian.PutUint32(length[:], uint32(len(part)))
		h.Write(length[:])
		h.Write([]byte(part))
	}
	return Digest(h.Sum(nil))
}

// Proves reports whether the receipt is about the subject, as the holder of the
// salt says.
func (r Receipt) Proves(salt Salt, app, user, session string) bool {
	c := Commit(salt, r.Tenant, app, user, session)
	return subtle.ConstantTimeCompare(c[:], r.Commitment[:]) == 1
}
