package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// writeMessage writes an answer as JSON, as the API's own JSON would have it.
// Fields that are zero are written too, so that a script finds them.
func writeMessage(w io.Writer, m proto.Message) error {
	data, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("writing the answer as JSON: %w", err)
	}
	// protojson varies its white space on purpose; scripts and diffs want one
	// form.
	var out bytes.Buffer
	if err := json.Indent(&out, data, "", "  "); err != nil {
		return fmt.Errorf("writing the answer as JSON: %w", err)
	}
	out.WriteByte('\n')
	_, err = out.WriteTo(w)
	return err
}

// oneLine makes text safe for one cell of a table. What users said is written
// to a terminal here: control sequences in it must not reach the terminal, and
// text that changes direction must not rearrange the line.
func oneLine(s string) string {
	var b strings.Builder
	space := false
	for _, r := range s {
		switch {
		case unicode.IsSpace(r):
			space = b.Len() > 0
			continue
		case unicode.IsControl(r), r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069':
			r = unicode.ReplacementChar
		}
		if space {
			b.WriteByte(' ')
			space = false
		}
		b.WriteRune(r)
	}
	return b.String()
}

// formatTime writes an instant to the second, in UTC, and an unset one as a
// dash.
func formatTime(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().UTC().Format(time.DateTime + "Z")
}

// enumName is the name of an enum's value without its prefix, in lower case
// with hyphens, as flags take it, or as it is in the API.
func enumName(e protoreflect.Enum, prefix string, lower bool) string {
	v := e.Descriptor().Values().ByNumber(e.Number())
	if v == nil {
		return fmt.Sprint(e.Number())
	}
	name := strings.TrimPrefix(string(v.Name()), prefix)
	if lower {
		return strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	}
	return name
}

// orDash shows an empty cell as such.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
