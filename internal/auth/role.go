package auth

import (
	"fmt"
	"math/bits"
	"strings"

	"forgettable.dev/memd"
)

// Roles is a set of roles. Its bits are stored: append only.
type Roles uint16

const (
	// Agent reads and writes memories.
	Agent Roles = 1 << iota
	// Eraser forgets users and sessions.
	Eraser
	// Auditor reads what administration there is.
	Auditor
	// Operator administers tenants and keys.
	Operator
	// Approver approves what cannot be undone.
	Approver

	allRoles = Agent | Eraser | Auditor | Operator | Approver
)

var roleNames = [...]string{"agent", "eraser", "auditor", "operator", "approver"}

// Any reports whether the two sets share a role.
func (r Roles) Any(s Roles) bool { return r&s != 0 }

// Split returns the roles one by one, in the order of the constants.
func (r Roles) Split() []Roles {
	var one []Roles
	for ; r != 0; r &= r - 1 {
		one = append(one, 1<<bits.TrailingZeros16(uint16(r)))
	}
	return one
}

// String returns the names, joined by commas.
func (r Roles) String() string {
	var names []string
	for _, one := range r.Split() {
		if i := bits.TrailingZeros16(uint16(one)); i < len(roleNames) {
			names = append(names, roleNames[i])
		} else {
			names = append(names, fmt.Sprintf("Roles(%#x)", uint16(one)))
		}
	}
	return strings.Join(names, ",")
}

// ParseRoles reads names joined by commas, the inverse of String. Spaces around
// a name are allowed; no name at all is refused.
func ParseRoles(s string) (Roles, error) {
	var r Roles
next:
	for name := range strings.SplitSeq(s, ",") {
		for i, known := range roleNames {
			if strings.TrimSpace(name) == known {
				r |= 1 << i
				continue next
			}
		}
		return 0, &memd.InvalidError{Field: "roles", Problem: "must be some of " + strings.Join(roleNames[:], ", ")}
	}
	return r, nil
}
