package compact

import (
	"errors"
	"fmt"
)

// Failure is why a table was not compacted: a word for journals, metrics and
// answers, which names nothing of anybody's.
type Failure string

// The failures.
const (
	// NoRight: memd_maintain may not vacuum the table. PostgreSQL warns, does
	// nothing and calls it a success.
	NoRight Failure = "no_right"
	// Notice: VACUUM warned of something, or skipped the table.
	Notice Failure = "notice"
	// Locked: others kept the table locked for longer than the patience.
	Locked Failure = "locked"
	// HeldBack: a transaction older than the compaction may still see what was
	// deleted, so that it would have stayed.
	HeldBack Failure = "held_back"
	// NoHeadroom: a rewrite needs more space than is free.
	NoHeadroom Failure = "no_headroom"
	// HeadroomUnknown: nobody said how to see how much space is free.
	HeadroomUnknown Failure = "headroom_unknown"
	// DiskFull: the server ran out of space. What was written is taken back.
	DiskFull Failure = "disk_full"
	// NotRewritten: VACUUM FULL succeeded and the table has the same file.
	NotRewritten Failure = "not_rewritten"
	// Refused: the server refused the statement, again and again.
	Refused Failure = "refused"
)

// TableError says why a table was not compacted.
type TableError struct {
	Table   string
	Failure Failure
	// SQLState is the server's, if it said something.
	SQLState string
	// Need and Free are bytes, of NoHeadroom.
	Need, Free int64
}

// Error implements error.
func (e *TableError) Error() string {
	text := fmt.Sprintf("compacting %s: %s", e.Table, e.Failure)
	switch {
	case e.Failure == NoHeadroom:
		text += fmt.Sprintf(": a rewrite needs %d bytes and %d are free", e.Need, e.Free)
	case e.Failure == HeadroomUnknown:
		text += ": tell the worker of the database's disk (--compact-data-dir or --compact-disk-gib)"
	case e.Failure == NoRight:
		text += ": memd_maintain may not vacuum it (docs/manual/compaction.md says what to grant)"
	}
	if e.SQLState != "" {
		text += " (SQLSTATE " + e.SQLState + ")"
	}
	return text
}

// failureOf returns the failure in an error's chain, or nil: what is not a table's
// own breaks a compaction off, and it is taken up again.
func failureOf(err error) *TableError {
	var t *TableError
	if errors.As(err, &t) {
		return t
	}
	return nil
}
