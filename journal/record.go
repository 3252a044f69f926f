package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"forgettable.dev/memd"
)

// Kind says what a fact is about. Stored; append only.
type Kind int16

// The kinds of facts.
const (
	KindUnknown    Kind = 0
	KindTombstone  Kind = 1
	KindFence      Kind = 2
	KindErasure    Kind = 3
	KindHold       Kind = 4
	KindTenant     Kind = 5
	KindRevoked    Kind = 6
	KindPuncture   Kind = 7
	KindTree       Kind = 8
	KindTransition Kind = 9
	KindApproval   Kind = 10
	KindUndo       Kind = 11
	KindTarget     Kind = 12
)

var kindNames = [...]string{"unknown", "tombstone", "fence", "erasure", "hold", "tenant", "revoked API key", "puncture", "key tree", "transition", "approval", "undo", "purge target"}

// String returns the kind's name.
func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return kindNames[0]
	}
	return kindNames[k]
}

// Fact is a row that must outlive a rollback: its columns, as they were.
type Fact struct {
	// ID is the fact's number in the outbox that it came from.
	ID   int64           `json:"id"`
	Kind Kind            `json:"kind"`
	Row  json.RawMessage `json:"fact"`
}

// same reports whether two facts say the same.
func (f Fact) same(g Fact) bool {
	var a, b bytes.Buffer
	return f.ID == g.ID && f.Kind == g.Kind && json.Compact(&a, f.Row) == nil && json.Compact(&b, g.Row) == nil &&
		bytes.Equal(a.Bytes(), b.Bytes())
}

// Record is one step of the journal.
type Record struct {
	Installation uuid.UUID `json:"installation"`
	Generation   int64     `json:"generation"`
	Seq          int64     `json:"seq"`
	// Previous is the digest of the record before, in hexadecimal; empty in the
	// first.
	Previous string `json:"previous"`
	// Rebuilt: what is before this record was lost, and everything that the
	// database knew is told again from here on.
	Rebuilt bool   `json:"rebuilt,omitempty"`
	Facts   []Fact `json:"facts"`

	// Digest is that of this record; not part of it.
	Digest [sha256.Size]byte `json:"-"`
}

// recordMagic begins every record, and is followed by the digest of the rest.
const recordMagic = "memd-journal-1 "

// headSize is the length of the first line.
const headSize = len(recordMagic) + 2*sha256.Size + 1

// RecordPrefix is where the ledgers keep the journal.
const RecordPrefix = "journal/"

// RecordName is the name of a record in every ledger. Fixed width, so that a
// listing is in order.
func RecordName(seq int64) string { return fmt.Sprintf("%s%016d", RecordPrefix, seq) }

// encode renders a record and sets its digest.
func (r *Record) encode() ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encoding a record of the journal: %w", err)
	}
	r.Digest = sha256.Sum256(body)
	out := make([]byte, 0, headSize+len(body))
	out = append(out, recordMagic...)
	out = hex.AppendEncode(out, r.Digest[:])
	out = append(out, '\n')
	return append(out, body...), nil
}

// ParseRecord reads what encode wrote, or returns memd.ErrCorrupt.
func ParseRecord(data []byte) (Record, error) {
	var r Record
	if len(data) < headSize || string(data[:len(recordMagic)]) != recordMagic || data[headSize-1] != '\n' {
		return r, corrupt("value is no record of the journal")
	}
	body := data[headSize:]
	digest := sha256.Sum256(body)
	if hex.EncodeToString(digest[:]) != string(data[len(recordMagic):headSize-1]) {
		return r, corrupt("record of the journal has another checksum")
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return Record{}, corrupt("record of the journal cannot be read")
	}
	r.Digest = digest
	return r, nil
}

// follows reports whether r is the step after the given one.
func (r *Record) follows(installation uuid.UUID, seq int64, digest []byte) bool {
	return r.Installation == installation && r.Seq == seq+1 && r.Previous == hex.EncodeToString(digest)
}

func corrupt(problem string) error { return fmt.Errorf("%s: %w", problem, memd.ErrCorrupt) }
