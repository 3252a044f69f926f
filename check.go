package memd

import (
	"fmt"
	"time"
)

// Examination says what a verifier looks for: what an erasure must have left
// nothing of.
type Examination struct {
	Tenant TenantNo
	// Job is the erasure's number, which names its leaf in the key tree and its
	// row in the journal.
	Job Number
	// Target is what goes. Session 0 stands for all of a subject: its sessions,
	// its own scope, and whatever it contributed to other scopes. Empty for
	// somebody who was never seen, and for a whole tenant.
	Target []Contribution
	// Content: of the target's sessions their content alone goes, events, state
	// and artifacts; what memory drew from them stays.
	Content bool
	// Whole: everything of the tenant goes.
	Whole bool
	// Month, if it is not zero: everything of that month and Class goes, whosever it
	// is. There is no Target then.
	Class Class
	Month Month
	// KeysLater: the punctures were asked for and the rotation that does them is
	// still to come, on the tenant's schedule. Checks of keys are then not run.
	KeysLater bool
	// Final: the second sweep has been done, and the fence may be down.
	Final bool
	// Budget is what a search may take, where it says so, instead of what the
	// verifier would spend.
	Budget SearchBudget
}

// SearchBudget bounds a search of a tenant's store. Fields that are zero say
// nothing.
type SearchBudget struct {
	// Whole: all of it, whatever Rows and Bytes say.
	Whole bool          `json:"whole,omitempty"`
	Rows  int64         `json:"rows,omitempty"`
	Bytes int64         `json:"bytes,omitempty"` // of what is sealed
	Time  time.Duration `json:"time,omitempty"`  // in nanoseconds
}

// Takes is how long a search may take by what the budget says; 0 if nothing.
func (b SearchBudget) Takes() time.Duration {
	if b.Whole && b.Time == 0 {
		return MaxSearchTime
	}
	return b.Time
}

// MaxSearchTime is the most that a search may be given, and what one of a whole
// store has that says nothing of time.
const MaxSearchTime = time.Hour

// Probes is what a verifier remembers between its two looks.
type Probes struct {
	// Sealed holds what was drawn from the data, under the job's leaf; it cannot
	// be read when that is punctured. Nil before the first look.
	Sealed []byte
	// Before counts, by the name of the check, what was there before. Numbers
	// only, in clear: the control of checks that are repeated later.
	Before map[string]int64
}

// Result is how a check went.
type Result uint8

// Results, as stored; append only.
const (
	ResultUnknown Result = 0
	// ResultPass: it hit before, and misses now.
	ResultPass Result = 1
	// ResultFail: something is left, or harmed.
	ResultFail Result = 2
	// ResultNotRun: nothing can be concluded, for the reason given.
	ResultNotRun Result = 3
	// ResultReview: hits that may be somebody else's own words, listed for a
	// person to look at. They are never deleted.
	ResultReview Result = 4
)

var resultNames = [...]string{"unknown", "pass", "fail", "not_run", "review"}

// String returns the result's name.
func (r Result) String() string {
	if int(r) >= len(resultNames) {
		return fmt.Sprintf("Result(%d)", uint8(r))
	}
	return resultNames[r]
}

// MarshalText implements encoding.TextMarshaler.
func (r Result) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It returns ErrCorrupt for
// a name that is none.
func (r *Result) UnmarshalText(text []byte) error {
	for i, name := range resultNames {
		if i > 0 && name == string(text) {
			*r = Result(i)
			return nil
		}
	}
	return fmt.Errorf("reading the result of a check: %w", ErrCorrupt)
}

// Check is one thing that a verifier looked at. Nothing in it is personal: names
// and reasons are words of fixed lists, rows are ids and numbers.
type Check struct {
	Name   string `json:"name"`
	Result Result `json:"result"`
	// Reason says why the result is not a pass; empty for a pass.
	Reason string `json:"reason,omitempty"`
	// ControlBefore is how often the same look hit before the erasure. A pass
	// has at least 1: a look that never hit proves nothing.
	ControlBefore int64 `json:"control_before"`
	// CountAfter is how often it hits now.
	CountAfter int64 `json:"count_after"`
	// Scanned and Unscanned count the rows that a search looked at, and those it
	// did not because its budget was used up or they did not open.
	Scanned   int64         `json:"scanned,omitempty"`
	Unscanned int64         `json:"unscanned,omitempty"`
	Duration  time.Duration `json:"duration"`
	// Rows names what was found, the first hundred.
	Rows []RowRef `json:"rows,omitempty"`
}

// RowRef names a row by its table and its id there, which is a UUID or numbers
// joined by slashes; or a file by its place in the configuration.
type RowRef struct {
	Table string `json:"table"`
	ID    string `json:"id"`
}
