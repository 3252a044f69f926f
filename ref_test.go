package memd_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"forgettable.dev/memd"
)

// A log says as much about somebody as Ref.String, whatever the handler does
// with an array of bytes.
func TestRef_IsLoggedShort(t *testing.T) {
	r := memd.Ref{0: 0xab, 31: 0xcd}
	var out bytes.Buffer
	timeless := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{} // its digits are anybody's
		}
		return a
	}}
	slog.New(slog.NewJSONHandler(&out, timeless)).Info("x", "user", r)
	slog.New(slog.NewTextHandler(&out, timeless)).Info("x", "user", r)
	if n := strings.Count(out.String(), "ab00000000000000"); n != 2 || strings.Contains(out.String(), "cd") || strings.Contains(out.String(), "205") {
		t.Errorf("logged: %s", out.String())
	}
}
