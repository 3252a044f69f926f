package canary

import "forgettable.dev/memd"

// exam is an examination, with what this package knows to ask of it.
type exam memd.Examination

// maxRows bounds the rows that a check names. CountAfter counts all.
const maxRows = 100

// Names of checks.
const (
	CheckUnique     = "unique_probes"
	CheckShared     = "shared_probes"
	CheckVectors    = "vector_probes"
	CheckFence      = "fence"
	CheckOldEpochs  = "old_epochs"
	CheckVersions   = "key_versions"
	CheckDerivation = "derivation_refused"
	CheckLedger     = "ledger_state"
	CheckNeighbour  = "neighbour_derives"
	CheckInstances  = "instances"
	CheckLogs       = "logs"
	CheckResidue    = "residue"
)

// Reasons.
const (
	reasonNothing     = "nothing_before"
	reasonNoControl   = "no_control"
	reasonNoUnique    = "no_unique_probe"
	reasonNoProbes    = "no_probes"
	reasonNoVectors   = "no_vectors"
	reasonNoNeighbour = "no_neighbour"
	reasonNotMeant    = "not_applicable"
	reasonNotSet      = "not_configured"
	reasonNoRight     = "no_permission"
	reasonUnavailable = "unavailable"
	reasonKMS         = "kms_unavailable"
	reasonLedger      = "ledger_unavailable"
	reasonBudget      = "budget_exhausted"
	reasonRows        = "rows_left"
	reasonElsewhere   = "hits_elsewhere"
	reasonSharedHits  = "shared_hits"
	reasonResidue     = "residue_left"
	reasonUsable      = "key_usable"
	reasonDerives     = "derives"
	reasonHarmed      = "neighbour_harmed"
	reasonNotDropped  = "not_dropped"
	reasonLogHit      = "log_hit"
	reasonNotFenced   = "not_fenced"
	reasonPolicy      = "policy"
	reasonIncomplete  = "partial"
)

// judge is the verdict on a look that must find nothing: what is left fails,
// and what was never there proves nothing.
func judge(name string, before, after int64, left string) memd.Check {
	c := memd.Check{Name: name, ControlBefore: before, CountAfter: after, Result: memd.ResultPass}
	switch {
	case after > 0:
		c.Result, c.Reason = memd.ResultFail, left
	case before == 0:
		c.Result, c.Reason = memd.ResultNotRun, reasonNothing
	}
	return c
}

func notRun(name, reason string, before int64) memd.Check {
	return memd.Check{Name: name, Result: memd.ResultNotRun, Reason: reason, ControlBefore: before}
}
