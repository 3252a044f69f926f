package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"forgettable.dev/memd"
)

// secretPrefix lets scanners for leaked credentials know one of ours.
const secretPrefix = "memd_"

const secretBytes = 32

var secretEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newSecret returns a fresh key: the prefix and 52 characters for 256 random
// bits.
func newSecret() string {
	var b [secretBytes]byte
	rand.Read(b[:]) // Never fails: see crypto/rand.
	return secretPrefix + secretEncoding.EncodeToString(b[:])
}

// hashSecret returns what is stored of a key. A fast hash is enough: there is
// no guessing 256 random bits. Anything that is not of a key's form is
// ErrUnauthenticated, without asking the database.
func hashSecret(secret string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(secret, secretPrefix)
	if !ok || len(encoded) != secretEncoding.EncodedLen(secretBytes) {
		return nil, memd.ErrUnauthenticated
	}
	if _, err := secretEncoding.DecodeString(encoded); err != nil {
		return nil, memd.ErrUnauthenticated
	}
	h := sha256.Sum256([]byte(secret))
	return h[:], nil
}
