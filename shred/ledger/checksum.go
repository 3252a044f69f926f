package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"forgettable.dev/memd"
)

// What a location stores under a name is one line and the data behind it. The
// line has the SHA-256 of name, NUL and data in hexadecimal, so that a changed
// byte is noticed wherever it is, and so is a value under another's name. It is
// against bad disks and mistakes: who may write the location can make a line as
// well, and what keeps such a one out is that values are sealed or signed.
const checksumMagic = "memd-ledger-1 "

// stamped is the length of the line.
const stamped = len(checksumMagic) + 2*sha256.Size + 1

// stamp returns data as it is stored.
func stamp(name string, data []byte) []byte {
	return append(line(name, data), data...)
}

// unstamp returns the data of what is stored, or memd.ErrCorrupt unless stamp
// made it for that name.
func unstamp(name string, stored []byte) ([]byte, error) {
	if len(stored) < stamped || !bytes.Equal(line(name, stored[stamped:]), stored[:stamped]) {
		return nil, fmt.Errorf("a value of the ledger is not what was written: %w", memd.ErrCorrupt)
	}
	return stored[stamped:], nil
}

// line is what stands before data, with room for it.
func line(name string, data []byte) []byte {
	hash := sha256.New()
	hash.Write([]byte(name))
	hash.Write([]byte{0})
	hash.Write(data)
	l := append(make([]byte, 0, stamped+len(data)), checksumMagic...)
	l = hex.AppendEncode(l, hash.Sum(nil))
	return append(l, '\n')
}
