package fault

// Kinds of calls that have no wrapper of their own.
const (
	PurgeCall    = "purge call"
	VerifierCall = "verifier call"
)

// Call runs a call to the outside behind a fuse.
func Call(f *Fuse, kind string, call func() error) error { return f.through(kind, call) }
