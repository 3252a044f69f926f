package server

import "forgettable.dev/memd"

// DefaultArtifactStreams is how many artifacts pass through a process at once,
// unless the Config says otherwise: each keeps a message of at most 16 MiB and a
// few chunks in memory.
const DefaultArtifactStreams = 64

// streams has a place for each artifact that may pass at once.
type streams chan struct{}

// enter takes a place, which leave gives back. It does not wait: a client that
// is told can go to another replica, and one that waits holds memory already.
func (s streams) enter() (leave func(), err error) {
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	default:
		return nil, memd.ErrTooManyStreams
	}
}
