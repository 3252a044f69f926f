package main

import memdv1 "forgettable.dev/memd/gen/memd/v1"

// appFlag names the agent application. Users are of an app.
type appFlag struct {
	App string `default:"default" help:"Name of the agent application."`
}

// scopeFlags say in whose memory a command works: one user's, or what the users
// of an app share. There is no way to say everybody's.
type scopeFlags struct {
	appFlag
	User   string `xor:"scope" placeholder:"ID" help:"The user."`
	Shared bool   `xor:"scope" help:"Instead of a user: the app's shared scope."`
}

func (f *scopeFlags) scope() (*memdv1.Scope, error) {
	switch {
	case f.User != "" && f.Shared:
		return nil, usagef("--user and --shared rule each other out")
	case f.User != "":
		return userScope(f.App, f.User), nil
	case f.Shared:
		return &memdv1.Scope{Owner: &memdv1.Scope_Shared{Shared: &memdv1.SharedScope{App: f.App}}}, nil
	}
	return nil, usagef("whose memory? say --user=ID or --shared")
}

func userScope(app, user string) *memdv1.Scope {
	return &memdv1.Scope{Owner: &memdv1.Scope_User{User: &memdv1.UserScope{App: app, UserId: user}}}
}

// scopeName names a scope in a table.
func scopeName(s *memdv1.Scope) string {
	if u := s.GetUser(); u != nil {
		return u.GetApp() + "/" + u.GetUserId()
	}
	return s.GetShared().GetApp() + " (shared)"
}
