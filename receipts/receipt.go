package receipts

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Format names the version of a receipt's fields. Another set of fields, or
// another meaning of one, has another name.
const Format = "memd-receipt/v1"

// PurgeAfter is how long a provider may keep a destroyed key version in backups
// of its own: Google's figure for Cloud KMS.
const PurgeAfter = 45 * 24 * time.Hour

// Digest is a SHA-256 digest; in JSON, 64 lower-case hexadecimal digits.
type Digest [32]byte

// String returns the digest as it stands in JSON.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// IsZero reports whether the digest was never set.
func (d Digest) IsZero() bool { return d == Digest{} }

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Digest) UnmarshalText(text []byte) error { return unhex(d[:], text) }

// unhex fills dst from exactly as many digits. It never repeats the text.
func unhex(dst, text []byte) error {
	if hex.DecodedLen(len(text)) != len(dst) || len(text)%2 != 0 {
		return fmt.Errorf("must have %d hexadecimal digits", hex.EncodedLen(len(dst)))
	}
	if _, err := hex.Decode(dst, text); err != nil {
		return fmt.Errorf("must be hexadecimal")
	}
	return nil
}

// The fields of every struct below are in the order of their JSON names, which
// is what makes the encoding canonical; a test says so. Times are UTC to the
// microsecond; zero ones are left out. Numbers are from 0 to 2^53-1.

// Receipt is the record of one erasure at one of its two stages.
type Receipt struct {
	// Approvals: who released the deletion of a tenant; API keys, not people.
	Approvals []Approval `json:"approvals"`
	// Checks are the verifier's, sorted by name.
	Checks []Check `json:"checks"`
	// Commitment says whom the receipt is about to whoever has the salt; see
	// Commit. Required.
	Commitment Digest `json:"commitment"`
	// Compaction is how the bytes of what was deleted left the tables' files. Left
	// out when they did not, or not yet, which NotRun says; they are sealed under a
	// key that is gone.
	Compaction *Compaction `json:"compaction,omitempty"`
	// Expired says which month expired; of Month, and of no other kind.
	Expired *Expired `json:"expired,omitempty"`
	// Fallen is how many derived rows of others fell because the words were in
	// them too.
	Fallen int64 `json:"fallen"`
	// Format is the constant of that name; New sets it.
	Format string `json:"format"`
	// Holds that were in force between acceptance and now, without reasons.
	Holds []Hold `json:"holds"`
	// Key is the destroyed version. Left out when none was, which NotRun says.
	Key  *Key `json:"key,omitempty"`
	Kind Kind `json:"kind"`
	// NotRun is everything that was not done or not checked. New adds the checks
	// and purges whose result is not_run.
	NotRun []NotRun `json:"not_run"`
	// Prior is the leaf hash of the provisional receipt's entry; final receipts
	// only. The Issuer sets it.
	Prior  *Digest `json:"prior,omitempty"`
	Purges []Purge `json:"purges"`
	// RequestID is the erasure's.
	RequestID uuid.UUID `json:"request_id"`
	// Residuals are what is left by design, and where.
	Residuals []Residual `json:"residuals"`
	Stage     Stage      `json:"stage"`
	Stores    []Store    `json:"stores"`
	Sweep     Sweep      `json:"sweep"`
	// Tenant is the tenant's name. A tenant is no person.
	Tenant string `json:"tenant"`
	Times  Times  `json:"times"`
	// Tree is left out when no rotation ended, which NotRun says.
	Tree *Trees `json:"tree,omitempty"`
}

// Approval is one principal's consent.
type Approval struct {
	At        time.Time `json:"at"`
	Principal uuid.UUID `json:"principal"`
}

// Expired is a month of a tenant, of one class.
type Expired struct {
	Class RetentionClass `json:"class"`
	// Month is the year and the month, as in 2025-09.
	Month string `json:"month"`
}

// Check is one check of the verifier.
type Check struct {
	// ControlBefore is how often the check hit before the erasure. A pass with 0
	// would prove nothing and is refused.
	ControlBefore int64 `json:"control_before"`
	// Count is what the check found after it.
	Count int64 `json:"count"`
	// DurationMicros is how long the check took.
	DurationMicros int64     `json:"duration_us"`
	Name           CheckName `json:"name"`
	// Reason is required for fail, not_run and review, and empty for pass.
	Reason Reason `json:"reason,omitempty"`
	Result Result `json:"result"`
	// Scanned and Unscanned count the rows that a search looked at, and those
	// that it did not.
	Scanned   int64 `json:"scanned"`
	Unscanned int64 `json:"unscanned"`
}

// Compaction is that of the tables, which all tenants share.
type Compaction struct {
	// BlockedMicros is the longest time for which a table was locked.
	BlockedMicros int64     `json:"blocked_us"`
	BytesAfter    int64     `json:"bytes_after"`
	BytesBefore   int64     `json:"bytes_before"`
	Finished      time.Time `json:"finished"`
	// Mode says whether the files were cleaned or made anew.
	Mode CompactionMode `json:"mode"`
	// ResidueAfter and ResidueBefore are how many sealed values of deleted rows were
	// in raw pages; left out when nobody looked.
	ResidueAfter  *int64    `json:"residue_after,omitempty"`
	ResidueBefore *int64    `json:"residue_before,omitempty"`
	Started       time.Time `json:"started"`
	// Tables is how many were compacted.
	Tables int64 `json:"tables"`
}

// Hold is one legal hold. Why, and who, is in the erasure's own record.
type Hold struct {
	ID         uuid.UUID `json:"id"`
	PlacedAt   time.Time `json:"placed_at"`
	ReleasedAt time.Time `json:"released_at,omitzero"`
}

// Key is a KMS key version and its end.
type Key struct {
	// DestroyedAt is when its material is, or was, destroyed for good.
	DestroyedAt time.Time `json:"destroyed_at"`
	// PurgedAt is PurgeAfter later; New sets it.
	PurgedAt time.Time `json:"purged_at"`
	State    KeyState  `json:"state"`
	// UnreadableAt is since when nothing can be decrypted with it.
	UnreadableAt time.Time `json:"unreadable_at"`
	// Version is the full resource name.
	Version string `json:"version"`
}

// NotRun is one thing that was not done, and why. What is a CheckName or an
// Omission.
type NotRun struct {
	Reason Reason `json:"reason"`
	What   string `json:"what"`
}

// Purge is what one store outside memd answered. Counts are nil when it gave no
// number.
type Purge struct {
	AcknowledgedAt time.Time `json:"acknowledged_at,omitzero"`
	After          *int64    `json:"after,omitempty"`
	// Attempts is how often it was called.
	Attempts int64  `json:"attempts"`
	Before   *int64 `json:"before,omitempty"`
	Class    Class  `json:"class"`
	// Code is how the last call ended; empty when there was none. With
	// "uncounted" and "residual" an acknowledgement is the target's word alone.
	Code   PurgeCode `json:"code,omitempty"`
	Erased *int64    `json:"erased,omitempty"`
	// Reason is why it was not called; empty when it was.
	Reason Reason `json:"reason,omitempty"`
	// Required: without it the erasure is not complete.
	Required bool `json:"required"`
	// ResidualUntil is when what it holds is gone by its own retention.
	ResidualUntil time.Time   `json:"residual_until,omitzero"`
	Result        PurgeResult `json:"result"`
	// Target is the target's id; its name is the tenant's own text.
	Target uuid.UUID `json:"target"`
}

// Residual is something that an erasure does not reach.
type Residual struct {
	Count int64        `json:"count"`
	Kind  ResidualKind `json:"kind"`
	// Provider is who keeps it.
	Provider Provider `json:"provider"`
	// RetentionDays is what the provider declares; -1 when it declares nothing.
	RetentionDays int64 `json:"retention_days"`
	// Until is when it ends by itself, if that is known.
	Until time.Time `json:"until,omitzero"`
}

// Store is one store's count before and after.
type Store struct {
	After  int64     `json:"after"`
	Before int64     `json:"before"`
	Name   StoreName `json:"name"`
}

// Sweep is the second one, after the tenant's longest ingestion delay.
type Sweep struct {
	PlannedAt time.Time `json:"planned_at,omitzero"`
	// RowsFound is what it found and erased.
	RowsFound int64      `json:"rows_found"`
	State     SweepState `json:"state"`
}

// Times are those of the erasure's stages. Accepted, Erased and, in a final
// receipt, Swept are required. The Issuer sets Issued.
type Times struct {
	Accepted time.Time `json:"accepted"`
	Erased   time.Time `json:"erased"`
	Fenced   time.Time `json:"fenced,omitzero"`
	Issued   time.Time `json:"issued"`
	Swept    time.Time `json:"swept,omitzero"`
}

// Trees are the tenant's key trees before and after the puncture.
type Trees struct {
	After  Tree `json:"after"`
	Before Tree `json:"before"`
}

// Tree is one state of a tenant's key tree.
type Tree struct {
	Digest Digest `json:"digest"`
	Epoch  int64  `json:"epoch"`
}

// Complete reports whether everything was done and seen gone: nothing in any
// store, no check failed, every required purge target acknowledged, the key gone,
// the sweep done.
// What was not run or is for review is not against it; both are listed.
func (r Receipt) Complete() bool {
	for _, s := range r.Stores {
		if s.After > 0 {
			return false
		}
	}
	for _, c := range r.Checks {
		if c.Result == Fail {
			return false
		}
	}
	for _, p := range r.Purges {
		if p.Required && p.Result != Acknowledged {
			return false
		}
	}
	return r.Stage == Final && r.Key != nil && r.Tree != nil
}
