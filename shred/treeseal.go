package shred

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/tink-crypto/tink-go/v2/aead/subtle"

	"forgettable.dev/memd"
)

// A sealed state, the value that database and ledger keep, big-endian:
//
//	8   magic
//	1   format version
//	8   tenant
//	8   epoch
//	2+n full name of the KMS key version
//	4+n data key, wrapped by that version
//	…   state, sealed under the data key: nonce, ciphertext, tag
//
// Everything before the state is its associated data, so no byte can change.
const (
	sealedMagic  = "memdtree"
	sealedFormat = 1

	// maxVersionName and maxWrappedKey bound what a header may claim. Cloud KMS
	// stays well below both.
	maxVersionName = 1024
	maxWrappedKey  = 16 << 10

	// versionPart joins the names of a KMS key and of one of its versions.
	versionPart = "/cryptoKeyVersions/"
)

// SealTree seals t under a fresh data key that the named version, and no other,
// wraps. The result may be kept anywhere: it dies with the version. Errors of
// the KMS pass through. Safe to repeat; each result is a different one.
func SealTree(ctx context.Context, kms KMS, version string, t *Tree) (sealed []byte, err error) {
	if len(version) > maxVersionName || !strings.Contains(version, versionPart) {
		return nil, &memd.InvalidError{Field: "version", Problem: "is not the name of a KMS key version"}
	}
	state, err := t.MarshalBinary()
	if err != nil {
		return nil, err
	}
	defer clear(state)
	key := make([]byte, len(Key{}))
	defer clear(key)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("drawing a data key: %w", err)
	}
	aead, err := subtle.NewAESGCM(key)
	if err != nil {
		return nil, fmt.Errorf("setting up the cipher of the tree: %w", err)
	}
	wrapped, err := kms.Encrypt(ctx, version, key, AADTree(t.tenant, t.epoch))
	if err != nil {
		return nil, fmt.Errorf("wrapping the data key of a tree: %w", err)
	}
	if len(wrapped) == 0 || len(wrapped) > maxWrappedKey {
		return nil, corrupt("wrapping the data key of a tree: answer has an impossible length")
	}
	header := make([]byte, 0, 64+len(version)+len(wrapped))
	header = append(header, sealedMagic...)
	header = append(header, sealedFormat)
	header = binary.BigEndian.AppendUint64(header, uint64(t.tenant))
	header = binary.BigEndian.AppendUint64(header, uint64(t.epoch))
	header = binary.BigEndian.AppendUint16(header, uint16(len(version)))
	header = append(header, version...)
	header = binary.BigEndian.AppendUint32(header, uint32(len(wrapped)))
	header = append(header, wrapped...)
	body, err := aead.Encrypt(state, append(AADTree(t.tenant, t.epoch), header...))
	if err != nil {
		return nil, fmt.Errorf("sealing a tree: %w", err)
	}
	return append(header, body...), nil
}

// OpenTree opens a sealed state with the named KMS key (not version: the
// ciphertext knows which of the key's versions it needs) and returns the name
// of the version that wrapped it. The caller compares the tree's tenant and
// epoch with what it asked for, and must Zero the tree.
//
// It returns memd.ErrCorrupt for anything but an unchanged result of SealTree
// under a version of this key. Errors of the KMS pass through: after the
// version was destroyed, memd.ErrShredded.
func OpenTree(ctx context.Context, kms KMS, key string, sealed []byte) (t *Tree, version string, err error) {
	h, err := parseTreeHeader(sealed)
	if err != nil {
		return nil, "", err
	}
	number, ok := strings.CutPrefix(h.version, key+versionPart)
	if !ok || number == "" || strings.Contains(number, "/") {
		return nil, "", corrupt("sealed tree belongs to another KMS key")
	}
	dataKey, err := kms.Decrypt(ctx, key, h.wrapped, AADTree(h.tenant, h.epoch))
	if err != nil {
		return nil, "", fmt.Errorf("unwrapping the data key of a tree: %w", err)
	}
	defer clear(dataKey)
	if len(dataKey) != len(Key{}) {
		return nil, "", corrupt("unwrapping the data key of a tree: wrong length")
	}
	aead, err := subtle.NewAESGCM(dataKey)
	if err != nil {
		return nil, "", fmt.Errorf("setting up the cipher of the tree: %w", err)
	}
	state, err := aead.Decrypt(h.body, append(AADTree(h.tenant, h.epoch), h.raw...))
	if err != nil {
		return nil, "", corrupt("opening a sealed tree")
	}
	defer clear(state)
	t, err = UnmarshalTree(state)
	if err != nil {
		return nil, "", err
	}
	if t.tenant != h.tenant || t.epoch != h.epoch {
		t.Zero()
		return nil, "", corrupt("sealed tree is another than its header says")
	}
	return t, h.version, nil
}

// ParseTreeHeader reads what a sealed state says of itself without opening it.
// Nothing of it is authenticated before OpenTree succeeded. It returns
// memd.ErrCorrupt for bytes that SealTree did not write.
func ParseTreeHeader(sealed []byte) (tenant memd.TenantNo, epoch int64, version string, err error) {
	h, err := parseTreeHeader(sealed)
	if err != nil {
		return 0, 0, "", err
	}
	return h.tenant, h.epoch, h.version, nil
}

type treeHeader struct {
	tenant  memd.TenantNo
	epoch   int64
	version string
	wrapped []byte
	raw     []byte // everything above, as it stands in the value
	body    []byte
}

func parseTreeHeader(sealed []byte) (treeHeader, error) {
	const fixed = len(sealedMagic) + 1 + 8 + 8 + 2
	if len(sealed) < fixed || string(sealed[:len(sealedMagic)]) != sealedMagic {
		return treeHeader{}, corrupt("value is not a sealed tree")
	}
	rest := sealed[len(sealedMagic):]
	if rest[0] != sealedFormat {
		return treeHeader{}, corrupt("sealed tree has an unknown format")
	}
	tenant, epoch := binary.BigEndian.Uint64(rest[1:]), binary.BigEndian.Uint64(rest[9:])
	if tenant == 0 || tenant > math.MaxInt64 || epoch == 0 || epoch > math.MaxInt64 {
		return treeHeader{}, corrupt("sealed tree has no tenant or epoch")
	}
	n := int(binary.BigEndian.Uint16(rest[17:]))
	rest = rest[19:]
	if n == 0 || n > maxVersionName || len(rest) < n+4 {
		return treeHeader{}, corrupt("sealed tree has no KMS version")
	}
	h := treeHeader{tenant: memd.TenantNo(tenant), epoch: int64(epoch), version: string(rest[:n])}
	if !strings.Contains(h.version, versionPart) {
		return treeHeader{}, corrupt("sealed tree has no KMS version")
	}
	wrapped := binary.BigEndian.Uint32(rest[n:])
	rest = rest[n+4:]
	if wrapped == 0 || wrapped > maxWrappedKey || len(rest) < int(wrapped) {
		return treeHeader{}, corrupt("sealed tree has no data key")
	}
	h.wrapped, h.body = rest[:wrapped], rest[wrapped:]
	if len(h.body) < subtle.AESGCMIVSize+subtle.AESGCMTagSize {
		return treeHeader{}, corrupt("sealed tree has no state")
	}
	h.raw = sealed[:len(sealed)-len(h.body)]
	return h, nil
}
