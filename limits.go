package memd

import "time"

// Limits of one request. Each is checked before anything is written, and the
// error names the field and the limit.
const (
	// MaxBatch is the number of rows of one Add.
	MaxBatch = 256
	// MaxSubjects is the number of distinct subjects that one write may touch.
	MaxSubjects = 64
	// MaxContributions is the size of a row's closure of contributions.
	MaxContributions = 1024
	// MaxSources is the number of direct sources that a derived row may name.
	MaxSources = 256
	// MaxTopK is the number of hits of one Search.
	MaxTopK = 1000
	// MaxPageSize is the number of rows of one page of a List.
	MaxPageSize = 1000
	// MaxDimension is the number of components of a vector.
	MaxDimension = 4096
	// MaxTextBytes is the size of one row's text.
	MaxTextBytes = 256 << 10
	// MaxMetadataEntries and MaxMetadataBytes bound one row's metadata.
	MaxMetadataEntries = 64
	MaxMetadataBytes   = 16 << 10
	// MaxEventBytes is the size of one event of a session, ids and state changes
	// included.
	MaxEventBytes = 1 << 20
	// MaxEvents is the number of events of one append, and MaxReadEvents that of
	// one read of a session.
	MaxEvents     = 256
	MaxReadEvents = 10_000
	// MaxReadBytes is the size of all that one read of a session returns, events
	// and state.
	MaxReadBytes = 64 << 20
	// MaxStateChanges is the number of state entries that one write may change,
	// and MaxStateBytes the size of them all.
	MaxStateChanges = 1024
	MaxStateBytes   = 4 << 20
	// MaxStateKeys and MaxStateOfOwner bound the state of one owner, a session, a
	// user or an app, in entries and in bytes of all of them sealed: three owners
	// and what is read of events fit into MaxReadBytes. Writes under way at the
	// same time may go beyond them by what they write.
	MaxStateKeys    = 10_000
	MaxStateOfOwner = 16 << 20
	// MaxIDBytes is the length of a user, session, event or app id.
	MaxIDBytes = 512
	// MaxBatchBytes is the size of one request message.
	MaxBatchBytes = 16 << 20
	// MaxClockSkew is how far a source time may lie in the future.
	MaxClockSkew = 5 * time.Minute
)
