package receipts

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// ConsistencyFormat names the version of a Consistency's fields.
const ConsistencyFormat = "memd-receipt-consistency/v1"

// Consistency proves that a log of From entries is the beginning of the log of
// To entries, without the entries. It is not signed: with two signed checkpoints
// it holds or it does not.
type Consistency struct {
	Format string   `json:"format"`
	From   uint64   `json:"from"`
	Proof  []Digest `json:"proof"`
	To     uint64   `json:"to"`
}

// Encode returns the canonical bytes.
func (c Consistency) Encode() ([]byte, error) {
	if c.Format != ConsistencyFormat || c.From > c.To || c.To > maxNumber {
		return nil, &memd.InvalidError{Field: "consistency", Problem: "must be of a known format and go forward"}
	}
	c.Proof = append(make([]Digest, 0, len(c.Proof)), c.Proof...)
	return marshal(c)
}

// ParseConsistency reads a proof. Errors are memd.ErrCorrupt.
func ParseConsistency(data []byte) (Consistency, error) {
	var c Consistency
	if err := parse(data, &c, func() ([]byte, error) { return c.Encode() }); err != nil {
		return Consistency{}, fmt.Errorf("reading a consistency proof: %w", err)
	}
	return c, nil
}

// Verify checks that the later of two checkpoints of one log continues the
// earlier. Either may be the earlier. Errors are memd.ErrCorrupt.
func (c Consistency) Verify(a, b Checkpoint) error {
	if a.Size > b.Size {
		a, b = b, a
	}
	switch {
	case a.Origin != b.Origin:
		return corrupt("checkpoints are of two logs")
	case a.Size != c.From || b.Size != c.To:
		return corrupt(fmt.Sprintf("proof is from %d to %d entries, the checkpoints have %d and %d", c.From, c.To, a.Size, b.Size))
	}
	hashes := make([][]byte, len(c.Proof))
	for i := range c.Proof {
		hashes[i] = c.Proof[i][:]
	}
	if err := proof.VerifyConsistency(rfc6962.DefaultHasher, a.Size, b.Size, hashes, a.Root[:], b.Root[:]); err != nil {
		return corrupt("later checkpoint does not continue the earlier: the log was rewritten")
	}
	return nil
}

const sqlReadLeaves = `
SELECT leaf FROM memd.receipts WHERE tenant_no = @tenant AND log_index < @size ORDER BY log_index`

// ProveConsistency makes the proof between two sizes of a tenant's log. It reads
// 32 bytes for each entry below to. memd.ErrNotFound: the log is not so long.
func ProveConsistency(ctx context.Context, db pg.DB, tenant memd.TenantNo, from, to uint64) (Consistency, error) {
	if from > to || to > maxNumber {
		return Consistency{}, &memd.InvalidError{Field: "from", Problem: "must not be above to"}
	}
	rows, err := db.Query(ctx, sqlReadLeaves, pg.Args{"tenant": tenant, "size": int64(to)})
	if err != nil {
		return Consistency{}, fmt.Errorf("reading the log: %w", err)
	}
	leaves, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return Consistency{}, fmt.Errorf("reading the log: %w", err)
	}
	if uint64(len(leaves)) != to {
		return Consistency{}, fmt.Errorf("log has %d entries: %w", len(leaves), memd.ErrNotFound)
	}
	return consistency(leaves, from)
}

func consistency(leaves [][]byte, from uint64) (Consistency, error) {
	c := Consistency{Format: ConsistencyFormat, From: from, To: uint64(len(leaves)), Proof: []Digest{}}
	if from == 0 {
		return c, nil // Everything continues an empty log.
	}
	nodes, err := proof.Consistency(c.From, c.To)
	if err != nil {
		return c, fmt.Errorf("planning a consistency proof: %w", err)
	}
	hashes := make([][]byte, len(nodes.IDs))
	for i, id := range nodes.IDs {
		if hashes[i], err = nodeHash(leaves, id); err != nil {
			return c, err
		}
	}
	hashes, err = nodes.Rehash(hashes, rfc6962.DefaultHasher.HashChildren)
	if err != nil {
		return c, fmt.Errorf("making a consistency proof: %w", err)
	}
	for _, h := range hashes {
		c.Proof = append(c.Proof, Digest(h))
	}
	return c, nil
}

// nodeHash is the hash of a perfect subtree.
func nodeHash(leaves [][]byte, id compact.NodeID) ([]byte, error) {
	begin, end := id.Coverage()
	r := ranges.NewEmptyRange(begin)
	for _, leaf := range leaves[begin:end] {
		if err := r.Append(leaf, nil); err != nil {
			return nil, fmt.Errorf("hashing the log: %w", err)
		}
	}
	return r.Hashes()[0], nil
}
