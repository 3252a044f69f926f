package artifacts

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"forgettable.dev/memd"
)

func invalid(field, format string, args ...any) error {
	return &memd.InvalidError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

func validateOwner(o Owner) error {
	switch {
	case o.App == "":
		return invalid("app", "is required")
	case len(o.App) > memd.MaxIDBytes:
		return invalid("app", "is longer than %d bytes", memd.MaxIDBytes)
	case !utf8.ValidString(o.App) || strings.ContainsRune(o.App, 0):
		return invalid("app", "must be UTF-8 without NUL") // it is a column in clear
	case o.UserID == "":
		return invalid("user_id", "is required")
	case len(o.UserID) > memd.MaxIDBytes:
		return invalid("user_id", "is longer than %d bytes", memd.MaxIDBytes)
	case len(o.SessionID) > memd.MaxIDBytes:
		return invalid("session_id", "is longer than %d bytes", memd.MaxIDBytes)
	case memd.Wildcard(o.App):
		return invalid("app", "is a wildcard")
	case memd.Wildcard(o.UserID):
		return invalid("user_id", "is a wildcard")
	case memd.Wildcard(o.SessionID):
		return invalid("session_id", "is a wildcard")
	}
	return nil
}

func validateName(o Owner, name string) error {
	if err := validateOwner(o); err != nil {
		return err
	}
	switch {
	case name == "" || name == UserPrefix:
		return invalid("name", "is required")
	case len(name) > memd.MaxIDBytes:
		return invalid("name", "is longer than %d bytes", memd.MaxIDBytes)
	case !utf8.ValidString(name):
		return invalid("name", "must be UTF-8")
	case memd.Wildcard(strings.TrimPrefix(name, UserPrefix)):
		return invalid("name", "is a wildcard; a name means one artifact")
	case !ofUser(name) && o.SessionID == "":
		return invalid("session_id", "is required for a name that does not begin with %q", UserPrefix)
	}
	return nil
}

// ofUser reports whether a name belongs to the user.
func ofUser(name string) bool { return strings.HasPrefix(name, UserPrefix) }

func validateFile(f File, now time.Time) error {
	size := 0
	for k, v := range f.Metadata {
		if k == "" {
			return invalid("metadata", "has an empty key")
		}
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return invalid("metadata", "must be UTF-8")
		}
		size += len(k) + len(v)
	}
	switch {
	case len(f.MimeType) > MaxMimeTypeBytes:
		return invalid("mime_type", "is longer than %d bytes", MaxMimeTypeBytes)
	case !utf8.ValidString(f.MimeType):
		return invalid("mime_type", "must be UTF-8")
	case len(f.Metadata) > memd.MaxMetadataEntries:
		return invalid("metadata", "has more than %d entries", memd.MaxMetadataEntries)
	case size > memd.MaxMetadataBytes:
		return invalid("metadata", "is larger than %d bytes", memd.MaxMetadataBytes)
	case f.SourceTime.After(now.Add(memd.MaxClockSkew)):
		return invalid("source_time", "lies in the future")
	}
	if f.SourceTime.IsZero() {
		return nil
	}
	_, err := memd.MonthOf(f.SourceTime)
	return err
}
