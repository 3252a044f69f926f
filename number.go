package memd

import (
	"fmt"
	"strconv"
	"time"
)

// TenantNo numbers a tenant inside one installation. It is not secret.
type TenantNo int64

// String returns the decimal form.
func (t TenantNo) String() string { return strconv.FormatInt(int64(t), 10) }

// Limits of a Number. A generation is raised by every restore or failover that
// lost numbers, so sixteen million of them outlast any installation.
const (
	counterBits   = 40
	MaxCounter    = 1<<counterBits - 1
	MaxGeneration = 1<<(62-counterBits) - 1
)

// Number names a subject inside its tenant, a session inside its subject, or a
// job inside its tenant: a generation and a counter, both from 1. A number is
// given out once and never again, even when the database was rolled back in
// between, because every rollback raises the generation.
//
// It packs into one positive int64, so that it is a bigint in the database and
// sorts by generation, then counter. The zero value is no number.
type Number int64

// OwnScope is the session number of a subject's own scope: what belongs to the
// subject and to no conversation.
const OwnScope Number = 1<<counterBits | 1

// NewNumber packs a generation and a counter. It returns an error when either
// is zero or above its limit.
func NewNumber(generation, counter int64) (Number, error) {
	if generation < 1 || generation > MaxGeneration || counter < 1 || counter > MaxCounter {
		return 0, fmt.Errorf("number (%d,%d) is out of range", generation, counter)
	}
	return Number(generation<<counterBits | counter), nil
}

// Generation returns the generation, from 1.
func (n Number) Generation() int64 { return int64(n) >> counterBits }

// Counter returns the counter, from 1.
func (n Number) Counter() int64 { return int64(n) & MaxCounter }

// Valid reports whether n names something: both parts are at least 1.
func (n Number) Valid() bool {
	return n > 0 && n.Generation() >= 1 && n.Generation() <= MaxGeneration && n.Counter() >= 1
}

// String returns "generation.counter".
func (n Number) String() string { return fmt.Sprintf("%d.%d", n.Generation(), n.Counter()) }

// Class says which of the two halves of a session a key belongs to.
type Class uint8

const (
	// ClassContent is the session's own content: events, state, artifacts.
	ClassContent Class = 0
	// ClassMemory is what memory took from the session.
	ClassMemory Class = 1
)

// String returns "session" or "memory", which is what policies call them.
func (c Class) String() string {
	if c == ClassContent {
		return "session"
	}
	return "memory"
}

// Contribution says whose words, from which session, went into a row. Words
// outside any conversation contribute as the subject's OwnScope.
type Contribution struct {
	Subject Number
	Session Number
}

// Compare orders contributions by subject, then session.
func (c Contribution) Compare(d Contribution) int {
	switch {
	case c.Subject != d.Subject:
		if c.Subject < d.Subject {
			return -1
		}
		return 1
	case c.Session < d.Session:
		return -1
	case c.Session > d.Session:
		return 1
	}
	return 0
}

// Month counts calendar months (UTC) from January 1970, which is 1.
type Month int32

// MonthOf returns the month of t in UTC. Times before 1970 have none.
func MonthOf(t time.Time) (Month, error) {
	t = t.UTC()
	m := (t.Year()-1970)*12 + int(t.Month())
	if m < 1 || m > 12*8030 {
		return 0, &InvalidError{Field: "source_time", Problem: "is outside the years 1970 to 9999"}
	}
	return Month(m), nil
}

// Start returns the first instant of the month.
func (m Month) Start() time.Time {
	return time.Date(1970, time.Month(m), 1, 0, 0, 0, 0, time.UTC)
}

// String returns "2006-01".
func (m Month) String() string { return m.Start().Format("2006-01") }

// MonthSize is how much a store has of one month: rows, and the bytes of what is
// sealed in them.
type MonthSize struct {
	Month       Month
	Rows, Bytes int64
}
