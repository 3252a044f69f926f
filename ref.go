package memd

import (
	"encoding/hex"
	"log/slog"
)

// Ref is a keyed digest (HMAC-SHA256 under a tenant's index key) that stands
// for a user, a shared scope or a session wherever it must be looked up. It
// tells nothing without the key.
type Ref [32]byte

// String returns the first eight bytes in hexadecimal: enough to follow one
// subject through a log, and all that a log may say about anybody.
func (r Ref) String() string { return hex.EncodeToString(r[:8]) }

// LogValue implements slog.LogValuer, without which a handler would write all
// of the bytes.
func (r Ref) LogValue() slog.Value { return slog.StringValue(r.String()) }

// IsZero reports whether r was never set.
func (r Ref) IsZero() bool { return r == Ref{} }
