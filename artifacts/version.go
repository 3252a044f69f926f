package artifacts

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// File describes what is saved, besides its bytes. All of it but the time is
// sealed.
type File struct {
	// MimeType is the media type, at most MaxMimeTypeBytes; "" when unknown.
	MimeType string
	// Metadata is the caller's own, at most memd.MaxMetadataEntries entries and
	// memd.MaxMetadataBytes in all.
	Metadata map[string]string
	// SourceTime is when the artifact came about; zero when not given. A user
	// who was once erased needs it.
	SourceTime time.Time
}

// Version describes one version of an artifact.
type Version struct {
	// Name is the artifact's, with its UserPrefix.
	Name string
	// Number counts the saves of the name, from 0. A deleted version's number is
	// not used again as long as the name has another version.
	Number int64
	// Size in bytes.
	Size int64
	File
	// CreatedAt is when the save was complete.
	CreatedAt time.Time
}

// info is what a version's description seals. Chunk is the size of every chunk
// but the last.
type info struct {
	Size     int64             `json:"size"`
	Chunks   int32             `json:"chunks"`
	Chunk    int               `json:"chunk"`
	MimeType string            `json:"mime_type,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func (i info) seal(k *shred.Keys, p place, artifact uuid.UUID, version int64, save uuid.UUID) ([]byte, error) {
	sealer, err := p.content(k)
	if err != nil {
		return nil, fmt.Errorf("deriving an artifact's key: %w", err)
	}
	plain, err := json.Marshal(i)
	if err != nil {
		return nil, fmt.Errorf("describing a version: %w", err)
	}
	return sealer.Seal(plain, shred.AADArtifactInfo(k.Tenant(), p.Contribution, artifact, version, save))
}

// stored is a complete version as the tables have it.
type stored struct {
	place
	save, artifact uuid.UUID
	version        int64
	sealed         []byte
	size           int64
	chunks         int32
	sourceTime     *time.Time
	createdAt      time.Time
}

const sqlVersionColumns = `
SELECT v.subject_no, v.session_no, v.month, v.version_id, v.artifact_id, v.version, v.sealed_info, v.size, v.chunks, v.source_time, v.created_at`

// columns are where sqlVersionColumns goes.
func (s *stored) columns() []any {
	return []any{&s.Subject, &s.Session, &s.month, &s.save, &s.artifact, &s.version, &s.sealed, &s.size, &s.chunks, &s.sourceTime, &s.createdAt}
}

func scanStored(row pgx.CollectableRow) (s stored, err error) {
	err = row.Scan(s.columns()...)
	return s, err
}

// open returns the description, and checks it against the columns in clear,
// which anybody with the tables could have changed.
func (s *stored) open(k *shred.Keys, name string) (Version, info, error) {
	var i info
	sealer, err := s.content(k)
	if err != nil {
		return Version{}, i, fmt.Errorf("deriving an artifact's key: %w", err)
	}
	plain, err := sealer.Open(s.sealed, shred.AADArtifactInfo(k.Tenant(), s.Contribution, s.artifact, s.version, s.save))
	if err != nil {
		return Version{}, i, fmt.Errorf("opening a version: %w", err)
	}
	if err := json.Unmarshal(plain, &i); err != nil {
		return Version{}, i, fmt.Errorf("reading a version's description: %w", memd.ErrCorrupt)
	}
	if i.Size != s.size || i.Chunks != s.chunks || i.Chunk < 1 || int64(i.Chunks) != chunksOf(i.Size, i.Chunk) {
		return Version{}, i, fmt.Errorf("a version's size is not what was sealed: %w", memd.ErrCorrupt)
	}
	v := Version{Name: name, Number: s.version, Size: i.Size, File: File{MimeType: i.MimeType, Metadata: i.Metadata}, CreatedAt: s.createdAt.UTC()}
	if s.sourceTime != nil {
		v.SourceTime = s.sourceTime.UTC()
	}
	return v, i, nil
}

// chunksOf is how many chunks an artifact has: one at least, so that an empty
// one has an end too.
func chunksOf(size int64, chunk int) int64 { return max(1, (size+int64(chunk)-1)/int64(chunk)) }
