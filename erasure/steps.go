package erasure

import (
	"slices"
)

// Step is one step of an erasure.
type Step int16

// Steps, as stored; append only. The order in which they run is that of plan.
const (
	StepUnknown       Step = 0
	StepFence         Step = 1
	StepBury          Step = 2
	StepDelete        Step = 3
	StepVerify        Step = 4
	StepPuncture      Step = 5
	StepRotate        Step = 6
	StepLift          Step = 7
	StepFinish        Step = 8
	StepDraw          Step = 9
	StepTargetsBefore Step = 10
	StepArtifacts     Step = 11
	StepTargetsWith   Step = 12
	StepContent       Step = 13
	StepTargetsAfter  Step = 14
	StepCheck         Step = 15
	StepSweep         Step = 16
	StepRecheck       Step = 17
	StepFinal         Step = 18
	StepPurge         Step = 19
	StepUsers         Step = 20
	StepRest          Step = 21
	StepDestroy       Step = 22
	StepClose         Step = 23
	StepExports       Step = 24
	StepCompact       Step = 25
	StepCompacted     Step = 26
)

var stepNames = [...]string{
	"unknown", "fence", "bury", "delete", "verify", "puncture", "rotate", "lift", "finish",
	"draw", "targets_before", "artifacts", "targets_with", "content", "targets_after", "check",
	"sweep", "recheck", "final", "purge", "users", "rest", "destroy", "close",
	"exports", "compact", "compacted",
}

// String returns the step's name.
func (s Step) String() string {
	if s < 0 || int(s) >= len(stepNames) {
		return stepNames[0]
	}
	return stepNames[s]
}

// plan is what an erasure of a kind does, in this order: until it is done, and
// after the tenant's ingestion delay.
type plan struct {
	done, final []Step
}

var plans = map[Kind]plan{
	KindUser: {
		done: []Step{
			StepDraw, StepFence, StepBury, StepExports, StepTargetsBefore, StepArtifacts, StepTargetsWith, StepContent, StepDelete,
			StepVerify, StepPuncture, StepRotate, StepTargetsAfter, StepCompact, StepCheck, StepLift,
		},
		final: []Step{StepSweep, StepCompacted, StepRecheck, StepFinal},
	},
	KindSession: {
		done: []Step{
			StepDraw, StepBury, StepExports, StepTargetsBefore, StepArtifacts, StepTargetsWith, StepContent, StepDelete,
			StepVerify, StepPuncture, StepRotate, StepTargetsAfter, StepCompact, StepCheck, StepFinish,
		},
		final: []Step{StepSweep, StepCompacted, StepRecheck, StepFinal},
	},
	// The rotation follows on the tenant's schedule, and with it what can be checked
	// of keys.
	KindContent: {
		done: []Step{
			StepDraw, StepBury, StepExports, StepTargetsBefore, StepArtifacts, StepTargetsWith, StepContent, StepVerify, StepPuncture,
			StepTargetsAfter, StepCompact, StepCheck, StepFinish,
		},
		final: []Step{StepSweep, StepRotate, StepCompacted, StepRecheck, StepFinal},
	},
	// The key goes first, because it is what reaches the backups; rows and partition
	// are housekeeping. Nobody's words of the month can be told from anybody else's,
	// so nobody is fenced, and no store outside memd is called.
	KindMonth: {
		done: []Step{
			StepDraw, StepBury, StepExports, StepPuncture, StepRotate, StepArtifacts, StepContent, StepDelete, StepVerify, StepCompact, StepCheck, StepFinish,
		},
		final: []Step{StepSweep, StepCompacted, StepRecheck, StepFinal},
	},
	// Stores outside memd are all called before the last key goes: what memd shows
	// them is sealed under it.
	KindTenant: {
		done: []Step{
			StepDraw, StepPurge, StepExports, StepTargetsBefore, StepTargetsWith, StepUsers, StepRest, StepVerify, StepTargetsAfter,
			StepDestroy, StepCompact, StepCheck, StepClose,
		},
		final: []Step{StepSweep, StepCompacted, StepRecheck, StepFinal},
	},
}

// first is the step whose notes hold the counts before.
func (k Kind) first() Step {
	switch k {
	case KindUser:
		return StepFence
	case KindTenant:
		return StepPurge
	default:
		return StepBury
	}
}

// Steps returns the steps of a kind in their order.
func (k Kind) Steps() []Step { return slices.Concat(plans[k].done, plans[k].final) }

// late reports whether the step belongs to what follows when all is done.
func (k Kind) late(s Step) bool { return slices.Contains(plans[k].final, s) }
