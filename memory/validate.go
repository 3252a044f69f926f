package memory

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/embed"
)

func invalid(field, format string, args ...any) error {
	return &memd.InvalidError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// validateRows checks everything that needs no database, so that a bad row is
// refused before anything is embedded, sealed or written.
func validateRows(t Tenant, rows []Row, now time.Time) error {
	if len(rows) == 0 || len(rows) > memd.MaxBatch {
		return invalid("rows", "must be 1 to %d", memd.MaxBatch)
	}
	type event struct {
		scope           memd.Scope
		user, session   string
		event           string
		otherwiseShared bool
	}
	seen := map[event]int{}
	for i := range rows {
		r := &rows[i]
		if err := validateRow(t, r, now); err != nil {
			return inRow(i, err)
		}
		if r.EventID == "" {
			continue
		}
		e := event{scope: r.Scope, session: r.SessionID, event: r.EventID}
		if r.Contributor != nil {
			e.user, e.session, e.otherwiseShared = r.Contributor.UserID, r.Contributor.SessionID, true
		}
		if j, ok := seen[e]; ok {
			return inRow(i, invalid("event_id", "repeats that of rows[%d]", j))
		}
		seen[e] = i
	}
	return nil
}

func validateRow(t Tenant, r *Row, now time.Time) error {
	if err := validateScope(r.Scope); err != nil {
		return err
	}
	switch {
	case r.Kind < KindRaw || r.Kind > KindSummary:
		return invalid("kind", "must be raw, fact or summary")
	case r.Text == "" && r.Vector == nil:
		return invalid("text", "or vector is required")
	case len(r.SessionID) > memd.MaxIDBytes:
		return invalid("session_id", "is longer than %d bytes", memd.MaxIDBytes)
	case memd.Wildcard(r.SessionID):
		return invalid("session_id", "is a wildcard")
	case len(r.EventID) > memd.MaxIDBytes:
		return invalid("event_id", "is longer than %d bytes", memd.MaxIDBytes)
	case !r.ExpiresAt.IsZero() && !r.ExpiresAt.After(now):
		return invalid("expires_at", "must lie in the future")
	}
	if err := validateProvenance(r); err != nil {
		return err
	}
	if err := validateSourceTime(r.SourceTime, now); err != nil {
		return err
	}
	return validateContent(t, r.Text, r.Vector, r.Metadata)
}

func validateScope(s memd.Scope) error {
	switch {
	case s.App == "":
		return invalid("scope.app", "is required")
	case len(s.App) > memd.MaxIDBytes:
		return invalid("scope.app", "is longer than %d bytes", memd.MaxIDBytes)
	case !utf8.ValidString(s.App) || strings.ContainsRune(s.App, 0):
		return invalid("scope.app", "must be UTF-8 without NUL") // it is a column in clear
	case len(s.UserID) > memd.MaxIDBytes:
		return invalid("scope.user_id", "is longer than %d bytes", memd.MaxIDBytes)
	case memd.Wildcard(s.App) || memd.Wildcard(s.UserID):
		return invalid("scope", "is a wildcard; a scope is one user's or one app's")
	}
	return nil
}

// validateProvenance refuses rows that do not say whose words they hold. A
// derived row that named neither a session nor sources could not be found when
// what it was derived from is forgotten.
func validateProvenance(r *Row) error {
	shared := r.Scope.Shared()
	switch {
	case r.Kind == KindRaw && len(r.Sources) > 0:
		return invalid("sources", "are for derived rows; a raw row has none")
	case !shared && (r.Contributor != nil || r.Impersonal):
		return invalid("contributor", "and impersonal belong to a shared scope; in a user's scope use session_id")
	case shared && r.SessionID != "":
		return invalid("session_id", "belongs to a user's scope; in a shared scope use contributor")
	case shared && r.Impersonal == (r.Contributor != nil || len(r.Sources) > 0):
		return invalid("contributor", "or sources are required in a shared scope, unless the row is impersonal")
	case r.Contributor != nil && r.Contributor.UserID == "":
		return invalid("contributor.user_id", "is required")
	case r.Contributor != nil && (memd.Wildcard(r.Contributor.UserID) || memd.Wildcard(r.Contributor.SessionID)):
		return invalid("contributor", "is a wildcard")
	case r.Kind != KindRaw && len(r.Sources) == 0 && r.SessionID == "" && r.Contributor == nil && !r.Impersonal:
		return invalid("sources", "or session_id are required for a derived row")
	}
	return validateSources(r.Sources)
}

func validateSources(sources []Source) error {
	if len(sources) > memd.MaxSources {
		return invalid("sources", "are more than %d", memd.MaxSources)
	}
	for i, s := range sources {
		if (s.MemoryID == uuid.Nil) == (s.UserID == "" || s.SessionID == "") {
			return invalid(fmt.Sprintf("sources[%d]", i), "must name either a memory or a user and session")
		}
		if memd.Wildcard(s.UserID) || memd.Wildcard(s.SessionID) {
			return invalid(fmt.Sprintf("sources[%d]", i), "is a wildcard")
		}
	}
	return nil
}

func validateSourceTime(t, now time.Time) error {
	if t.IsZero() {
		return nil
	}
	if t.After(now.Add(memd.MaxClockSkew)) {
		return invalid("source_time", "lies more than %s in the future", memd.MaxClockSkew)
	}
	_, err := memd.MonthOf(t)
	return err
}

func validateContent(t Tenant, text string, vector []float32, metadata map[string]string) error {
	switch {
	case len(text) > memd.MaxTextBytes:
		return invalid("text", "is longer than %d bytes", memd.MaxTextBytes)
	case vector != nil && len(vector) != t.Dimension:
		return invalid("vector", "has %d components; the tenant's policy says %d", len(vector), t.Dimension)
	case vector == nil && t.Embedder == embed.NameNone:
		return invalid("vector", "is required: the tenant's policy names no embedder")
	case len(metadata) > memd.MaxMetadataEntries:
		return invalid("metadata", "has more than %d entries", memd.MaxMetadataEntries)
	}
	size := 0
	for k, v := range metadata {
		size += len(k) + len(v)
	}
	if size > memd.MaxMetadataBytes {
		return invalid("metadata", "is larger than %d bytes", memd.MaxMetadataBytes)
	}
	return nil
}
