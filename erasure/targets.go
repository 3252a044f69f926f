package erasure

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"forgettable.dev/memd"
)

// Class says when a store outside memd is called. Its numbers are stored with
// the targets: append only.
type Class int16

// The classes, in their order.
const (
	BeforeSessions Class = 1
	WithSessions   Class = 2
	AfterMemory    Class = 3
)

var targetClass = map[Step]Class{StepTargetsBefore: BeforeSessions, StepTargetsWith: WithSessions, StepTargetsAfter: AfterMemory}

// TargetRequest is what a store outside memd is told.
type TargetRequest struct {
	Tenant memd.TenantNo
	ID     uuid.UUID
	Kind   Kind
	App    string
	User   memd.Ref
	// UserID and SessionID are empty when the erasure is not about one, or when
	// this worker has no keys to open them with.
	UserID, SessionID string
}

// Ack is what a store outside memd answered. It names nobody.
type Ack struct {
	Target string    `json:"target"` // the name under which it is registered
	ID     uuid.UUID `json:"id,omitzero"`
	Erased int64     `json:"erased"`
	Left   int64     `json:"left"`
	Detail string    `json:"detail,omitempty"` // Fixed words.
}

// Targets are the stores outside memd. Erase calls all of a tenant's of a class,
// in their order, and returns nil when each has acknowledged; what has been
// acknowledged before may be asked again. Its error is safe to repeat.
type Targets interface {
	Erase(ctx context.Context, class Class, r TargetRequest) ([]Ack, error)
}

func (r *Runner) targets(ctx context.Context, j Job, s Step, n *notes) error {
	if r.Targets != nil {
		userID, sessionID, err := r.remembered(ctx, j)
		if err != nil {
			return err
		}
		n.Acks, err = r.Targets.Erase(ctx, targetClass[s], TargetRequest{
			Tenant: j.Tenant, ID: j.ID, Kind: j.Kind, App: j.App, User: j.User, UserID: userID, SessionID: sessionID,
		})
		if err != nil {
			return fmt.Errorf("%w: %w", errTarget, err)
		}
	}
	return r.done(ctx, j, s, *n)
}
