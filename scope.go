package memd

import "strings"

// Scope says in whose scope a row is found: a user of an app, or, when UserID
// is empty, the app's shared scope.
type Scope struct {
	App    string
	UserID string
}

// Shared reports whether s is an app's shared scope.
func (s Scope) Shared() bool { return s.UserID == "" }

// Wildcard reports whether an id reads like "all of them" to somebody. No id is
// a pattern in memd; such a one is refused everywhere, so that whoever means all
// learns that nothing was found, searched or erased.
func Wildcard(id string) bool { return id != "" && strings.Trim(id, "*%") == "" }
