package memd

import "time"

// Clock tells the time. Everything that reads it takes one, so that a test can
// move it.
type Clock interface {
	Now() time.Time
}

// SystemClock is the machine's clock, in UTC and to the microsecond, which is
// what PostgreSQL keeps.
type SystemClock struct{}

// Now implements Clock.
func (SystemClock) Now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
