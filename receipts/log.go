package receipts

import (
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/note"

	"forgettable.dev/memd"
)

// originPattern is what Origin returns.
var originPattern = regexp.MustCompile(`^forgettable\.dev/memd/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/[1-9][0-9]{0,18}$`)

// Origin names a tenant's log for the whole world.
func Origin(installation uuid.UUID, tenant memd.TenantNo) string {
	return fmt.Sprintf("forgettable.dev/memd/%s/%d", installation, tenant)
}

// Checkpoint is the head of a log: so many entries, under this root. Its text is
// a signed note after C2SP tlog-checkpoint, which other tools read too.
type Checkpoint struct {
	Origin string
	Size   uint64
	Root   Digest
}

func (c Checkpoint) body() string {
	return fmt.Sprintf("%s\n%d\n%s\n", c.Origin, c.Size, base64.StdEncoding.EncodeToString(c.Root[:]))
}

// ParseCheckpoint reads and verifies a checkpoint. It demands exactly one
// signature, and the bytes that its signer wrote: a signed note leaves open the
// spare bits of its base64, and the file would not be the same any more. Errors
// are memd.ErrCorrupt.
func ParseCheckpoint(text string, keys *Keys) (Checkpoint, error) {
	origin, _, _ := strings.Cut(text, "\n")
	if !originPattern.MatchString(origin) {
		return Checkpoint{}, corrupt("checkpoint has no origin of memd's")
	}
	n, err := note.Open([]byte(text), keys.verifiers(origin))
	if err != nil {
		return Checkpoint{}, corrupt("checkpoint is not signed by a key of the public keyset")
	}
	if len(n.Sigs) != 1 || len(n.UnverifiedSigs) != 0 {
		return Checkpoint{}, corrupt("checkpoint has not exactly one signature")
	}
	sig, err := base64.StdEncoding.Strict().DecodeString(n.Sigs[0].Base64)
	if err != nil || text != n.Text+"\n— "+origin+" "+base64.StdEncoding.EncodeToString(sig)+"\n" {
		return Checkpoint{}, corrupt("checkpoint's bytes are not canonical")
	}
	lines := strings.Split(n.Text, "\n")
	if len(lines) != 4 {
		return Checkpoint{}, corrupt("checkpoint has not three lines")
	}
	c := Checkpoint{Origin: origin}
	root, err := base64.StdEncoding.Strict().DecodeString(lines[2])
	if err != nil || len(root) != len(c.Root) {
		return Checkpoint{}, corrupt("checkpoint has no root")
	}
	c.Root = Digest(root)
	if c.Size, err = strconv.ParseUint(lines[1], 10, 63); err != nil || c.body() != n.Text {
		return Checkpoint{}, corrupt("checkpoint's bytes are not canonical")
	}
	return c, nil
}

// leafHash is the RFC 6962 hash of an entry's bytes.
func leafHash(entry []byte) Digest { return Digest(rfc6962.DefaultHasher.HashLeaf(entry)) }

var ranges = compact.RangeFactory{Hash: rfc6962.DefaultHasher.HashChildren}

// border is the left border of a tree that ends with a certain entry: enough to
// append to, and to know the root.
type border struct{ r *compact.Range }

// newBorder is the border of an empty log.
func newBorder() border { return border{ranges.NewEmptyRange(0)} }

// borderBefore is the border of the tree before an entry, from the entry's
// inclusion proof in the tree that ends with it: the siblings of the last leaf
// are the perfect subtrees to its left, smallest first.
func borderBefore(index uint64, inclusion []Digest) (border, error) {
	hashes := make([][]byte, len(inclusion))
	for i := range inclusion {
		hashes[len(inclusion)-1-i] = slices.Clone(inclusion[i][:])
	}
	r, err := ranges.NewRange(0, index, hashes)
	if err != nil {
		return border{}, corrupt("inclusion proof does not fit its place in the log")
	}
	return border{r}, nil
}

func (b border) size() uint64 { return b.r.End() }

// proofOfNext is the inclusion proof that the next entry will have.
func (b border) proofOfNext() []Digest {
	hashes := b.r.Hashes()
	inclusion := make([]Digest, len(hashes))
	for i, h := range hashes {
		inclusion[len(hashes)-1-i] = Digest(h)
	}
	return inclusion
}

func (b border) append(leaf Digest) error {
	if err := b.r.Append(leaf[:], nil); err != nil {
		return fmt.Errorf("appending to the log: %w", err)
	}
	return nil
}

func (b border) root() (Digest, error) {
	if b.r.End() == 0 {
		return Digest(rfc6962.DefaultHasher.EmptyRoot()), nil
	}
	root, err := b.r.GetRootHash(nil)
	if err != nil {
		return Digest{}, fmt.Errorf("computing the root of the log: %w", err)
	}
	return Digest(root), nil
}

func verifyInclusion(index uint64, c Checkpoint, leaf Digest, inclusion []Digest) error {
	hashes := make([][]byte, len(inclusion))
	for i := range inclusion {
		hashes[i] = inclusion[i][:]
	}
	if err := proof.VerifyInclusion(rfc6962.DefaultHasher, index, c.Size, leaf[:], hashes, c.Root[:]); err != nil {
		return corrupt("entry is not in the log at its place")
	}
	return nil
}
