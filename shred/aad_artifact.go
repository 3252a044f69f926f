package shred

import (
	"encoding/binary"

	"github.com/google/uuid"

	"forgettable.dev/memd"
)

// Purposes of what artifacts seal. Like those of aad.go they are append-only,
// and no two share a name.
const (
	aadArtifactName  = "artifacts.name"
	aadArtifactInfo  = "artifact_versions.info"
	aadArtifactChunk = "artifact_chunks.sealed"
)

// AADArtifactName binds the sealed name of an artifact to its owner, a session
// or a subject's own scope.
func AADArtifactName(tenant memd.TenantNo, owner memd.Contribution, artifact uuid.UUID) []byte {
	return append(associatedData(aadArtifactName, int64(tenant), int64(owner.Subject), int64(owner.Session)), artifact[:]...)
}

// AADArtifactInfo binds the description of a version to its artifact, its
// number, and the save whose chunks it describes.
func AADArtifactInfo(tenant memd.TenantNo, owner memd.Contribution, artifact uuid.UUID, version int64, save uuid.UUID) []byte {
	b := associatedData(aadArtifactInfo, int64(tenant), int64(owner.Subject), int64(owner.Session), version)
	b = append(b, artifact[:]...)
	return append(b, save[:]...)
}

// AADArtifactChunk binds one chunk to the save that it is part of, its place in
// it, and whether it is the last.
func AADArtifactChunk(tenant memd.TenantNo, owner memd.Contribution, save uuid.UUID, chunk int32, last bool) []byte {
	b := associatedData(aadArtifactChunk, int64(tenant), int64(owner.Subject), int64(owner.Session))
	b = append(b, save[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(chunk))
	if last {
		return append(b, 1)
	}
	return append(b, 0)
}
