package embed

import "log/slog"

// Secret is an API key. It prints as a mark that says whether it is set, so
// that a Config can be logged.
type Secret string

const redacted = "[redacted]"

// String implements fmt.Stringer.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return s.String() }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText keeps the key out of JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
