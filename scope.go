package memd

// Scope says in whose scope a row is found: a user of an app, or, when UserID
// is empty, the app's shared scope.
type Scope struct {
	App    string
	UserID string
}

// Shared reports whether s is an app's shared scope.
func (s Scope) Shared() bool { return s.UserID == "" }
