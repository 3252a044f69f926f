package shred

import (
	"encoding/binary"

	"github.com/google/uuid"

	"forgettable.dev/memd"
)

// Associated data: one function for each kind of sealed value, so that a value
// copied to another tenant, owner, row or column does not open. Each binds its
// purpose (which names table and column), the format version, and every number
// that says where the value belongs.

// aadFormat is the version of these encodings. What was sealed under another
// one does not open; a new one comes with a migration.
const aadFormat = 1

// Purposes, append-only. Two of them never share a name.
const (
	aadMemoryText     = "memories.text"
	aadMemoryVector   = "memories.vector"
	aadMemoryMetadata = "memories.metadata"
	aadMemoryCode     = "memories.code"
	aadUserID         = "subjects.user_id"
	aadSessionID      = "sessions.session_id"
	aadTree           = "key_trees.sealed"
	aadJob            = "erasures.sealed"
	aadEvent          = "session_events.sealed"
	aadSessionState   = "session_state.sealed"
	aadUserState      = "user_state.sealed"
	aadAppState       = "app_state.sealed"
)

// AADMemoryText binds the sealed text of a row. owner is the subject in whose
// scope the row is found.
func AADMemoryText(tenant memd.TenantNo, owner memd.Number, id uuid.UUID) []byte {
	return memoryAAD(aadMemoryText, tenant, owner, id)
}

// AADMemoryVector binds the sealed vector of a row.
func AADMemoryVector(tenant memd.TenantNo, owner memd.Number, id uuid.UUID) []byte {
	return memoryAAD(aadMemoryVector, tenant, owner, id)
}

// AADMemoryMetadata binds the sealed metadata of a row.
func AADMemoryMetadata(tenant memd.TenantNo, owner memd.Number, id uuid.UUID) []byte {
	return memoryAAD(aadMemoryMetadata, tenant, owner, id)
}

// AADMemoryCode binds the sealed code of a row's vector.
func AADMemoryCode(tenant memd.TenantNo, owner memd.Number, id uuid.UUID) []byte {
	return memoryAAD(aadMemoryCode, tenant, owner, id)
}

// AADUserID binds the sealed user id of a subject's directory entry.
func AADUserID(tenant memd.TenantNo, subject memd.Number) []byte {
	return associatedData(aadUserID, int64(tenant), int64(subject))
}

// AADSessionID binds the sealed id of a session.
func AADSessionID(tenant memd.TenantNo, subject, session memd.Number) []byte {
	return associatedData(aadSessionID, int64(tenant), int64(subject), int64(session))
}

// AADTree binds a wrapped data key, and the state sealed under it, to the
// tenant and the epoch.
func AADTree(tenant memd.TenantNo, epoch int64) []byte {
	return associatedData(aadTree, int64(tenant), epoch)
}

// AADJob binds what an erasure job remembers while it runs. field names the
// value among the job's.
func AADJob(tenant memd.TenantNo, job memd.Number, field string) []byte {
	return appendPart(associatedData(aadJob, int64(tenant), int64(job)), []byte(field))
}

// AADEvent binds a sealed event to its session, and to the digest of its id,
// which is its key within the session.
func AADEvent(tenant memd.TenantNo, subject, session memd.Number, event [16]byte) []byte {
	return append(associatedData(aadEvent, int64(tenant), int64(subject), int64(session)), event[:]...)
}

// AADSessionState binds a sealed entry of a session's state to the digest of
// its key.
func AADSessionState(tenant memd.TenantNo, subject, session memd.Number, key [16]byte) []byte {
	return append(associatedData(aadSessionState, int64(tenant), int64(subject), int64(session)), key[:]...)
}

// AADUserState binds a sealed entry of a user's state.
func AADUserState(tenant memd.TenantNo, subject memd.Number, key [16]byte) []byte {
	return append(associatedData(aadUserState, int64(tenant), int64(subject)), key[:]...)
}

// AADAppState binds a sealed entry of an app's state to the app's shared scope
// and to who wrote it last, 0 for nobody.
func AADAppState(tenant memd.TenantNo, app, contributor memd.Number, key [16]byte) []byte {
	return append(associatedData(aadAppState, int64(tenant), int64(app), int64(contributor)), key[:]...)
}

func memoryAAD(purpose string, tenant memd.TenantNo, owner memd.Number, id uuid.UUID) []byte {
	return append(associatedData(purpose, int64(tenant), int64(owner)), id[:]...)
}

// associatedData is injective: the purpose is length-prefixed and decides how
// many fields of fixed size follow.
func associatedData(purpose string, numbers ...int64) []byte {
	b := make([]byte, 0, 80)
	b = append(b, aadFormat)
	b = appendPart(b, []byte(purpose))
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return b
}

// appendPart appends a part behind its length, so that no two lists of parts
// run together into the same bytes.
func appendPart(b, part []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
	return append(b, part...)
}
