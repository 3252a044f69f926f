package export

import (
	"fmt"
	"time"
)

// Format names what an archive is like: its files, and their fields.
const Format = "memd-export/1"

// Names of the files of an archive, as a tar has them. The manifest is the last.
const manifestName = "manifest.age"

func partName(n int) string { return fmt.Sprintf("part-%06d.age", n) }

// Counts are how many things there are in a part, or in all of them.
type Counts struct {
	Subjects      int64 `json:"subjects"`
	Sessions      int64 `json:"sessions"`
	Events        int64 `json:"events"`
	State         int64 `json:"state"`
	Artifacts     int64 `json:"artifacts"`
	ArtifactBytes int64 `json:"artifact_bytes"`
	Memories      int64 `json:"memories"`
	// Unreadable is what is kept but does not verify, and so is not in the archive,
	// artifacts with damaged bytes included, which are.
	Unreadable int64 `json:"unreadable"`
}

func (c *Counts) add(d Counts) {
	c.Subjects += d.Subjects
	c.Sessions += d.Sessions
	c.Events += d.Events
	c.State += d.State
	c.Artifacts += d.Artifacts
	c.ArtifactBytes += d.ArtifactBytes
	c.Memories += d.Memories
	c.Unreadable += d.Unreadable
}

// Part describes a file of an archive.
type Part struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	Counts
}

// Manifest describes an archive.
type Manifest struct {
	Format   string    `json:"format"`
	Tenant   string    `json:"tenant"`
	ExportID string    `json:"export_id"`
	Kind     string    `json:"kind"`
	MadeAt   time.Time `json:"made_at"`
	// SessionsAfter and MemoriesAfter are the months (YYYY-MM) up to which retention
	// leaves nothing to export; empty when it has no say.
	SessionsAfter string `json:"sessions_after,omitempty"`
	MemoriesAfter string `json:"memories_after,omitempty"`
	Parts         []Part `json:"parts"`
	Totals        Counts `json:"totals"`
}
