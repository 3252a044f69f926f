package tenants

import "strconv"

// State is where a tenant is in its life. Its numbers are stored: append only.
type State uint8

const (
	StateUnknown State = iota
	// StateCreating: announced, its keys are being made.
	StateCreating
	// StateActive is the only state that admits agents.
	StateActive
	// StateSuspended, StateExporting and StateDrained are the reversible phase
	// of a tenant's exit.
	StateSuspended
	StateExporting
	StateDrained
	// StatePurging and StatePurged are past the point of no return.
	StatePurging
	StatePurged
)

var stateNames = [...]string{"unknown", "creating", "active", "suspended", "exporting", "drained", "purging", "purged"}

// String returns the state's name in lower case.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "State(" + strconv.Itoa(int(s)) + ")"
}

// Erases reports whether single users can still be erased in this state: from
// the moment that the tenant has keys until its purge takes over.
func (s State) Erases() bool { return s >= StateActive && s < StatePurging }
