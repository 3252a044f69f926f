package receipts

import "slices"

// Every word that a receipt can hold. The sets are closed, because an open
// pattern would let a user's id through where somebody mistook it for a name;
// they are append-only, because old receipts must still parse. A new check or
// store adds its word here.

// Kind is what was erased.
type Kind string

// The kinds.
const (
	User           Kind = "user"
	Session        Kind = "session"
	SessionContent Kind = "session_content"
	Tenant         Kind = "tenant"
	// Month is everybody's, of one month and class, that had been kept long enough.
	Month Kind = "month"
)

var kinds = []Kind{User, Session, SessionContent, Tenant, Month}

// RetentionClass is what of a month expired.
type RetentionClass string

var retentionClasses = []RetentionClass{"session", "memory"}

// Stage says which of an erasure's two receipts this is.
type Stage string

// The stages.
const (
	// Provisional: erased and verified once; the second sweep is to come.
	Provisional Stage = "provisional"
	// Final: swept and verified again.
	Final Stage = "final"
)

var stages = []Stage{Provisional, Final}

// Result is how a check went.
type Result string

// The results.
const (
	Pass        Result = "pass"
	Fail        Result = "fail"
	CheckNotRun Result = "not_run"
	// Review: hits that may be somebody else's own words; listed in the report.
	Review Result = "review"
)

var results = []Result{Pass, Fail, CheckNotRun, Review}

// PurgeResult is how a purge target answered.
type PurgeResult string

// The results of a purge.
const (
	Acknowledged PurgeResult = "acknowledged"
	PurgeFailed  PurgeResult = "failed"
	PurgeNotRun  PurgeResult = "not_run"
)

var purgeResults = []PurgeResult{Acknowledged, PurgeFailed, PurgeNotRun}

// PurgeCode is how a call of a target ended.
type PurgeCode string

// acknowledging are the codes of targets that did what they were asked.
var acknowledging = []PurgeCode{"ok", "uncounted", "residual"}

var purgeCodes = append([]PurgeCode{
	"pending", "remaining", "timeout", "unreachable", "busy", "failed", "log_busy", "log_missing", "log_failed", "canceled", "key",
	"unauthorised", "unimplemented", "refused", "malformed", "too_large", "redirected", "address_refused", "tls", "secret",
	"path_refused", "log_format", "retention_exceeded",
}, acknowledging...)

// Class is when a purge target is called.
type Class string

// The classes.
const (
	BeforeSessions Class = "before_sessions"
	WithSessions   Class = "with_sessions"
	AfterMemory    Class = "after_memory"
)

var classes = []Class{BeforeSessions, WithSessions, AfterMemory}

// SweepState is how far the second sweep is.
type SweepState string

// The states of the sweep.
const (
	SweepPlanned SweepState = "planned"
	SweepDone    SweepState = "done"
)

var sweepStates = []SweepState{SweepPlanned, SweepDone}

// KeyState is a KMS version's state, as Cloud KMS spells it. A receipt names
// versions that are on their way out only.
type KeyState string

// The states.
const (
	DestroyScheduled KeyState = "DESTROY_SCHEDULED"
	Destroyed        KeyState = "DESTROYED"
)

var keyStates = []KeyState{DestroyScheduled, Destroyed}

// CompactionMode is how tables were compacted.
type CompactionMode string

// The modes.
const (
	// Vacuumed: the space of deleted rows was freed, and is written over in time.
	Vacuumed CompactionMode = "vacuum"
	// Rewritten: files with sealed values were made anew, without them.
	Rewritten CompactionMode = "rewrite"
)

var compactionModes = []CompactionMode{Vacuumed, Rewritten}

// ResidualKind is a kind of thing that stays.
type ResidualKind string

// The kinds of residuals.
const (
	// ResidualEmbedder: texts that were sent to an embedder.
	ResidualEmbedder ResidualKind = "embedder"
	// ResidualModel: texts that a tenant's agents sent to a model.
	ResidualModel ResidualKind = "model_provider"
	// ResidualExport: archives that were downloaded before.
	ResidualExport ResidualKind = "export_link"
	// ResidualPages: sealed bytes in raw pages, whose key is gone.
	ResidualPages ResidualKind = "sealed_pages"
	// ResidualBackups: sealed bytes in backups, whose key is gone.
	ResidualBackups ResidualKind = "sealed_backups"
	// ResidualWAL: sealed bytes in the write-ahead log, whose key is gone, until the
	// server has written it over and whatever archives it has let it go.
	ResidualWAL ResidualKind = "sealed_wal"
	// ResidualIndexKey: whoever has an old backup and the tenant's index key can
	// test whether somebody was a user.
	ResidualIndexKey ResidualKind = "index_key"
	// ResidualLogs: logs with a declared retention.
	ResidualLogs ResidualKind = "logs"
)

var residualKinds = []ResidualKind{
	ResidualEmbedder, ResidualModel, ResidualExport, ResidualPages, ResidualBackups, ResidualIndexKey, ResidualLogs, ResidualWAL,
}

// Provider is who keeps a residual. A provider that is not memd's own is named
// in the tenant's records, not here.
type Provider string

// The providers.
const (
	ProviderNone    Provider = "none"
	ProviderLexical Provider = "lexical"
	ProviderOpenAI  Provider = "openai"
	ProviderMemd    Provider = "memd"
	ProviderOther   Provider = "other"
)

var providers = []Provider{ProviderNone, ProviderLexical, ProviderOpenAI, ProviderMemd, ProviderOther}

// StoreName names a store whose rows are counted.
type StoreName string

var storeNames = []StoreName{
	"memories", "raw_memories", "fact_memories", "summary_memories", "derived_memories", "embeddings",
	"memory_contributions", "memory_sources", "contributions", "sources", "sketches",
	"sessions", "events", "session_events", "session_state", "user_state", "app_state", "state",
	"artifacts", "artifact_versions", "artifact_chunks", "user_artifacts", "session_artifacts",
	"subjects", "users", "hidden_rows", "exports", "purge_targets",
}

// CheckName names a check of the verifier.
type CheckName string

var checkNames = []CheckName{
	// Rows, asked of the tables.
	"rows", "rows_by_owner", "rows_by_contribution", "rows_by_reference", "memories", "memory_contributions", "memory_sources",
	"contributions", "derived_rows", "sessions", "events", "session_events", "session_state", "user_state", "app_state", "state",
	"artifacts", "artifact_versions", "artifact_chunks", "user_artifacts", "session_artifacts", "subjects", "sketches", "tables",
	// The API.
	"api", "api_search", "api_list", "api_get", "api_sessions", "api_events", "api_state", "api_artifacts", "fence", "late_write", "late_writer",
	// Canaries.
	"canaries", "canary_search", "unique_probes", "shared_probes", "unique_text", "shared_text", "vectors", "vector_probes", "text_probes", "orphan_copies",
	// Residue in raw pages.
	"residue", "residue_heap", "residue_toast", "residue_index", "residue_indexes", "residue_sketches", "raw_pages", "wal",
	// Keys.
	"keys", "old_epochs", "old_epoch_unwrap", "key_versions", "key_version_state", "derivation", "derivation_refused",
	"neighbour_derives", "neighbour", "database_state", "ledger_state", "instances", "instances_dropped", "caches",
	// Around it.
	"logs", "logs_clean", "metrics", "traces", "purge_targets", "purge_verify", "second_sweep", "neighbours_unharmed", "other_users",
}

// Omission is something besides a check that was not done.
type Omission string

// The omissions.
const (
	// OmittedRotation: no key was destroyed. Required where a receipt has no Key
	// or no Tree.
	OmittedRotation Omission = "key_rotation"
	// OmittedCompaction: tables were not compacted.
	OmittedCompaction Omission = "compaction"
	OmittedPurge      Omission = "purge_target"
	OmittedSweep      Omission = "sweep"
	OmittedVerifier   Omission = "verifier"
	OmittedExports    Omission = "exports"
	OmittedBudget     Omission = "search_budget"
)

var omissions = []Omission{
	OmittedRotation, OmittedCompaction, OmittedPurge, OmittedSweep, OmittedVerifier, OmittedExports, OmittedBudget,
}

// Reason says why a result is not a plain success.
type Reason string

var reasons = []Reason{
	// Nothing to check or to do.
	"nothing_before", "no_control", "no_unique_probe", "no_probes", "no_vectors", "no_sessions", "no_artifacts", "no_neighbour", "no_logs",
	"not_applicable", "not_configured", "not_requested", "not_registered", "unknown_subject", "never_seen",
	// Could not.
	"no_permission", "no_superuser", "no_pageinspect", "no_extension", "unavailable", "database_unavailable", "kms_unavailable",
	"ledger_unavailable", "target_unavailable", "instance_unavailable", "timeout", "budget_exhausted", "partial", "cancelled",
	"unsupported", "policy", "on_hold", "disabled", "internal",
	// Found.
	"found", "rows_left", "hits_left", "hits_elsewhere", "shared_hits", "residue_left", "key_usable", "derives", "neighbour_harmed",
	"not_dropped", "log_hit", "control_missed", "late_rows", "not_fenced",
	// Of a compaction: it follows, or why it did not.
	"pending", "notice", "locked", "held_back", "no_headroom", "headroom_unknown", "disk_full", "not_rewritten", "refused",
}

// KnownStore reports whether a receipt may hold the word, for tests of who fills one.
func KnownStore(name string) bool { return slices.Contains(storeNames, StoreName(name)) }

// KnownCheck is KnownStore for names of checks.
func KnownCheck(name string) bool { return slices.Contains(checkNames, CheckName(name)) }

// KnownPurgeCode is KnownStore for codes of purge targets.
func KnownPurgeCode(code string) bool { return slices.Contains(purgeCodes, PurgeCode(code)) }

// KnownReason is KnownStore for reasons.
func KnownReason(code string) bool { return slices.Contains(reasons, Reason(code)) }
